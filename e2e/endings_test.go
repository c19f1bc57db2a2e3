package e2e

import (
	"bytes"
	"context"
	"io"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/arqnet/kcp"
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
				e, _ := w.endpoint("10.0.0.2:5000", cfg)
				a := w.dial(e)
				if confirmed {
					time.Sleep(time.Second)
				}
				require.NoError(t, pc.Close())
				_, err := a.Write(content(1, 5000))
				require.NoError(t, err)
				l := w.listen(cfg)
				b, err := l.AcceptKCP(context.Background())
				require.NoError(t, err)
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
					_, err = a.Read(make([]byte, 1))
					require.ErrorIs(t, err, kcp.ErrReset)
				case "closes":
					if err := a.Close(); err != nil { // it may have been told by then
						require.ErrorIs(t, err, kcp.ErrReset)
					}
				}
				require.ErrorAs(t, <-ended, new(*kcp.PeerLostError))
				require.LessOrEqual(t, time.Since(start), allAtAnEnd(cfg))
				require.Zero(t, l.Stats().Sessions)
				require.Zero(t, e.Stats().Sessions)
			})
		}
	}
}

// hideAbilities has the server's peers see none of its abilities, as those of an
// earlier version.
func (w *world) hideAbilities() {
	w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
		for at := 0; from.Port() == 4000 && at+headerSize <= len(p); {
			h := decodeHeader(p[at:])
			if s, ok := h.signal(); ok && s.code == sigInfo && s.ts != 0 {
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
			link := lossy
			inWorld(t, seed, link, func(t *testing.T, w *world) {
				cfg := mortal()
				_, pc := w.server(cfg)
				e, _ := w.endpoint("10.0.0.2:5000", cfg)
				a := w.dial(e)
				for a.Peer().Version == 0 { // it has been welcomed
					time.Sleep(10 * time.Millisecond)
				}
				require.NoError(t, pc.Close())
				_, err := a.Write(content(1, size))
				require.NoError(t, err)
				l := w.listen(cfg)
				_, err = a.Read(make([]byte, 1))
				require.ErrorIs(t, err, kcp.ErrReset)
				require.Zero(t, l.Stats().Sessions)
				require.Zero(t, l.Stats().Backlog)
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
					e, _ := w.endpoint("10.0.0.2:5000", &kcp.Config{DialTimeout: -1})
					sent := 0
					w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool {
						if from.String() == serverAddr {
							return sent < packets
						}
						sent++
						return sent <= packets
					})
					a := w.dial(e)
					limit := max(cfg.KeepAlive*3/2, handshakeTime) + cfg.PeerTimeout + time.Second
					time.Sleep(limit)
					require.Zero(t, l.Stats().Sessions, "%v, %d packets", validation, packets)
					require.NoError(t, a.Abort())
				})
			}
		}
	}
	inWorld(t, 2, clean, func(t *testing.T, w *world) { // and one that knows no signals
		cfg := mortal()
		l := w.listen(cfg)
		w.net.Inject(netip.MustParseAddrPort("10.0.0.2:5000"), netip.MustParseAddrPort(serverAddr), push(0, 0, "x"))
		b, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		receive(t, b, []byte("x"))
		_, err = b.Read(make([]byte, 1))
		require.ErrorAs(t, err, new(*kcp.PeerLostError))
		require.LessOrEqual(t, w.net.Elapsed(), allAtAnEnd(cfg))
	})
}

