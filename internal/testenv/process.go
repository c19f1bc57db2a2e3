package testenv

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// tried is how many addresses FreeAddress has tried.
var tried atomic.Uint32

// FreeAddress returns an address of loopback that nobody has, by TCP or UDP, for programs
// that choose none. It is below the ports that the system gives to sockets meanwhile, apart
// from those of tests in other processes, and none of the last 64.
func FreeAddress(t testing.TB) string {
	t.Helper()
	for range 64 {
		address := fmt.Sprintf("127.0.0.1:%d", 20000+os.Getpid()%125*64+int(tried.Add(1)%64))
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		pc, err := net.ListenPacket("udp", address)
		_ = l.Close()
		if err == nil {
			_ = pc.Close()
			return address
		}
	}
	require.FailNow(t, "there is no free port")
	return ""
}

// OpenFiles returns how many files the process has open; 0 where there is no /proc.
func OpenFiles() int {
	files, _ := os.ReadDir("/proc/self/fd")
	return len(files)
}
