module github.com/arqnet/kcp/examples/upgrade/tableflip

go 1.25.0

require (
	github.com/arqnet/kcp v0.0.0-00010101000000-000000000000
	github.com/cloudflare/tableflip v1.2.3
	github.com/stretchr/testify v1.11.1
	golang.org/x/sys v0.47.0
)

require (
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/klauspost/cpuid/v2 v2.3.0 // indirect
	github.com/klauspost/reedsolomon v1.14.2 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	golang.org/x/crypto v0.54.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)

replace github.com/arqnet/kcp => ../../..