// What shows that all was delivered counts, however the signals have crossed: the
// answer to FIN as well as that to the CLOSE that has replaced it. So Close is no
// error if the peer is gone as soon as its calls have returned.
func TestCloseAfterCloseWriteOfAPeerThatLeaves(t *testing.T) {
	for seed := range fewer(20) {
		link := netsim.LinkConfig{Delay: 10 * time.Millisecond, Jitter: time.Duration(seed) * time.Millisecond}
		inWorld(t, seed, link, func(t *testing.T, w *world) {
			l := w.listen(nil)
			e, pc := w.endpoint("10.0.0.2:5000", nil)
			a := w.dial(e)
			b, err := l.AcceptKCP(context.Background())
			require.NoError(t, err)
			left := make(chan error, 1)
			go func() {
				err := a.CloseWrite()
				if err == nil {
					_, err = io.Copy(io.Discard, a)
				}
				if err == nil {
					err = a.Close()
				}
				_, _ = e.Close(), pc.Close()
				left <- err
			}()
			time.Sleep(time.Second)
			start := time.Now()
			_, err = b.Write(content(seed, 100))
			require.NoError(t, err)
			require.NoError(t, b.CloseWrite())
			time.Sleep(time.Duration(seed) * time.Millisecond)
			require.NoError(t, b.Close())
			require.Less(t, time.Since(start), time.Second)
			require.NoError(t, <-left)
		})
	}
}

// A peer that takes one segment at a time, just before patience ends, holds Close
// no longer than MaxLinger, and the background neither. A slow path gets its time.
func TestCloseHasABound(t *testing.T) {
	long(t)
	for _, linger := range []time.Duration{5 * time.Second, -1} {
		inWorld(t, 12, clean, func(t *testing.T, w *world) {
			peer, err := w.net.Listen(serverAddr)
			require.NoError(t, err)
			defer peer.Close()
			e, _ := w.endpoint("10.0.0.2:5000", &kcp.Config{Linger: linger})
			done := make(chan bool)
			defer func() { <-done }()
			go func() { // a peer without signals
				defer close(done)
				buf := make([]byte, 2000)
				_, _, err := peer.ReadFrom(buf)
				conv := decodeHeader(buf).conv
				for una := seq(0); err == nil && una < 30; una++ {
					h, packet := header{conv: conv, cmd: cmdWins, wnd: 128, una: una}, make([]byte, headerSize)
					h.encode(packet)
					_, err = peer.WriteTo(packet, udpAddr("10.0.0.2:5000"))
					time.Sleep(4900 * time.Millisecond)
				}
			}()
			a := w.dial(e)
			_, err = a.Write(content(1, 2<<20))
			require.NoError(t, err)
			start := time.Now()
			err = a.Close()
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
		_, err := a.Write(content(1, 4<<20-64*4000))
		require.NoError(t, err)
		require.NoError(t, a.Close())
	})
}

// The time of Dial is DialTimeout, whatever the other limits are.
func TestDialTimeoutIsThatOfDial(t *testing.T) {
	for _, cfg := range []kcp.Config{
		{PeerTimeout: 3 * time.Second}, {PeerTimeout: 6 * time.Second}, {IdleTimeout: time.Second}, {DeadLink: 1},
	} {
		inWorld(t, 9, clean, func(t *testing.T, w *world) {
			cfg.DialTimeout = 6 * time.Second
			e, _ := w.endpoint("10.0.0.2:0", &cfg)
			_, err := e.Dial(context.Background(), udpAddr(serverAddr))
			require.ErrorAs(t, err, new(*kcp.NoAnswerError))
			requireTimeout(t, err)
			require.Equal(t, 6*time.Second, w.net.Elapsed())
		})
	}
	inWorld(t, 9, clean, func(t *testing.T, w *world) { // and an outage at the beginning is survived
		w.listen(nil)
		w.net.Cut("10.0.0.1", "10.0.0.2")
		w.net.At(3050*time.Millisecond, func() { w.net.Heal("10.0.0.1", "10.0.0.2") })
		e, _ := w.endpoint("10.0.0.2:0", nil)
		w.dial(e)
		require.Less(t, w.net.Elapsed(), 3600*time.Millisecond)
	})
}

// A path that swallows packets below Config.MTU costs a short answer a round trip,
// and at most what an outage takes anyway, and never the answer.
func TestShortAnswerOnAPathBelowTheMTU(t *testing.T) {
	long(t)
	const rounds = 10
	for _, outage := range []time.Duration{0, 2400 * time.Millisecond} {
		for _, loss := range []float64{0, 0.05, 0.15} {
			for _, size := range []int{2000, 17000, 20000} {
				var took [2][]time.Duration // without the clamp, with it
				for i := range rounds * len(took) {
					clamp := i % len(took)
					inWorld(t, uint64(i/2), netsim.LinkConfig{Delay: 10 * time.Millisecond, Loss: loss}, func(t *testing.T, w *world) {
						down := netsim.LinkConfig{Delay: 10 * time.Millisecond, Loss: loss, MTU: 1300 * clamp}
						w.net.SetLink("10.0.0.1", "10.0.0.2", down)
						took[clamp] = append(took[clamp], w.ask(size, outage))
					})
				}
				slices.Sort(took[0])
				slices.Sort(took[1])
				t.Logf("outage %v, loss %v %%, %d bytes: %v, with the clamp %v; at most %v, %v", outage, 100*loss, size,
					took[0][rounds/2], took[1][rounds/2], took[0][rounds-1], took[1][rounds-1])
				if loss == 0 {
					require.LessOrEqual(t, took[1][rounds-1], took[0][rounds-1]+500*time.Millisecond)
				}
			}
		}
	}
}

// While large packets are suspect, and the peer is there, Linger does not run out.
// After an outage the search goes on at once.
func TestLingerWaitsForTheSearch(t *testing.T) {
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, &kcp.Config{Linger: 300 * time.Millisecond})
		send(t, b, content(1, 1<<20)) // large packets arrive
		receive(t, a, content(1, 1<<20))
		time.Sleep(time.Second)
		w.net.SetLink("10.0.0.1", "10.0.0.2", netsim.LinkConfig{Delay: 10 * time.Millisecond, MTU: 1300})
		w.net.Cut("10.0.0.1", "10.0.0.2")
		var sent uint64
		w.net.At(w.net.Elapsed()+500*time.Millisecond, func() {
			w.net.Heal("10.0.0.1", "10.0.0.2")
			sent = b.Stats().PathMTU.Sent
		})
		_, err := b.Write(content(2, 17000))
		require.NoError(t, err)
		closed := make(chan error, 1)
		go func() { closed <- b.Close() }()
		receive(t, a, content(2, 17000))
		require.NoError(t, <-closed)
		require.Greater(t, b.Stats().PathMTU.Sent, sent)
	})
}

