//go:build !unix

package main

import (
	"os"
)

// signalReload does nothing: there is no SIGHUP here.
func signalReload(chan<- os.Signal) {}

// outliveReaders does nothing: there is no SIGPIPE here.
func outliveReaders() {}

// signalUpgrade does nothing: there is no SIGUSR2 here.
func signalUpgrade(chan<- os.Signal) {}
