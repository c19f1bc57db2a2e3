//go:build unix

package udp

import (
	"math"

	"golang.org/x/sys/unix"
)

// Descriptors returns how many descriptors the process may have; 0: it is not known.
func Descriptors() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return int(min(uint64(limit.Cur), math.MaxInt32))
}
