package e2e

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// wantReason checks that err says that the peer has closed with code and text.
func wantReason(t *testing.T, err error, code uint64, text string) {
	t.Helper()
	var reason *kcp.PeerCloseError
	require.ErrorAs(t, err, &reason)
	require.Equal(t, kcp.PeerCloseError{Code: code, Text: text}, *reason)
	require.ErrorIs(t, err, kcp.ErrPeerClosed)
}

// The reason arrives behind all data, however many packets are lost, and every
// call of the peer returns it.
func TestCloseWithError(t *testing.T) {
	for seed := range fewer(8) {
		inWorld(t, seed, lossy, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			data := content(seed, 5000)
			_, err := a.Write(data)
			require.NoError(t, err)
			require.NoError(t, a.CloseWithError(1<<63+7, "going down: \xff"))
			require.ErrorIs(t, a.CloseWithError(1, ""), net.ErrClosed)
			receive(t, b, data)
			_, err = b.Read(make([]byte, 1))
			wantReason(t, err, 1<<63+7, "going down: \uFFFD")
			_, err = b.Write([]byte("late"))
			wantReason(t, err, 1<<63+7, "going down: \uFFFD")
			_, err = b.ReceiveDatagram(context.Background())
			wantReason(t, err, 1<<63+7, "going down: \uFFFD")
			wantReason(t, b.CloseWrite(), 1<<63+7, "going down: \uFFFD")
			wantReason(t, b.SendDatagram(nil), 1<<63+7, "going down: \uFFFD")
			require.NoError(t, b.Close())
		})
	}
}

// Without a reason nothing changes, and after a half-close there is one all the
// same.
func TestCloseReasons(t *testing.T) {
	for _, tc := range []struct {
		name      string
		halfClose bool
		close     func(c *kcp.Conn) error
		want      func(t *testing.T, err error)
	}{
		{"none", false, (*kcp.Conn).Close, func(t *testing.T, err error) { require.Equal(t, io.EOF, err) }},
		{"zero", false, func(c *kcp.Conn) error { return c.CloseWithError(0, "") }, func(t *testing.T, err error) { wantReason(t, err, 0, "") }},
		{"half-closed", true, func(c *kcp.Conn) error { return c.CloseWithError(3, "x") }, func(t *testing.T, err error) { wantReason(t, err, 3, "x") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inWorld(t, 1, clean, func(t *testing.T, w *world) {
				a, b, _ := w.pair(nil, nil)
				if tc.halfClose {
					require.NoError(t, a.CloseWrite())
					time.Sleep(100 * time.Millisecond)
				}
				require.NoError(t, tc.close(a))
				time.Sleep(100 * time.Millisecond)
				_, err := b.Read(make([]byte, 1))
				tc.want(t, err)
				require.NoError(t, b.Close())
			})
		})
	}
}

// The text is cut between two characters, to what fits into any packet.
func TestCloseReasonIsCut(t *testing.T) {
	for _, tc := range []struct {
		mtu, want int
	}{{50, 18}, {1400, 256}} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			config := &kcp.Config{MTU: tc.mtu, MaxMTU: -1}
			a, b, _ := w.pair(config, config)
			require.NoError(t, a.CloseWithError(9, strings.Repeat("ä", 1000)))
			_, err := b.Read(make([]byte, 1))
			wantReason(t, err, 9, strings.Repeat("ä", tc.want/2))
			require.NoError(t, b.Close())
		})
	}
}

// Both sides break off at the same time: each learns it from the other, or has
// forgotten, and then there is silence.
func TestAbortsDoNotAnswerEachOther(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, l := w.pair(nil, nil)
		time.Sleep(time.Second)
		require.NoError(t, a.Abort())
		require.NoError(t, b.Abort())
		time.Sleep(time.Second)
		sent := l.Stats().PacketsSent
		time.Sleep(time.Minute)
		require.Equal(t, sent, l.Stats().PacketsSent)
	})
}

// An unknown sender gets one reply to a packet, however many requests are in it,
// and never a larger one.
func TestRepliesAreNoLargerThanRequests(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		l := w.listen(nil)
		server := l.Addr().(*net.UDPAddr).AddrPort()
		sender := netip.MustParseAddrPort("10.0.0.9:9")
		var asked, answered int
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
					b := make([]byte, headerSize)
					signal{signalCode(code), 0, 77}.encode(header{conv: uint32(code), wnd: 128}, b)
					p = append(p, b...)
				}
				asked, answered = len(p), 0
				w.net.Inject(sender, server, p)
				time.Sleep(time.Second)
				synctest.Wait()
				require.LessOrEqual(t, answered, asked, "code %d, %d times", code, n)
			}
		}
	})
}

