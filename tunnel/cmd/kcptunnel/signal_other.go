//go:build !unix

package main

import (
	"os"
)

// signalReload does nothing: there is no SIGHUP here.
func signalReload(chan<- os.Signal) {}

// outliveReaders does nothing: there is no SIGPIPE here.
func outliveReaders() {}

// ownedBySelf reports false: it is not known here.
func ownedBySelf(os.FileInfo) bool { return false }

// signalUpgrade does nothing: there is no SIGUSR2 here.
func signalUpgrade(chan<- os.Signal) {}
