module github.com/arqnet/kcp/scripts/modproxy

go 1.25.0

require golang.org/x/mod v0.31.0
