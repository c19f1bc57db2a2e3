//go:build !unix

package main

import "os"

// signalReload does nothing: there is no SIGHUP here.
func signalReload(chan<- os.Signal) {}
