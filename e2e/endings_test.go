package e2e

import (
	"bytes"
	"io"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// Endings in which one side knows less of the other than it believes.

// mortal is the configuration of sessions whose peers are soon found out to be
// gone, and allAtAnEnd the time after which nothing of such a session may be left.
func mortal() *kcp.Config {
	return &kcp.Config{KeepAlive: 2 * time.Second, PeerTimeout: 3 * time.Second, Linger: time.Second}
}

func allAtAnEnd(c *kcp.Config) time.Duration {
	return c.KeepAlive*3/2 + c.PeerTimeout + c.Linger + time.Second // and time on the way
}

// Signals with the token of another session are answered with RESET, even if a
// session stands in its place: the first data of a client may have opened one at
// a server that was restarted. So both ends hear of it, whatever the client does.
func TestRestartBeforeTheFirstData(t *testing.T) {
	for _, next := range []string{"reads", "half-closes", "closes"} {
		for _, confirmed := range []bool{true, false} {
			inWorld(t, 1, clean, func(t *testing.T, w *world) {
				cfg := mortal()
				_, pc := w.server(cfg)
				w.hideAbilities()
				a := w.dial(w.client(cfg))
				if confirmed {
					time.Sleep(time.Second)
				}
				require.NoError(t, pc.Close())
				w.say(a, string(content(1, 5000)))
				l := w.listen(cfg)
				b := accepted(t, l)
				receive(t, b, content(1, 5000))

				start := time.Now()
				ended := make(chan error, 1)
				go func() {
					_, err := io.Copy(io.Discard, b)
					ended <- err
				}()
				switch next {
				case "half-closes":
					require.NoError(t, a.CloseWrite())
					fallthrough
				case "reads":
					require.ErrorIs(t, end(a), kcp.ErrReset)
				case "closes":
					if err := a.Close(); err != nil { // it may have been told by then
						require.ErrorIs(t, err, kcp.ErrReset)
					}
				}
				isLost(t, <-ended)
				require.LessOrEqual(t, time.Since(start), allAtAnEnd(cfg))
				require.Zero(t, l.Endpoint().Stats().Sessions)
				require.Zero(t, a.Endpoint().Stats().Sessions)
			})
		}
	}
}

// hideAbilities has the server's peers see none of its abilities, as those of an
// earlier version.
func (w *world) hideAbilities() {
	w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
		at := 0
		for h := range headersOf(p) {
			if s, ok := h.signal(); from == acceptorAddr && ok && s.code == sigInfo && s.ts != 0 {
				cut := bytes.Clone(p)
				clear(cut[at+8 : at+12])
				w.net.Inject(from, to, cut)
				return false
			}
			at += headerSize + int(h.len)
		}
		return true
	})
}

// The first data of a session that has been welcomed opens no other one where the
// peer has been restarted, and nothing of what another process says is read.
func TestFirstDataOpensNoOtherSession(t *testing.T) {
	for _, size := range []int{1, 5000} {
		for seed := range fewer(20) {
			inWorld(t, seed, lossy, func(t *testing.T, w *world) {
				cfg := mortal()
				_, pc := w.server(cfg)
				a := w.dial(w.client(cfg))
				for a.Peer().Version == 0 { // it has been welcomed
					time.Sleep(10 * time.Millisecond)
				}
				require.NoError(t, pc.Close())
				w.say(a, string(content(1, size)))
				l := w.listen(cfg)
				require.ErrorIs(t, end(a), kcp.ErrReset)
				require.Zero(t, l.Endpoint().Stats().Sessions)
				require.Zero(t, l.Endpoint().Stats().Backlog)
			})
		}
	}
}

