package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// What the application sees of a peer that does not behave, and when. Both ends
// are ours and time is virtual, so the times are exact; interop_test has the
// same with kcp-go in real time.

// roundTrip is that of the link clean.
const roundTrip = 20 * time.Millisecond

func udpAddr(s string) *net.UDPAddr { return net.UDPAddrFromAddrPort(netip.MustParseAddrPort(s)) }

// Nobody answers, because there is no socket, or nobody who reads it: Dial says
// so at its time limit, whoever sets that, and leaves nothing behind.
func TestDialNobody(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		inWorld(t, 29, clean, func(t *testing.T, w *world) {
			if stopped {
				pc, err := w.net.Listen(serverAddr)
				require.NoError(t, err)
				defer pc.Close()
			}
			e, _ := w.endpoint("10.0.0.2:0", &kcp.Config{DialTimeout: 6500 * time.Millisecond})
			start := time.Now()
			_, err := e.Dial(context.Background(), udpAddr(serverAddr))
			var none *kcp.NoAnswerError
			require.ErrorAs(t, err, &none)
			require.Equal(t, 6500*time.Millisecond, none.Waited)
			require.Equal(t, 6500*time.Millisecond, time.Since(start))
			requireTimeout(t, err)
			require.ErrorIs(t, err, context.DeadlineExceeded)

			start = time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			_, err = e.Dial(ctx, udpAddr(serverAddr))
			require.ErrorAs(t, err, &none)
			require.Equal(t, 2*time.Second, time.Since(start))
			requireTimeout(t, err)

			ctx, cancel = context.WithCancel(context.Background())
			time.AfterFunc(time.Second, cancel)
			_, err = e.Dial(ctx, udpAddr(serverAddr))
			require.ErrorIs(t, err, context.Canceled)
			require.False(t, errors.As(err, &none))
			require.Zero(t, e.Stats().Sessions)

			// The hello is repeated: at 0, 0.2 and 0.6 s, and then each half second.
			require.EqualValues(t, 14+5+3, e.Stats().PacketsSent)
		})
	}
}

// An endpoint that does not listen refuses, within a round trip.
func TestDialRefused(t *testing.T) {
	inWorld(t, 29, clean, func(t *testing.T, w *world) {
		server, _ := w.endpoint(serverAddr, nil)
		e, _ := w.endpoint("10.0.0.2:0", nil)
		start := time.Now()
		_, err := e.Dial(context.Background(), udpAddr(serverAddr))
		require.ErrorIs(t, err, kcp.ErrRefused)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.Equal(t, roundTrip, time.Since(start))
		require.Zero(t, server.Stats().Sessions)

		// Nor is anybody let in while the listener is closing down.
		l, err := server.Listen()
		require.NoError(t, err)
		c, err := e.Dial(context.Background(), udpAddr(serverAddr))
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.NoError(t, l.Close())
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, kcp.ErrReset)
		require.ErrorIs(t, err, syscall.ECONNRESET)
		_, err = c.Write([]byte("x"))
		require.ErrorIs(t, err, kcp.ErrReset)
	})
}

// Close of a peer that reads takes a round trip and not more.
func TestCloseTakesARoundTrip(t *testing.T) {
	inWorld(t, 21, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		time.Sleep(time.Second)
		start := time.Now()
		_, err := a.Write([]byte("bye"))
		require.NoError(t, err)
		require.NoError(t, a.Close())
		require.Equal(t, roundTrip, time.Since(start))
		receive(t, b, []byte("bye"))
	})
}

// A PING that arrives before the WELCOME, since all of those were lost, does not
// make Dial return: the session would take its peer for one without signals, and
// Close would not tell it.
func TestPingBeforeWelcome(t *testing.T) {
	inWorld(t, 475, netsim.LinkConfig{Delay: 8 * time.Millisecond}, func(t *testing.T, w *world) {
		start := time.Now()
		var pings atomic.Int32
		w.net.SetFilter(func(_, _ netip.AddrPort, p []byte) bool {
			at := time.Since(start)
			switch h := decodeHeader(p); signalCode(h.frg) {
			case sigPing:
				pings.Add(1)
			case sigHello:
				return at < 100*time.Millisecond || at > 4*time.Second
			case sigHello | sigAnswer:
				return at > 4*time.Second
			}
			return true
		})
		l := w.listen(&kcp.Config{KeepAlive: time.Second})
		e, _ := w.endpoint("10.0.0.2:5000", &kcp.Config{DialTimeout: 20 * time.Second})
		a := w.dial(e)
		require.Positive(t, pings.Load())
		require.True(t, a.Peer().Known)
		b, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		require.NoError(t, a.Close())
		_, err = b.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
	})
}

