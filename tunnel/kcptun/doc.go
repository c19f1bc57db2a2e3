// Package kcptun speaks the wire protocol of the program kcptun: TCP connections over
// smux, compressed by snappy, over sessions in the format of kcp-go with its ciphers
// and error correction. It is for programs kcptun at the other end; package tunnel has
// more, and protects better.
package kcptun
