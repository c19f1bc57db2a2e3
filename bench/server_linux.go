package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// dieWithParent has the system kill the process of cmd if this one ends.
func dieWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// residentMemory returns the resident memory of the process in bytes.
func residentMemory() (uint64, error) {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	var total, resident uint64
	if _, err := fmt.Sscan(string(b), &total, &resident); err != nil {
		return 0, err
	}
	return resident * uint64(os.Getpagesize()), nil
}

// maxFiles returns how many files the process may open. Package os has raised
// the limit as far as it goes.
func maxFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		panic(err) // the arguments are valid
	}
	return int(min(limit.Cur, 1<<30))
}
