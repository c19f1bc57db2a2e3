//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tree returns a process, and those that it has started and they have.
func tree(root int) []int {
	children := make(map[int][]int)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		if pid, fields, ok := readStat(path); ok {
			parent, _ := strconv.Atoi(fields[1])
			children[parent] = append(children[parent], pid)
		}
	}
	all := []int{root}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

// readStat reads /proc/PID/stat: the fields behind the name of the program.
func readStat(path string) (pid int, fields []string, ok bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, nil, false
	}
	end := bytes.LastIndexByte(text, ')')
	pid, err = strconv.Atoi(strings.Fields(string(text))[0])
	fields = strings.Fields(string(text[end+1:]))
	return pid, fields, err == nil && len(fields) > 14
}

// processor returns what the programs of a tunnel have used. What the kernel does
// for TCP besides system calls is not in it.
func (r *running) processor() time.Duration {
	ticks := 0
	for _, cmd := range r.procs {
		for _, pid := range tree(cmd.Process.Pid) {
			if _, fields, ok := readStat(fmt.Sprintf("/proc/%d/stat", pid)); ok {
				user, _ := strconv.Atoi(fields[11])
				system, _ := strconv.Atoi(fields[12])
				ticks += user + system
			}
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// memory returns what the programs hold, in bytes: the proportional set size.
func (r *running) memory() int64 {
	total := int64(0)
	for _, cmd := range r.procs {
		for _, pid := range tree(cmd.Process.Pid) {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
			for line := range strings.Lines(string(text)) {
				var kB int64
				if n, _ := fmt.Sscanf(line, "Pss: %d kB", &kB); n == 1 {
					total += kB << 10
				}
			}
		}
	}
	return total
}