// The peer is killed in the middle of a transfer: PeerTimeout after its last
// sign of life Read and Write fail, on either side of it, and Close says that
// not all was delivered.
func TestPeerKilled(t *testing.T) {
	long(t)
	link := clean
	link.Rate, link.Queue = 10<<20, 1<<20 // or a second would be gigabytes
	for _, serverDies := range []bool{true, false} {
		inWorld(t, 12, link, func(t *testing.T, w *world) {
			const patience = 8 * time.Second
			a, b, _ := w.pair(&kcp.Config{PeerTimeout: patience}, &kcp.Config{PeerTimeout: patience})
			stays, dies := a, b
			if !serverDies {
				stays, dies = b, a
			}
			go func() { _, _ = io.Copy(io.Discard, dies) }()
			var errs []error
			done := make(chan error)
			go func() {
				_, err := stays.Write(make([]byte, 1<<28))
				done <- err
			}()
			go func() {
				_, err := stays.Read(make([]byte, 1))
				done <- err
			}()
			time.Sleep(time.Second)
			last := time.Now()
			w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool {
				return from != dies.LocalAddr().(*net.UDPAddr).AddrPort()
			})
			errs = append(errs, <-done, <-done)
			require.InDelta(t, patience, time.Since(last), float64(roundTrip))
			for _, err := range errs {
				var lost *kcp.PeerLostError
				require.ErrorAs(t, err, &lost)
				require.False(t, lost.Idle)
				require.InDelta(t, patience, lost.Silence, float64(time.Millisecond))
			}
			require.NoError(t, stays.Close()) // it has been said
		})
	}
}

// With a full backlog Dial gets no answer, and is let in when there is room.
func TestDialFullBacklog(t *testing.T) {
	inWorld(t, 23, clean, func(t *testing.T, w *world) {
		l := w.listen(&kcp.Config{Backlog: 2})
		e, _ := w.endpoint("10.0.0.2:0", &kcp.Config{DialTimeout: 4 * time.Second})
		for range 2 {
			w.dial(e)
		}
		time.Sleep(time.Second)
		start := time.Now()
		_, err := e.Dial(context.Background(), l.Addr())
		require.ErrorAs(t, err, new(*kcp.NoAnswerError))
		require.Equal(t, 4*time.Second, time.Since(start))
		require.Positive(t, l.Stats().DropBacklog)
		require.Equal(t, 2, l.Stats().Sessions)

		time.AfterFunc(500*time.Millisecond, func() {
			_, err := l.AcceptKCP(context.Background())
			if err != nil {
				t.Error(err)
			}
		})
		start = time.Now()
		w.dial(e)
		require.Equal(t, 600*time.Millisecond+roundTrip, time.Since(start)) // the third hello
	})
}

// A closed session neither takes packets that are not its own nor comes back
// to life, whatever stragglers arrive: from when it was open, or repeated.
func TestStragglers(t *testing.T) {
	inWorld(t, 22, clean, func(t *testing.T, w *world) {
		var packets [][]byte
		var from netip.AddrPort
		w.net.SetFilter(func(f, _ netip.AddrPort, p []byte) bool {
			if f.Addr() == netip.MustParseAddr("10.0.0.2") {
				from = f
				packets = append(packets, append([]byte(nil), p...))
			}
			return true
		})
		a, b, l := w.pair(nil, nil)
		want := content(22, 100000)
		send(t, a, want)
		receive(t, b, want)
		require.NoError(t, b.Close())
		_, err := a.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		require.NoError(t, a.Close())
		time.Sleep(30 * time.Second)
		require.Zero(t, l.Stats().Sessions)
		n := len(packets)
		for _, p := range packets[:n] {
			w.net.Inject(from, netip.MustParseAddrPort(serverAddr), p)
		}
		synctest.Wait()
		require.Zero(t, l.Stats().Sessions)
		require.Zero(t, l.Stats().Backlog)
		require.GreaterOrEqual(t, l.Stats().DropEnded, uint64(n))
	})
}

