package main

import (
	"os"
	"os/exec"
	"syscall"
	"time"
)

// What a server does at which signal.
const (
	reloads  = syscall.SIGHUP
	upgrades = syscall.SIGUSR2
)

// startGroup gives a process and those that it begins a group of their own.
func startGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// signalGroup sends a signal to a process and those that it has begun.
func signalGroup(cmd *exec.Cmd, s os.Signal) { _ = syscall.Kill(-cmd.Process.Pid, s.(syscall.Signal)) }

// awaitGroup waits until they have ended.
func awaitGroup(cmd *exec.Cmd) {
	for syscall.Kill(-cmd.Process.Pid, 0) == nil {
		time.Sleep(time.Millisecond)
	}
}