// A peer that is never heard of again, after whichever of its first packets, is
// gone for the server too when its time is over; without keep-alives, as long as
// it has not answered the server.
func TestPeerGoneAfterItsFirstPackets(t *testing.T) {
	for _, validation := range []kcp.AddressValidation{kcp.ValidateUnderPressure, kcp.ValidateAlways} {
		for _, keepAlive := range []time.Duration{2 * time.Second, -1} {
			for packets := 1; packets <= 3; packets++ {
				if keepAlive < 0 && packets >= 2+int(validation) {
					continue // the handshake was complete
				}
				inWorld(t, 2, clean, func(t *testing.T, w *world) {
					cfg := mortal()
					cfg.AddressValidation, cfg.KeepAlive = validation, keepAlive
					l := w.listen(cfg)
					sent := 0
					w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool {
						if from == acceptorAddr {
							return sent < packets
						}
						sent++
						return sent <= packets
					})
					a := w.dial(w.client(&kcp.Config{DialTimeout: -1}))
					time.Sleep(max(cfg.KeepAlive*3/2, handshakeTime) + cfg.PeerTimeout + time.Second)
					require.Zero(t, l.Endpoint().Stats().Sessions, "%v, %d packets", validation, packets)
					require.NoError(t, a.Abort(0, ""))
				})
			}
		}
	}
	inWorld(t, 2, clean, func(t *testing.T, w *world) { // and one that knows no signals
		cfg := mortal()
		l := w.listen(cfg)
		w.net.Inject(netip.MustParseAddrPort("10.0.0.2:5000"), acceptorAddr, push(0, 0, "x"))
		b := accepted(t, l)
		w.hear(b, "x")
		isLost(t, end(b))
		require.LessOrEqual(t, w.net.Elapsed(), allAtAnEnd(cfg))
	})
}

// A peer that takes one segment at a time, just before patience ends, holds Close
// no longer than MaxLinger, and the background neither. A slow path gets its time.
func TestCloseHasABound(t *testing.T) {
	long(t)
	for _, linger := range []time.Duration{5 * time.Second, -1} {
		inWorld(t, 12, clean, func(t *testing.T, w *world) {
			var conv uint32
			w.net.SetFilter(func(_, _ netip.AddrPort, p []byte) bool { conv = decodeHeader(p).conv; return true })
			e, pc := w.endpoint("10.0.0.2:5000", &kcp.Config{Linger: linger, DialTimeout: -1})
			a := w.dial(e)
			w.say(a, string(content(1, 2<<20)))
			for una := range uint32(30) { // from a peer without signals
				w.after(time.Duration(una)*4900*time.Millisecond+100*time.Millisecond, func() {
					h := header{conv: conv, cmd: cmdWins, wnd: 128, una: una}
					w.net.Inject(acceptorAddr, pc.AddrPort(), h.append(nil))
				})
			}
			time.Sleep(time.Second)
			start := time.Now()
			err := a.Close()
			if linger > 0 {
				require.ErrorIs(t, err, kcp.ErrNotDelivered)
				require.Equal(t, 128*time.Second, time.Since(start))
			} else {
				require.NoError(t, err)
				time.Sleep(129 * time.Second)
			}
			require.Zero(t, e.Stats().Sessions)
		})
	}
	link := netsim.LinkConfig{Delay: 10 * time.Millisecond, Rate: 1e6 / 8, Queue: 1 << 16}
	inWorld(t, 12, link, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		go func() {
			_, _ = io.Copy(io.Discard, b)
			_ = b.Close()
		}()
		w.say(a, string(content(1, 4<<20-64*4000)))
		require.NoError(t, a.Close())
	})
}

// A path that swallows packets below Config.MTU costs a short answer a round trip,
// and at most what an outage takes anyway, and never the answer.
func TestShortAnswerOnAPathBelowTheMTU(t *testing.T) {
	long(t)
	rounds := some(10, 3)
	for _, outage := range []time.Duration{0, 2400 * time.Millisecond} {
		for _, loss := range []float64{0, 0.05, 0.15} {
			for _, size := range []int{2000, 17000, 20000} {
				var took [2][]time.Duration // without the clamp, with it
				for i := range rounds * 2 {
					clamp := int(i % 2)
					link := netsim.LinkConfig{Delay: 10 * time.Millisecond, Loss: loss}
					inWorld(t, i/2, link, func(t *testing.T, w *world) {
						link.MTU = 1300 * clamp
						w.net.SetLink("10.0.0.1", "10.0.0.2", link)
						took[clamp] = append(took[clamp], w.ask(size, outage))
					})
				}
				if loss == 0 {
					require.LessOrEqual(t, slices.Max(took[1]), slices.Max(took[0])+500*time.Millisecond,
						"outage %v, %d bytes: %v", outage, size, took)
				}
			}
		}
	}
}

