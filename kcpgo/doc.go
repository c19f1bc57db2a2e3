// Package kcp has the API of github.com/xtaci/kcp-go/v5 on the engine of
// github.com/arqnet/kcp. A program that uses kcp-go changes one line of its
// go.mod, and no code, from the first tagged version on:
//
//	replace github.com/xtaci/kcp-go/v5 => github.com/arqnet/kcp/kcpgo v0.1.0
//
// README.md says what changes for the better, what does nothing, and where to go
// from here. New programs should use github.com/arqnet/kcp itself.
//
// Importing the package starts nothing. Sessions have no goroutines. A socket has
// one that reads it, and a listener one more.
package kcp
