//go:build !linux

package main

import (
	"os/exec"
	"runtime"
)

// dieWithParent does nothing: the process ends with its standard input.
func dieWithParent(*exec.Cmd) {}

// residentMemory returns the memory that the process has from the system, as
// there is no common way to tell how much of it is resident.
func residentMemory() (uint64, error) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Sys - m.HeapReleased, nil
}

// maxFiles returns how many files the process may open: a guess that most
// systems allow.
func maxFiles() int { return 1024 }
