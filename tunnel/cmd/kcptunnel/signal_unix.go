//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// signalReload sends SIGHUP to c, unless the process was started to ignore it, as nohup
// does.
func signalReload(c chan<- os.Signal) {
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(c, syscall.SIGHUP)
	}
}

// outliveReaders has writes fail, and not end the process, when whoever reads standard
// output or standard error has ended.
func outliveReaders() { signal.Ignore(syscall.SIGPIPE) }

// signalUpgrade sends SIGUSR2 to c.
func signalUpgrade(c chan<- os.Signal) { signal.Notify(c, syscall.SIGUSR2) }
