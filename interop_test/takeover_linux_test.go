package interop

import (
	"bytes"
	"context"
	"crypto/aes"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/takeover"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
	kcpgo "github.com/xtaci/kcp-go/v5"
)

// Sessions of kcp-go go on in the process that has handed over, and new ones open at its
// successor. (Both are in this process, which changes nothing for the packets.)
func TestTakeover(t *testing.T) {
	t.Parallel()
	key := bytes.Repeat([]byte{0x5a}, 32)
	block, err := aes.NewCipher(key)
	require.NoError(t, err)
	theirs, err := kcpgo.NewAESBlockCrypt(key)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		config kcp.Config
		block  kcpgo.BlockCrypt
	}{
		"plain":        {},
		"FEC":          {config: kcp.Config{FEC: kcp.FEC{Data: 3, Parity: 2}}},
		"AES":          {config: kcp.Config{Cipher: crypt.CFB(block)}, block: theirs},
		"AES, FEC":     {config: kcp.Config{Cipher: crypt.CFB(block), FEC: kcp.FEC{Data: 3, Parity: 2}}, block: theirs},
		"shared convs": {config: kcp.Config{SharedConvs: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := kcp.Listen("udp4", "127.0.0.1:0", &c.config)
			require.NoError(t, err)
			serveNamed(t, l, "old")
			dial := func(want string) *kcpgo.UDPSession {
				s, err := kcpgo.DialWithOptions(l.Addr().String(), c.block, c.config.FEC.Data, c.config.FEC.Parity)
				require.NoError(t, err)
				t.Cleanup(func() { _ = s.Close() })
				s.SetNoDelay(1, 10, 2, 1)
				_, err = s.Write([]byte("?"))
				require.NoError(t, err)
				got := make([]byte, 4)
				_, err = io.ReadFull(s, got)
				require.NoError(t, err)
				require.Equal(t, want+"?", string(got))
				return s
			}
			old := dial("old")
			a, b := socketPair(t)
			go func() { _ = l.HandOver(unhurried(), a) }()
			next, err := kcp.TakeOver(unhurried(), b, &c.config)
			require.NoError(t, err)
			serveNamed(t, next, "new")
			for _, s := range []*kcpgo.UDPSession{old, dial("new"), old} {
				content := testenv.Content(1, 200*kB)
				testenv.Send(t, s, content)
				testenv.Receive(t, s, content)
			}
			require.NotZero(t, next.Stats().Forwarded)
			require.Equal(t, 1, next.Stats().PredecessorSessions)
		})
	}
}

// serveNamed accepts sessions, says name in each, and echoes.
func serveNamed(t *testing.T, l *kcp.Listener, name string) {
	t.Cleanup(func() { _ = l.Endpoint().Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = c.Write([]byte(name))
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}

// socketPair returns the two ends of a Unix stream socket.
func socketPair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	end := func(fd int) *net.UnixConn {
		f := os.NewFile(uintptr(fd), "pair")
		defer f.Close()
		c, err := net.FileConn(f)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c.(*net.UnixConn)
	}
	return end(fds[0]), end(fds[1])
}

// unhurried returns a context for takeovers that have to succeed on a busy machine.
func unhurried() context.Context { return takeover.WithFactor(context.Background(), 1000) }
