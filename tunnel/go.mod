module github.com/arqnet/kcp/tunnel

go 1.25.0

require (
	github.com/arqnet/kcp v0.0.0
	github.com/cenkalti/backoff/v5 v5.0.3
	github.com/stretchr/testify v1.11.1
	github.com/things-go/go-socks5 v0.1.0
	go.yaml.in/yaml/v3 v3.0.4
)

require (
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/klauspost/cpuid/v2 v2.3.0 // indirect
	github.com/klauspost/reedsolomon v1.14.2 // indirect
	github.com/kr/text v0.2.0 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	golang.org/x/crypto v0.54.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)

replace github.com/arqnet/kcp => ../
