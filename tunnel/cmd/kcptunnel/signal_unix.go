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

// ownedBySelf reports whether a file is of the user of this process.
func ownedBySelf(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Getuid()
}

// signalUpgrade sends SIGUSR2 to c.
func signalUpgrade(c chan<- os.Signal) { signal.Notify(c, syscall.SIGUSR2) }
