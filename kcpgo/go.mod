module github.com/arqnet/kcp/kcpgo

go 1.25.0

require (
	github.com/arqnet/kcp v0.0.0
	github.com/emmansun/gmsm v0.41.1
	golang.org/x/crypto v0.54.0
	golang.org/x/net v0.56.0
)

require (
	github.com/klauspost/cpuid/v2 v2.3.0 // indirect
	github.com/klauspost/reedsolomon v1.14.2 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace github.com/arqnet/kcp => ../