// ask has a server answer a client with size bytes and close at once, and returns
// how long that takes. An outage comes 60 ms after Dial.
func (w *world) ask(size int, outage time.Duration) time.Duration {
	l := w.listen(nil)
	closed := make(chan error, 1)
	go serve(l, func(b *kcp.Conn) {
		w.hear(b, "?")
		w.say(b, string(content(1, size)))
		closed <- b.Close()
	})
	a := w.dial(w.client(nil))
	begin := time.Now()
	if outage > 0 {
		w.after(60*time.Millisecond, w.cut)
		w.after(60*time.Millisecond+outage, w.heal)
		time.Sleep(50 * time.Millisecond)
	}
	w.say(a, "?")
	receive(w.t, a, content(1, size))
	took := time.Since(begin)
	require.Equal(w.t, io.EOF, end(a))
	require.NoError(w.t, a.Close())
	require.NoError(w.t, <-closed)
	return took
}

// While large packets are suspect, and the peer is there, Linger does not run out.
// After an outage the search goes on at once.
func TestLingerWaitsForTheSearch(t *testing.T) {
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, &kcp.Config{Linger: 300 * time.Millisecond})
		w.move(b, a, 1, 1<<20) // large packets arrive
		time.Sleep(time.Second)
		w.net.SetLink("10.0.0.1", "10.0.0.2", netsim.LinkConfig{Delay: 10 * time.Millisecond, MTU: 1300})
		w.cut()
		var sent uint64
		w.after(500*time.Millisecond, func() {
			w.heal()
			sent = b.Stats().PathMTU.Sent
		})
		w.say(b, string(content(2, 17000)))
		closed := closing(b)
		receive(t, a, content(2, 17000))
		require.NoError(t, <-closed)
		require.Greater(t, b.Stats().PathMTU.Sent, sent)
	})
}

// What Close could not tell the peer in its time is told in the background, so
// the peer reads io.EOF and no error.
func TestCloseTellsThePeerLater(t *testing.T) {
	inWorld(t, 6, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		time.Sleep(time.Second)
		w.net.Cut("10.0.0.1", "10.0.0.2")
		require.NoError(t, a.Close())
		w.net.Heal("10.0.0.1", "10.0.0.2")
		_, err := b.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		require.NoError(t, b.Close())
		time.Sleep(time.Minute)
		require.Zero(t, a.Endpoint().Stats().Sessions)
		require.Zero(t, b.Endpoint().Stats().Sessions)
	})
}

// CloseWrite says of a peer whether it can be told, however early it is asked; a
// peer that cannot be is written to as before.
func TestCloseWriteOfAPeerNotYetKnown(t *testing.T) {
	for _, dialTimeout := range []time.Duration{0, -1} {
		for _, pause := range []time.Duration{0, 50 * time.Millisecond, time.Second} {
			inWorld(t, 9, clean, func(t *testing.T, w *world) {
				newLegacyPeer(w, serverAddr, nil, false)
				e, _ := w.endpoint("10.0.0.2:5000", &kcp.Config{DialTimeout: dialTimeout})
				a := w.dial(e)
				time.Sleep(pause)
				require.ErrorIs(t, a.CloseWrite(), kcp.ErrLegacyPeer)
				require.LessOrEqual(t, w.net.Elapsed(), max(pause, 3*roundTrip)+opening.FirstHello+legacyThinks)
				writeAll(t, a, []byte("still"))
				require.NoError(t, a.Close())
			})
			inWorld(t, 9, clean, func(t *testing.T, w *world) {
				l := w.listen(nil)
				e, _ := w.endpoint("10.0.0.2:5000", &kcp.Config{DialTimeout: dialTimeout})
				a := w.dial(e)
				time.Sleep(pause)
				require.NoError(t, a.CloseWrite())
				b := accepted(t, l)
				_, err := b.Read(make([]byte, 1))
				require.Equal(t, io.EOF, err)
			})
		}
	}
	inWorld(t, 9, clean, func(t *testing.T, w *world) { // accepted
		l := w.listen(nil)
		newLegacyPeer(w, "10.0.0.2:5000", l.Addr(), false).write([]byte("hello"))
		b := accepted(t, l)
		require.ErrorIs(t, b.CloseWrite(), kcp.ErrLegacyPeer)
		require.LessOrEqual(t, w.net.Elapsed(), session.HelloAfterData+roundTrip+legacyThinks)
		receive(t, b, []byte("hello"))
	})
	inWorld(t, 9, clean, func(t *testing.T, w *world) { // nobody there
		e, _ := w.endpoint("10.0.0.2:5000", &kcp.Config{DialTimeout: -1})
		a := w.dial(e)
		require.NoError(t, a.SetWriteDeadline(time.Now().Add(time.Second)))
		requireTimeout(t, a.CloseWrite())
		require.Equal(t, time.Second, w.net.Elapsed())
	})
}