// The first segment of a session travels in pieces. It is not dropped if it
// overtakes CONFIRM.
func TestDataBeforeConfirm(t *testing.T) {
	for _, n := range []int{1, 1376, 3000} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
				data, signals := divide(p)
				if to.String() != serverAddr || !slices.ContainsFunc(signalsOf(p), func(s signal) bool { return s.code == sigConfirm }) {
					return true
				}
				if len(data) > 0 {
					w.net.Inject(from, to, data)
				}
				time.AfterFunc(clean.Delay+time.Millisecond, func() { w.net.Inject(from, to, signals) })
				return false
			})
			l := w.listen(nil)
			e, _ := w.endpoint("10.0.0.2:0", nil)
			a := w.dial(e)
			want := content(1, n)
			wrote := time.Now()
			_, err := a.Write(want)
			require.NoError(t, err)
			b := accepted(t, l)
			receive(t, b, want)
			require.Less(t, time.Since(wrote), 2*clean.Delay, "%d bytes", n)
			require.Zero(t, a.Stats().TimeoutRetransmits)
		})
	}
}

// divide returns the segments of a packet that carry data, and the others.
func divide(p []byte) (data, others []byte) {
	for len(p) >= headerSize {
		h := decodeHeader(p)
		n := headerSize + int(h.len)
		if h.cmd == cmdPush || h.cmd == cmdPiece {
			data = append(data, p[:n]...)
		} else {
			others = append(others, p[:n]...)
		}
		p = p[n:]
	}
	return data, others
}

// A peer that dials without signals is sent none, unless keep-alive asks it for a sign
// of life: nothing that the reference does not send. So peers that fail at signals can
// dial.
func TestAcceptedLegacyPeerIsSentNoSignals(t *testing.T) {
	for _, keepAlive := range []time.Duration{-1, 5 * time.Second} {
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			l := w.listen(&kcp.Config{KeepAlive: keepAlive})
			pc, err := w.net.Listen("10.0.0.2:5000")
			require.NoError(t, err)
			defer pc.Close()
			signals, answer := 0, []byte(nil)
			done := make(chan struct{})
			go func() {
				defer close(done)
				buf := make([]byte, 2000)
				for {
					n, _, err := pc.ReadFrom(buf)
					if err != nil {
						return
					}
					for p := buf[:n]; len(p) >= headerSize; {
						size := int(binary.LittleEndian.Uint32(p[20:]))
						switch cmd, frg := p[4], p[5]; cmd {
						case cmdPush:
							answer = append(answer, p[headerSize:headerSize+size]...)
							sn, ts := binary.LittleEndian.Uint32(p[12:]), binary.LittleEndian.Uint32(p[8:])
							_, _ = pc.WriteTo(packetOf(7, ack(sn, ts, 0)), net.UDPAddrFromAddrPort(acceptorAddr))
						case cmdWask, cmdWins:
							if frg != 0 {
								signals++
							}
						default:
							require.EqualValues(t, cmdAck, cmd)
						}
						p = p[headerSize+size:]
					}
				}
			}()
			_, err = pc.WriteTo(packetOf(7, push(0, 0, "question")), net.UDPAddrFromAddrPort(acceptorAddr))
			require.NoError(t, err)
			c := accepted(t, l)
			w.hear(c, "question")
			w.say(c, "the answer")
			time.Sleep(time.Minute)
			if keepAlive < 0 {
				require.NoError(t, c.Close())
				time.Sleep(time.Minute)
			}
			require.NoError(t, pc.Close())
			<-done
			require.Equal(t, "the answer", string(answer))
			require.Equal(t, keepAlive > 0, signals > 0, "%d signals", signals)
		})
	}
}
