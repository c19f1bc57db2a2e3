package docs

import (
	"bytes"
	"cmp"
	"context"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
)

// announce tells those that ask at pc, a socket of UDP, the port of the server and the
// fingerprint of its key, until pc is closed.
func announce(pc net.PacketConn, port, fingerprint string) error {
	question := make([]byte, 512)
	for {
		n, from, err := pc.ReadFrom(question)
		if err != nil {
			return err
		}
		if answer := port + " " + fingerprint; len(answer) <= n { // sends nobody more than it gets
			_, _ = pc.WriteTo([]byte(answer), from)
		}
	}
}

// discover asks a local network, such as at 255.255.255.255:4001, until a server answers.
func discover(ctx context.Context, at string) (server, fingerprint string, err error) {
	pc, err := net.ListenPacket("udp4", ":0")
	if err != nil {
		return "", "", err
	}
	defer pc.Close()
	to, err := net.ResolveUDPAddr("udp4", at)
	for b := make([]byte, 512); err == nil && ctx.Err() == nil; {
		if _, err = pc.WriteTo(b, to); err != nil {
			break
		}
		_ = pc.SetReadDeadline(time.Now().Add(time.Second / 2)) // then it asks again
		n, from, _ := pc.ReadFrom(b)
		if port, fingerprint, ok := strings.Cut(string(b[:n]), " "); ok {
			host, _, err := net.SplitHostPort(from.String())
			return net.JoinHostPort(host, port), fingerprint, err
		}
	}
	return "", "", cmp.Or(err, ctx.Err())
}

// packets is a net.Conn that keeps packets apart, such as one of a WebSocket, as the socket
// of an endpoint with that one peer: Endpoint.Dial gets its RemoteAddr.
type packets struct{ net.Conn }

func (p packets) WriteTo(b []byte, _ net.Addr) (int, error) { return p.Write(b) }
func (p packets) ReadFrom(b []byte) (n int, from net.Addr, err error) {
	n, err = p.Read(b)
	return n, p.RemoteAddr(), err
}

// TestDiscover asks the loopback network, which has a broadcast address on Linux.
func TestDiscover(t *testing.T) {
	pc, err := net.ListenPacket("udp4", ":0")
	require.NoError(t, err)
	host := map[bool]string{true: "127.255.255.255", false: "127.0.0.1"}[runtime.GOOS == "linux"]
	_, port, _ := net.SplitHostPort(pc.LocalAddr().String())
	ended := make(chan error)
	go func() { ended <- announce(pc, "4000", "SHA256:abc") }()
	server, fingerprint, err := discover(t.Context(), net.JoinHostPort(host, port))
	require.NoError(t, err)
	require.Equal(t, []string{"127.0.0.1:4000", "SHA256:abc"}, []string{server, fingerprint})
	require.NoError(t, pc.Close())
	require.ErrorIs(t, <-ended, net.ErrClosed)
}

// unread is a net.Conn whose Write does not wait until the peer reads.
type unread struct {
	net.Conn
	sent chan []byte
}

func (u unread) Write(b []byte) (int, error) {
	select {
	case u.sent <- bytes.Clone(b):
	default: // lost
	}
	return len(b), nil
}

// TestPackets has a session over a net.Conn.
func TestPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ends [2]*kcp.Endpoint
		near, far := net.Pipe()
		for i, c := range []net.Conn{near, far} {
			u := unread{c, make(chan []byte, 100)}
			go func() {
				for b := range u.sent {
					_, _ = c.Write(b)
				}
			}()
			var err error
			ends[i], err = kcp.NewEndpoint(packets{u}, nil)
			require.NoError(t, err)
			defer close(u.sent) // the last
			defer c.Close()
			defer ends[i].Close()
		}
		l, err := ends[1].Listen()
		require.NoError(t, err)
		a, err := ends[0].Dial(t.Context(), near.RemoteAddr(), nil)
		require.NoError(t, err)
		b, err := l.AcceptKCP(t.Context())
		require.NoError(t, err)
		testenv.BothWays(t, a, b, testenv.Content(1, 100_000), testenv.Content(2, 100_000))
	})
}
