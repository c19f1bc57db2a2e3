//go:build unix

package sockets

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
)

// A program with few descriptors dials as often as it likes, one session after the
// other: it reads to the end, and closes. So it does if it opens files too, which do not
// want for descriptors either, or dials several at a time, or by name.
func TestFewDescriptors(t *testing.T) {
	const variable = "KCP_TEST_DESCRIPTORS"
	if address := os.Getenv(variable); address != "" {
		dialWithFew(t, address)
		return
	}
	l := listen(t, nil)
	go serve(l, func(c *kcp.Conn) {
		_, _ = c.Write(testenv.Content(7, 3000))
		_ = c.Close()
	})
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	for _, kind := range []string{"127.0.0.1", "localhost"} {
		t.Run(kind, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestFewDescriptors$", "-test.v")
			cmd.Env = append(os.Environ(), variable+"="+net.JoinHostPort(kind, port))
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(out), "--- PASS")
		})
	}
}

// dialWithFew is the program.
func dialWithFew(t *testing.T, address string) {
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 64, Max: 64}))
	others := func(n int) (close func()) {
		files := make([]*os.File, n)
		for i := range files {
			f, err := os.Open("/dev/null")
			require.NoError(t, err, "another descriptor of the program")
			files[i] = f
		}
		return func() {
			for _, f := range files {
				f.Close()
			}
		}
	}
	once := func() error {
		c, err := kcp.Dial("udp4", address, nil)
		if err != nil {
			return err
		}
		defer c.Close()
		got, err := io.ReadAll(c)
		if err == nil && !bytes.Equal(got, testenv.Content(7, 3000)) {
			err = fmt.Errorf("%d other bytes", len(got))
		}
		return err
	}
	for i := range 100 {
		require.NoError(t, once(), "session %d", i+1)
	}
	others(20)()
	defer others(20)()
	for i := range 40 {
		require.NoError(t, once(), "session %d beside 20 files", i+1)
		if i%10 == 0 {
			others(15)()
		}
	}
	var dialling sync.WaitGroup
	for range 4 {
		dialling.Go(func() {
			for i := range 15 {
				if err := once(); err != nil {
					t.Errorf("session %d of one of four at a time: %v", i+1, err)
					return
				}
			}
		})
	}
	dialling.Wait()
	for full := false; !full; { // the program takes all that is left
		f, err := os.Open("/dev/null")
		if full = err != nil; !full {
			defer f.Close()
		}
	}
	for i := range 15 {
		require.NoError(t, once(), "session %d with the last descriptors", i+1)
	}
}
