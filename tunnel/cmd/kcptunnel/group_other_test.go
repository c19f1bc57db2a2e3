//go:build !linux

package main

import (
	"os"
	"os/exec"
	"syscall"
)

// A server does neither here.
const reloads, upgrades = syscall.Signal(-1), syscall.Signal(-2)

func startGroup(*exec.Cmd) {}

func signalGroup(cmd *exec.Cmd, s os.Signal) {
	if s != reloads && s != upgrades {
		_ = cmd.Process.Signal(s)
	}
}

func awaitGroup(*exec.Cmd) {}
