package interop

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	manySessions = 16
	manyBytes    = 256 * kB // each way of each session
)

var manyTuning = tuning{256, 1400, nodelay | resend | nc}

// TestManySessions has many clients of one implementation, each with a socket
// of its own, transfer at the same time with one listener of the other.
func TestManySessions(t *testing.T) {
	us, them := party{ours{}, manyTuning}, party{theirs{}, manyTuning}
	for _, path := range []path{direct, lossy} {
		for _, p := range bothWays(us, them, path) {
			t.Run(p.name(), func(t *testing.T) {
				if path.relay {
					t.Parallel()
				}
				s := newService(t, p)
				for range manySessions {
					s.dial()
				}
				s.check(s.transfer(manyBytes))
				s.close()
			})
		}
	}
}

// TestOneSocket has many conversations from one socket to one listener, which
// tells them apart by their ids alone. kcp-go's listener cannot do that, so
// both ends are ours.
func TestOneSocket(t *testing.T) {
	us := party{ours{}, manyTuning}
	for _, path := range []path{direct, lossy} {
		t.Run(path.name, func(t *testing.T) {
			if path.relay {
				t.Parallel()
			}
			s := newService(t, plan{dialler: us, listener: us, path: path})
			socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			require.NoError(t, err)
			defer socket.Close()
			_ = socket.SetReadBuffer(socketBuffer) // the system may grant less
			_ = socket.SetWriteBuffer(socketBuffer)
			e, err := kcp.NewEndpoint(socket, ours{}.config(manyTuning))
			require.NoError(t, err)
			defer e.Close()
			remote, err := net.ResolveUDPAddr("udp4", s.address)
			require.NoError(t, err)
			for range manySessions {
				c, err := e.Dial(context.Background(), remote)
				require.NoError(t, err)
				s.adopt(ourEnd{c})
			}
			s.check(s.transfer(manyBytes))
			s.settle()
			s.close()
		})
	}
}

// settle waits until all our ends know that everything was delivered. Where
// both ends are ours and close, the second could otherwise find that the first
// is no longer there to repeat an acknowledgement that was lost.
func (s *service) settle() {
	s.t.Helper()
	settled := func() bool {
		for _, n := range s.sessions {
			for _, e := range []end{n.dialled, n.accepted} {
				if o, ok := e.(ourEnd); ok && o.Stats().WriteBuffered > 0 {
					return false
				}
			}
		}
		return true
	}
	if !assert.Eventually(s.t, settled, time.Until(s.deadline), time.Millisecond) {
		s.t.Fatalf("not everything was acknowledged\n%s", s.report())
	}
}
