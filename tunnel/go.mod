module github.com/arqnet/kcp/tunnel

go 1.25.0

require (
	github.com/arqnet/kcp v0.0.0
	github.com/arqnet/kcp/kcpgo v0.0.0-00010101000000-000000000000
	github.com/cenkalti/backoff/v5 v5.0.3
	github.com/golang/snappy v1.0.0
	github.com/hashicorp/yamux v0.1.2
	github.com/prometheus/client_model v0.6.2
	github.com/prometheus/common v0.66.1
	github.com/stretchr/testify v1.11.1
	github.com/things-go/go-socks5 v0.1.0
	github.com/xtaci/smux v1.5.58
	go.yaml.in/yaml/v3 v3.0.4
	golang.org/x/crypto v0.54.0
	golang.org/x/net v0.56.0
)

require (
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/emmansun/gmsm v0.41.1 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/prometheus/procfs v0.16.1 // indirect
	go.yaml.in/yaml/v2 v2.4.2 // indirect
	google.golang.org/protobuf v1.36.8 // indirect
)

require (
	github.com/arqnet/kcp/observe v0.0.0
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/klauspost/cpuid/v2 v2.3.0 // indirect
	github.com/klauspost/reedsolomon v1.14.2 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	github.com/prometheus/client_golang v1.23.2
	github.com/urfave/cli/v3 v3.6.2
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/term v0.45.0
	gopkg.in/yaml.v3 v3.0.1 // indirect
)

replace github.com/arqnet/kcp => ../

replace github.com/arqnet/kcp/observe => ../observe

replace github.com/arqnet/kcp/kcpgo => ../kcpgo
