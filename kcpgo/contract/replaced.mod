module github.com/arqnet/kcp/kcpgo/contract

go 1.25.0

require github.com/xtaci/kcp-go/v5 v5.6.72

require (
	github.com/arqnet/kcp v0.0.0 // indirect
	github.com/emmansun/gmsm v0.41.1 // indirect
	github.com/klauspost/cpuid/v2 v2.3.0 // indirect
	github.com/klauspost/reedsolomon v1.14.2 // indirect
	golang.org/x/crypto v0.54.0 // indirect
	golang.org/x/net v0.56.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace (
	github.com/arqnet/kcp => ../../
	github.com/xtaci/kcp-go/v5 => ../
)