// A short session with a peer that knows no signals does not wait for what it
// will not say.
func TestCloseOfAShortLegacySession(t *testing.T) {
	inWorld(t, 9, clean, func(t *testing.T, w *world) {
		newLegacyPeer(w, serverAddr, nil, false)
		e, _ := w.endpoint("10.0.0.2:5000", nil)
		a := w.dial(e)
		writeAll(t, a, []byte("x"))
		require.NoError(t, a.Close())
		require.LessOrEqual(t, w.net.Elapsed(), 2*roundTrip+legacyThinks)
	})
}

// A session over which nothing new goes is idle, whatever its peer sends.
func TestIdleMeansNoNewData(t *testing.T) {
	empty := func(sn uint32) []byte { return push(sn, 0, "") }
	for name, next := range map[string]func(i uint32) []byte{
		"old":              func(uint32) []byte { return empty(0) },
		"empty":            func(i uint32) []byte { return empty(1 + i) },
		"beyond":           func(uint32) []byte { return push(1<<30, 0, "x") },
		"early":            func(i uint32) []byte { return push(100+i, 0, "x") },
		"empty datagram":   func(uint32) []byte { return []byte{0, 0, 0, 0, byte(fec.TypeOOB), fec.TypeOOB >> 8, 6, 0, 7, 0, 0, 0} },
		"acknowledgements": func(i uint32) []byte { return ack(i, 0, 0) },
	} {
		inWorld(t, 15, clean, func(t *testing.T, w *world) {
			l := w.listen(&kcp.Config{IdleTimeout: time.Minute})
			from, to := netip.MustParseAddrPort("10.0.0.2:5000"), netip.MustParseAddrPort(serverAddr)
			w.net.Inject(from, to, push(0, 0, "x"))
			b := accepted(t, l)
			receive(t, b, []byte("x"))
			for i := uint32(0); i < 20; i++ {
				w.net.At(time.Duration(10+20*i)*time.Second, func() { w.net.Inject(from, to, next(i)) })
			}
			var lost *kcp.PeerLostError
			_, err := b.Read(make([]byte, 1))
			require.ErrorAs(t, err, &lost, name)
			require.True(t, lost.Idle, name)
			require.InDelta(t, time.Minute, w.net.Elapsed(), float64(time.Second), name)
		})
	}
	inWorld(t, 15, clean, func(t *testing.T, w *world) { // what is new does count, in each direction
		cfg := &kcp.Config{IdleTimeout: time.Minute}
		a, b, _ := w.pair(cfg, cfg)
		for _, send := range []func(){
			func() { _, _ = a.Write([]byte("x")) }, func() { _, _ = b.Write([]byte("x")) },
			func() { _ = a.SendDatagram([]byte("x")) }, func() { _ = b.SendDatagram([]byte("x")) },
		} {
			time.Sleep(50 * time.Second)
			send()
		}
		time.Sleep(50 * time.Second)
		for _, c := range []*kcp.Conn{a, b} {
			require.Equal(t, 1, c.Endpoint().Stats().Sessions)
		}
	})
}

// A peer that takes nothing of what waits for it has its time, however often it
// says that it is there; one that reads again before has more.
func TestStalledPeerHasItsTime(t *testing.T) {
	t.Parallel()
	long(t)
	inWorld(t, 15, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, &kcp.Config{ReceiveWindow: 128})
		wrote := make(chan error, 1)
		go func() {
			_, err := a.Write(make([]byte, 16<<20))
			wrote <- err
		}()
		time.Sleep(20 * time.Minute)
		_, err := b.Read(make([]byte, 1<<20))
		require.NoError(t, err)
		for range 100 {
			_, err := b.Read(make([]byte, 1<<20))
			require.NoError(t, err)
		}
		start := time.Now()
		var lost *kcp.PeerLostError
		require.ErrorAs(t, <-wrote, &lost)
		require.GreaterOrEqual(t, lost.Stalled, 30*time.Minute)
		require.InDelta(t, 30*time.Minute, time.Since(start), float64(10*time.Second))
	})
}
