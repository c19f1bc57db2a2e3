package main

import (
	"os"
	"runtime"
)

// notTerminals are devices that look like terminals to os.FileMode.
var notTerminals = []string{os.DevNull, "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	for _, name := range notTerminals {
		if other, err := os.Stat(name); err == nil && os.SameFile(info, other) {
			return false
		}
	}
	return true
}

// canRedraw reports whether a stream is a terminal that can move its cursor.
func canRedraw(stream any) bool {
	if !isTerminal(stream) || os.Getenv("TERM") == "dumb" {
		return false
	}
	// The old console of Windows cannot.
	return runtime.GOOS != "windows" || os.Getenv("WT_SESSION") != "" || os.Getenv("TERM") != ""
}