// ask has a server answer a client with size bytes and close at once, and returns
// how long that takes. An outage comes 60 ms after Dial.
func (w *world) ask(size int, outage time.Duration) time.Duration {
	l := w.listen(nil)
	e, _ := w.endpoint("10.0.0.2:5000", nil)
	closed := make(chan error, 1)
	go func() {
		b, err := l.AcceptKCP(context.Background())
		if err == nil {
			_, err = b.Read(make([]byte, 10))
		}
		if err == nil {
			_, err = b.Write(content(1, size))
		}
		if err == nil {
			err = b.Close()
		}
		closed <- err
	}()
	a := w.dial(e)
	begin := time.Now()
	if outage > 0 {
		w.net.At(w.net.Elapsed()+60*time.Millisecond, func() { w.net.Cut("10.0.0.1", "10.0.0.2") })
		w.net.At(w.net.Elapsed()+60*time.Millisecond+outage, func() { w.net.Heal("10.0.0.1", "10.0.0.2") })
		time.Sleep(50 * time.Millisecond)
	}
	_, err := a.Write([]byte("?"))
	require.NoError(w.t, err)
	receive(w.t, a, content(1, size))
	took := time.Since(begin)
	_, err = a.Read(make([]byte, 1))
	require.Equal(w.t, io.EOF, err)
	require.NoError(w.t, a.Close())
	require.NoError(w.t, <-closed)
	return took
}