// The wire form of every signal is a probe to those who know none.
func TestSignalsAreProbes(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		seen := make(map[signalCode]bool)
		w.net.SetFilter(func(_, _ netip.AddrPort, p []byte) bool {
			for _, s := range signalsOf(p) {
				seen[s.code] = true
			}
			for q := p; len(q) >= headerSize; {
				h := decodeHeader(q)
				if h.cmd == cmdWask || h.cmd == cmdWins {
					require.Zero(t, h.len)
				}
				if signalCode(h.frg) == sigHello && h.cmd == cmdWask {
					require.Zero(t, h.sn, "kcp-go's listener wants 0 in the first packet")
				}
				q = q[headerSize+int(h.len):]
			}
			return true
		})
		l := w.listen(&kcp.Config{AddressValidation: kcp.ValidateAlways})
		e, _ := w.endpoint("10.0.0.2:0", nil)
		a := w.dial(e)
		b, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.NoError(t, a.CloseWrite())
		time.Sleep(time.Second)
		require.NoError(t, b.Close())
		synctest.Wait()
		for _, code := range []signalCode{
			sigHello, sigHello | sigAnswer, sigCookie, sigInfo, sigConfirm, sigConfirm | sigAnswer,
			sigPing, sigPing | sigAnswer, sigFin, sigFin | sigAnswer,
		} {
			require.True(t, seen[code], "code %#x", code)
		}
		require.Equal(t, kcp.PeerInfo{Known: true, Version: signalVersion}, a.Peer())
		require.Equal(t, kcp.PeerInfo{Known: true, Version: signalVersion}, b.Peer())
	})
}

// The last acknowledgement leaves with the end of the session; there may be
// nobody to give it afterwards.
func TestTheEndAcknowledges(t *testing.T) {
	for _, size := range []int{1, 100, 5000, 100000} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			a, b, l := w.pair(nil, nil)
			time.Sleep(time.Second)
			want := content(1, size)
			closed := make(chan error, 1)
			go func() {
				_, err := a.Write(want)
				require.NoError(t, err)
				closed <- a.Close()
			}()
			receive(t, b, want)
			_, err := b.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
			require.NoError(t, b.Close())
			require.NoError(t, l.Endpoint().Close())
			require.NoError(t, <-closed, "%d bytes", size)
		})
	}
}

// Who writes and closes at once is accepted, and read to the end, also where
// none of its confirmations arrives: the close shows as well that it gets what
// is sent to it.
func TestCloseBeforeConfirm(t *testing.T) {
	for _, half := range []bool{false, true} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			w.net.SetFilter(func(_, _ netip.AddrPort, p []byte) bool {
				return !slices.ContainsFunc(signalsOf(p), func(s signal) bool { return s.code == sigConfirm })
			})
			l := w.listen(nil)
			e, _ := w.endpoint("10.0.0.2:0", nil)
			a := w.dial(e)
			synctest.Wait() // CONFIRM leaves by itself, and does not take CLOSE with it
			want := content(1, 3000)
			_, err := a.Write(want)
			require.NoError(t, err)
			if half {
				require.NoError(t, a.CloseWrite())
			} else {
				require.NoError(t, a.Close())
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			b, err := l.AcceptKCP(ctx)
			require.NoError(t, err)
			got, err := io.ReadAll(b)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got))
			require.Zero(t, l.Stats().HalfOpen)
			require.NoError(t, b.Close())
		})
	}
}

// A session that the peer has closed by the time Dial looks was opened all the
// same: what the peer has said is there to be read. Nor does it matter how many
// of its answers to the hello were lost before that.
func TestDialOfAPeerThatClosesAtOnce(t *testing.T) {
	for seed := range fewer(40) {
		inWorld(t, seed, netsim.LinkConfig{Delay: 10 * time.Millisecond, Loss: 0.3}, func(t *testing.T, w *world) {
			l := w.listen(&kcp.Config{AddressValidation: kcp.ValidateAlways, Linger: time.Minute})
			served := make(chan error, 1)
			go func() {
				c, err := l.Accept()
				if err == nil {
					_, err = c.Write([]byte("hello"))
				}
				if err == nil {
					err = c.Close()
				}
				served <- err
			}()
			e, _ := w.endpoint("10.0.0.2:0", nil)
			c := w.dial(e)
			got, err := io.ReadAll(c)
			require.NoError(t, err)
			require.Equal(t, "hello", string(got))
			require.NoError(t, <-served)
		})
	}
}
