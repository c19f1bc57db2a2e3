package e2e

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/stretchr/testify/require"
)

// wantReason checks that err says that the peer has closed with a reason.
func wantReason(t *testing.T, err error, want kcp.PeerCloseError) {
	t.Helper()
	var reason *kcp.PeerCloseError
	require.ErrorAs(t, err, &reason)
	require.Equal(t, want, *reason)
	sentinel := kcp.ErrPeerClosed
	if want.Aborted {
		sentinel = kcp.ErrReset
	}
	require.ErrorIs(t, err, sentinel)
}

// The reason arrives behind all data, however many packets are lost, and every
// call of the peer returns it.
func TestCloseWithError(t *testing.T) {
	for seed := range fewer(8) {
		inWorld(t, seed, lossy, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			w.say(a, string(content(seed, 5000)))
			require.NoError(t, a.CloseWithError(1<<63+7, "going down: \xff"))
			require.ErrorIs(t, a.CloseWithError(1, ""), net.ErrClosed)
			receive(t, b, content(seed, 5000))
			_, write := b.Write([]byte("late"))
			_, datagram := b.ReceiveDatagram(context.Background())
			for _, err := range []error{end(b), write, datagram, b.CloseWrite(), b.SendDatagram(nil)} {
				wantReason(t, err, kcp.PeerCloseError{Code: 1<<63 + 7, Text: "going down: \uFFFD"})
			}
			require.NoError(t, b.Close())
		})
	}
}

// Without a reason nothing changes, and after a half-close there is one all the same. The
// text is cut between two characters, to what fits into any packet.
func TestCloseReasons(t *testing.T) {
	for _, tc := range []struct {
		name      string
		mtu       int
		halfClose bool
		close     func(c *kcp.Conn) error
		want      *kcp.PeerCloseError // nil: io.EOF
	}{
		{"none", 1400, false, (*kcp.Conn).Close, nil},
		{"zero", 1400, false, func(c *kcp.Conn) error { return c.CloseWithError(0, "") }, &kcp.PeerCloseError{}},
		{"half-closed", 1400, true, func(c *kcp.Conn) error { return c.CloseWithError(3, "x") }, &kcp.PeerCloseError{Code: 3, Text: "x"}},
		{"long", 1400, false, func(c *kcp.Conn) error { return c.CloseWithError(9, strings.Repeat("ä", 1000)) },
			&kcp.PeerCloseError{Code: 9, Text: strings.Repeat("ä", 128)}},
		{"longer than a packet", 50, false, func(c *kcp.Conn) error { return c.CloseWithError(9, strings.Repeat("ä", 1000)) },
			&kcp.PeerCloseError{Code: 9, Text: strings.Repeat("ä", 9)}},
	} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			config := &kcp.Config{MTU: tc.mtu, MaxMTU: -1}
			a, b, _ := w.pair(config, config)
			if tc.halfClose {
				require.NoError(t, a.CloseWrite())
				time.Sleep(100 * time.Millisecond)
			}
			require.NoError(t, tc.close(a), tc.name)
			time.Sleep(100 * time.Millisecond)
			if err := end(b); tc.want == nil {
				require.Equal(t, io.EOF, err)
			} else {
				wantReason(t, err, *tc.want)
			}
			require.NoError(t, b.Close())
		})
	}
}

// The packet with the reason is lost. The answer to the peer's next packet repeats it
// (RFC 9000 §10.2.1), be that data or a PING after KeepAlive, and also if that answer is
// lost again. No answer is larger than three times what it answers.
func TestAbortReasonIsRepeated(t *testing.T) {
	for name, config := range map[string]*kcp.Config{"plain": {}, "AEAD": {Cipher: testAEAD(t)}, "TLS": {TLS: testTLS()}} {
		for _, test := range []struct {
			name   string
			lost   int // packets of the end that aborts
			writes int // bytes of the other one; 0: it only reads
			text   int // bytes of the reason that arrive
		}{
			{"data", 1, 1000, 256}, {"data, twice", 2, 1000, 256}, {"keep-alive", 1, 0, 16},
		} {
			t.Run(name+", "+test.name, func(t *testing.T) {
				inWorld(t, 1, clean, func(t *testing.T, w *world) {
					a, b, _ := w.pair(config, config)
					time.Sleep(5 * time.Second)
					lost, asked := 0, 0
					w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
						switch {
						case from != acceptorAddr:
							asked = len(p)
						case lost < test.lost:
							lost++
							return false
						default:
							require.LessOrEqual(t, len(p), 3*asked)
						}
						return true
					})
					text := strings.Repeat("the reason is long: ", 20)
					require.NoError(t, b.Abort(7, text))
					if test.writes > 0 {
						time.Sleep(time.Second)
						w.say(a, string(content(1, test.writes)))
					}
					err := end(a)
					require.Equal(t, test.lost, lost)
					var reason *kcp.PeerCloseError
					require.ErrorAs(t, err, &reason)
					require.GreaterOrEqual(t, len(reason.Text), test.text)
					wantReason(t, err, kcp.PeerCloseError{Code: 7, Text: text[:len(reason.Text)], Aborted: true})
				})
			})
		}
	}
}

// An unknown sender gets one reply to a packet, however many requests are in it,
// and never a larger one.
func TestRepliesAreNoLargerThanRequests(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		w.listen(nil)
		sender := netip.MustParseAddrPort("10.0.0.9:9")
		var answered int
		w.net.SetFilter(func(_, to netip.AddrPort, p []byte) bool {
			if to == sender {
				answered += len(p)
			}
			return true
		})
		for code := range 256 {
			for _, n := range []int{1, 2, 50} {
				var p []byte
				for range n {
					p = append(p, signal{signalCode(code), 0, 77}.bytes(uint32(code))...)
				}
				answered = 0
				w.net.Inject(sender, acceptorAddr, p)
				time.Sleep(time.Second)
				synctest.Wait()
				require.LessOrEqual(t, answered, len(p), "code %d, %d times", code, n)
			}
		}
	})
}
