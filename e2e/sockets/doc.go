// Package sockets has the end-to-end tests over sockets of the system: what goroutines
// do that meet there, and what the system says. It has nothing but tests.
package sockets
