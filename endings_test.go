package kcp

import (
	"context"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Endings in which one side knows less of the other than it believes.

// mortal is the configuration of sessions whose peers are soon found out to be
// gone, and allAtAnEnd the time after which nothing of such a session may be left.
func mortal() *Config {
	return &Config{KeepAlive: 2 * time.Second, PeerTimeout: 3 * time.Second, Linger: time.Second}
}

func allAtAnEnd(c *Config) time.Duration {
	return c.KeepAlive*3/2 + c.PeerTimeout + c.Linger + time.Second // and time on the way
}

// The server is restarted before it had the first data of a session. That data
// opens a session there, which is not the one that the client believes in: both
// ends hear of it, whatever the client does next.
func TestRestartBeforeTheFirstData(t *testing.T) {
	for _, next := range []string{"reads", "half-closes", "closes"} {
		for _, confirmed := range []bool{true, false} {
			inWorld(t, 1, clean, func(w *world) {
				cfg := mortal()
				pc, err := w.net.Listen(serverAddr)
				require.NoError(t, err)
				old, err := NewEndpoint(pc, cfg)
				require.NoError(t, err)
				_, err = old.Listen()
				require.NoError(t, err)
				e, _ := w.endpoint("10.0.0.2:5000", cfg)
				a := w.dial(e)
				if confirmed {
					time.Sleep(time.Second)
				}
				require.NoError(t, pc.Close())
				_, err = a.Write(content(1, 5000))
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
					require.ErrorIs(t, err, ErrReset)
				case "closes":
					if err := a.Close(); err != nil { // it may have been told by then
						require.ErrorIs(t, err, ErrReset)
					}
				}
				require.ErrorAs(t, <-ended, new(*PeerLostError))
				require.LessOrEqual(t, time.Since(start), allAtAnEnd(cfg))
				require.Zero(t, l.Stats().Sessions)
				require.Zero(t, e.Stats().Sessions)
			})
		}
	}
}

// Signals with forged tokens end no session of a peer that knows no signals:
// what answers them is believed by nobody who has not asked.
func TestForgedTokensEndNothing(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		cfg := mortal()
		l := w.listen(cfg)
		peer, err := w.net.Listen("10.0.0.2:5000")
		require.NoError(t, err)
		defer peer.Close()
		k := New(77, func(packet []byte) { _, _ = peer.WriteTo(packet, udpAddr(serverAddr)) })
		k.Update(1)
		_, err = k.Send([]byte("hello"))
		require.NoError(t, err)
		k.Flush()
		go func() { // a peer without signals, which goes on to answer
			buf, start := make([]byte, 2000), time.Now()
			for {
				n, _, err := peer.ReadFrom(buf)
				if err != nil {
					return
				}
				k.SetClock(uint32(time.Since(start).Milliseconds()))
				_ = k.Input(buf[:n])
				k.Flush()
			}
		}()
		b, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		receive(t, b, []byte("hello"))
		for _, s := range []signal{{sigConfirm, 1, 2}, {sigFin, 1, 2}, {sigClose, 1, 2}, {sigPing, 1, 2}} {
			packet := make([]byte, headerSize)
			s.encode(header{conv: 77, wnd: 128}, packet)
			w.net.Inject(netip.MustParseAddrPort("10.0.0.2:5000"), netip.MustParseAddrPort(serverAddr), packet)
		}
		time.Sleep(time.Minute)
		require.Equal(t, 1, l.Stats().Sessions)
		_, err = b.Write([]byte("still there"))
		require.NoError(t, err)
	})
}

// A peer that is never heard of again, after whichever of its first packets, is
// gone for the server too when its time is over; without keep-alives, as long as
// it has not answered the server.
func TestPeerGoneAfterItsFirstPackets(t *testing.T) {
	for _, validation := range []AddressValidation{ValidateUnderPressure, ValidateAlways} {
		for _, keepAlive := range []time.Duration{2 * time.Second, -1} {
			for packets := 1; packets <= 3; packets++ {
				if keepAlive < 0 && packets >= 2+int(validation) {
					continue // the handshake was complete
				}
				inWorld(t, 2, clean, func(w *world) {
					cfg := mortal()
					cfg.AddressValidation, cfg.KeepAlive = validation, keepAlive
					l := w.listen(cfg)
					e, _ := w.endpoint("10.0.0.2:5000", &Config{DialTimeout: -1})
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
	inWorld(t, 2, clean, func(w *world) { // and one that knows no signals
		cfg := mortal()
		l := w.listen(cfg)
		w.net.Inject(netip.MustParseAddrPort("10.0.0.2:5000"), netip.MustParseAddrPort(serverAddr), push(0, 0, "x"))
		b, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		receive(t, b, []byte("x"))
		_, err = b.Read(make([]byte, 1))
		require.ErrorAs(t, err, new(*PeerLostError))
		require.LessOrEqual(t, w.net.Elapsed(), allAtAnEnd(cfg))
	})
}
