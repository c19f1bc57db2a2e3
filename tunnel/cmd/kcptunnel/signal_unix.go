//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// signalReload sends SIGHUP to c.
func signalReload(c chan<- os.Signal) { signal.Notify(c, syscall.SIGHUP) }
