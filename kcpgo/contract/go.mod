module github.com/arqnet/kcp/kcpgo/contract

go 1.25.0

require (
	github.com/arqnet/kcp v0.0.0
	github.com/arqnet/kcp/kcpgo v0.0.0
	github.com/stretchr/testify v1.11.1
	github.com/xtaci/kcp-go/v5 v5.6.72
)

replace (
	github.com/arqnet/kcp => ../../
	github.com/arqnet/kcp/kcpgo => ../
)

require (
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/emmansun/gmsm v0.41.1 // indirect
	github.com/klauspost/cpuid/v2 v2.3.0 // indirect
	github.com/klauspost/reedsolomon v1.14.2 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	github.com/tjfoc/gmsm v1.4.1 // indirect
	golang.org/x/crypto v0.54.0 // indirect
	golang.org/x/net v0.56.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/time v0.14.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)
