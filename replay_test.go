package kcp

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
)

// onPath is somebody who sees and keeps all packets, and has no key.
type onPath struct {
	mu   sync.Mutex
	kept []keptPacket
}

type keptPacket struct {
	from, to netip.AddrPort
	data     []byte
}

func (w *world) watched() *onPath {
	o := new(onPath)
	w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.kept = append(o.kept, keptPacket{from, to, bytes.Clone(p)})
		return true
	})
	return o
}

// all returns what was kept, and ends the watch.
func (o *onPath) all(w *world) []keptPacket {
	w.net.SetFilter(nil)
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kept
}

var elsewhere = netip.MustParseAddrPort("10.0.0.66:6666")

// executes answers commands of 16 bytes in sessions of l, and counts them.
func executes(l *Listener, executed *atomic.Int32) {
	for {
		c, err := l.AcceptKCP(context.Background())
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			for command := make([]byte, 16); ; {
				if _, err := io.ReadFull(c, command); err != nil {
					return
				}
				executed.Add(1)
				_, _ = c.Write([]byte("done"))
			}
		}()
	}
}

// command has three commands executed over a session from e.
func (w *world) command(e *Endpoint) {
	c := w.dial(e)
	for range 3 {
		_, err := c.Write([]byte("transfer 100 EUR"))
		require.NoError(w.t, err)
		receive(w.t, c, []byte("done"))
	}
	require.NoError(w.t, c.Close())
}

// With a cipher that authenticates, or one that hides the content and LegacyRefuse,
// what was recorded of a session has nothing
// done once more: not by the same server, after however much else, nor by
// another one with the key, from whatever address it comes.
func TestRecordedSessionDoesNothing(t *testing.T) {
	ciphers := authenticCiphers(t)
	ciphers["Salsa20"] = hidingCiphers(t)["Salsa20"]
	for name, c := range ciphers {
		for _, f := range []FEC{{}, {Data: 2, Parity: 1}} {
			for _, wait := range []bool{true, false} {
				t.Run(name, func(t *testing.T) {
					inWorld(t, 2, clean, func(t *testing.T, w *world) {
						config := &Config{Cipher: c, FEC: f}
						if !crypt.Authenticated(c) {
							config.LegacyPeers = LegacyRefuse
						}
						var server, other atomic.Int32
						l := w.listen(config)
						go executes(l, &server)
						e, _ := w.endpoint("10.0.0.9:4000", config)
						l2, err := e.Listen()
						require.NoError(t, err)
						go executes(l2, &other)

						dialling := *config
						if !wait {
							dialling.DialTimeout = -1 // data follows the hello at once
						}
						client, _ := w.endpoint("10.0.0.2:5000", &dialling)
						path := w.watched()
						w.command(client)
						require.EqualValues(t, 3, server.Load())
						kept := path.all(w)
						for _, pause := range []time.Duration{0, 2 * session.TimeWaitTime} {
							time.Sleep(pause)
							l.ep.shared.Protection.Forget()
							for _, to := range []string{serverAddr, "10.0.0.9:4000"} {
								for _, from := range []netip.AddrPort{elsewhere, kept[0].from} {
									for _, skip := range []int{2, 1, 0} { // what HELLO opens would take the others' packets
										for _, p := range kept[skip:] {
											if p.from == kept[0].from {
												w.net.Inject(from, netip.MustParseAddrPort(to), p.data)
												time.Sleep(time.Millisecond)
											}
										}
									}
								}
							}
						}
						time.Sleep(time.Minute)
						require.EqualValues(t, 3, server.Load())
						require.Zero(t, other.Load())
						require.Zero(t, l.Endpoint().Stats().Sessions+l2.Endpoint().Stats().Sessions)
					})
				})
			}
		}
	}
}

// progress returns the number of the next packet that c numbers, and whether the
// packets of c, and of its peer, are numbered.
func progress(c *Conn) (next uint64, sends, heard bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.session.Inside().Protection().(interface {
		Progress() (next uint64, sends, heard bool)
	})
	if !ok {
		return 0, false, false
	}
	return n.Progress()
}

// A nonce never comes around: a session ends before.
func TestNumbersDoNotRepeat(t *testing.T) {
	inWorld(t, 11, clean, func(t *testing.T, w *world) {
		config := &Config{Cipher: testAEAD(t), KeepAlive: -1}
		a, b, _ := w.pair(config, config)
		time.Sleep(time.Second)
		for _, c := range []*Conn{a, b} {
			_, sends, _ := progress(c)
			require.True(t, sends)
		}
		a.session.Inside().Protection().(*protect.Numbered).Skip(1<<32-3, 0) // of 4 bytes, but for the last
		for range 2 {
			require.NoError(t, a.SendDatagram([]byte("numbered")))
		}
		_ = a.SendDatagram([]byte("one more"))
		_, err := a.Read(make([]byte, 1))
		require.ErrorIs(t, err, crypt.ErrKeyExhausted)
	})
}

// Once both ends number their packets, nothing that was sent before counts,
// whenever it comes again, whoever it was sent to: not data, datagrams or
// parity, and not as a sign of life.
func TestNothingCountsTwice(t *testing.T) {
	t.Parallel()
	ciphers := hidingCiphers(t)
	ciphers["GCM"], ciphers["GCM with FEC"] = testAEAD(t), testAEAD(t)
	for name, v := range ciphers {
		if repeated() && name != "GCM" && name != "CFB" {
			continue
		}
		f := FEC{Data: 3, Parity: 2}
		if name == "GCM" || name == "CFB" {
			f = FEC{}
		}
		inWorld(t, 12, clean, func(t *testing.T, w *world) {
			config := &Config{Cipher: v, FEC: f, PeerTimeout: 20 * time.Second, KeepAlive: 10 * time.Second}
			a, b, l := w.pair(config, config)
			path := w.watched()
			bothWays(t, a, b, content(1, 30000), content(2, 30000))
			for _, c := range []*Conn{a, b} {
				require.NoError(t, c.SendDatagram([]byte("once")))
			}
			time.Sleep(time.Second)
			for _, c := range []*Conn{a, b} {
				_, err := c.ReceiveDatagram(context.Background())
				require.NoError(t, err)
			}
			kept := path.all(w)
			before := []stats.Conn{a.Stats(), b.Stats()}
			w.net.SetFilter(func(_, _ netip.AddrPort, _ []byte) bool { return false }) // cut off
			for range 3 {
				l.ep.shared.Protection.Forget()
				a.ep.shared.Protection.Forget()
				for _, p := range kept {
					w.net.Inject(p.from, p.to, p.data)
					w.net.Inject(p.to, p.from, p.data) // and back
					time.Sleep(time.Millisecond)
				}
			}
			synctest.Wait()
			for i, c := range []*Conn{a, b} {
				s := c.Stats()
				require.Equal(t, before[i].PacketsReceived, s.PacketsReceived)
				require.Equal(t, before[i].Datagrams.Received, s.Datagrams.Received)
				require.Equal(t, before[i].FEC.ParityReceived, s.FEC.ParityReceived)
			}
			// Recorded packets go on, and the peer is found to be lost all the same.
			start := time.Now()
			for i := 0; b.Err() == nil && time.Since(start) < time.Minute; i++ {
				p := kept[i%len(kept)]
				w.net.Inject(p.from, p.to, p.data)
				time.Sleep(10 * time.Millisecond)
			}
			require.ErrorAs(t, b.Err(), new(*PeerLostError))
		})
	}
}

// hidden is a cipher that authenticates, and has no more methods.
type hidden struct{ c crypt.Cipher }

func (h hidden) Overhead() (head, tail int)    { return h.c.Overhead() }
func (h hidden) Seal(p []byte) error           { return h.c.Seal(p) }
func (h hidden) Open(p []byte) ([]byte, error) { return h.c.Open(p) }
func (h hidden) Authenticated() bool           { return true }

// Who has the key and knows the conversation, but not the session's tokens,
// neither takes the session over nor has anything read, from an address of his
// own; be packets numbered or not.
func TestKeyHolderDoesNotTakeOver(t *testing.T) {
	aead := testAEAD(t)
	for name, c := range map[string]crypt.Cipher{"numbered": aead, "not numbered": hidden{aead}} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 14, clean, func(t *testing.T, w *world) {
				config := &Config{Cipher: c}
				a, b, l := w.pair(config, config)
				time.Sleep(time.Second)
				thief, err := w.net.Listen(elsewhere.String())
				require.NoError(t, err)
				defer thief.Close()
				challenges := 0
				random := rand.New(rand.NewPCG(1, 1))
				w.net.SetFilter(func(_, to netip.AddrPort, p []byte) bool {
					if to == elsewhere {
						challenges++
						p, err := aead.Open(append([]byte(nil), p...))
						require.NoError(t, err)
						h := wire.DecodeHeader(p)
						if s, ok := h.Signal(); ok && s.Code == wire.Ping {
							answer := append(testenv.SegmentOf(s.Answer()), testenv.SegmentOf(wire.Signal{Code: wire.Token, SN: random.Uint32(), TS: random.Uint32()})...)
							w.net.Inject(elsewhere, netip.MustParseAddrPort(serverAddr), sealed(t, aead, packetOf(b.Conv(), answer)))
						}
					}
					return true
				})
				b.mu.Lock()
				next, una := uint32(b.session.Inside().Machine().Position().Received), uint32(b.session.Inside().Machine().Position().Sent)
				b.mu.Unlock()
				order := segment(wire.CmdPush, 0, 0, next, una, "order of the attacker")
				for range 20 {
					w.net.Inject(elsewhere, netip.MustParseAddrPort(serverAddr), sealed(t, aead, packetOf(b.Conv(), order)))
					time.Sleep(100 * time.Millisecond)
				}
				require.Equal(t, a.LocalAddr().String(), b.RemoteAddr().String())
				require.Zero(t, b.Stats().Moves)
				if name == "numbered" {
					require.Zero(t, challenges)
				}
				bothWays(t, a, b, []byte("of the owner"), []byte("to the owner"))
				require.Equal(t, 1, l.Endpoint().Stats().Sessions)
			})
		})
	}
}

// A peer moves although copies of its packets come from ever other addresses,
// and sessions of the same conversation id have come and gone.
func TestMoveAmongOtherAddresses(t *testing.T) {
	for name, c := range map[string]crypt.Cipher{"numbered": testAEAD(t), "not numbered": hidden{testAEAD(t)}, "keyed": hidingCiphers(t)["Salsa20"]} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 15, clean, func(t *testing.T, w *world) {
				config := &Config{Cipher: c}
				a, b, l, pc := w.movable(config)
				for port := range 2 { // of the same id
					other := admission.MakeKey(netip.AddrPortFrom(netip.MustParseAddr("10.0.0.7"), uint16(port+1)), nil, a.Conv())
					x, err := l.ep.openSession(other, &net.UDPAddr{IP: net.IPv4(10, 0, 0, 7), Port: port + 1}, false)
					require.NoError(t, err)
					if port == 0 {
						require.NoError(t, x.Abort(0, ""))
					}
				}
				require.NoError(t, pc.Rebind("10.0.0.3:6000"))
				port := uint16(1000)
				w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
					if to.String() == serverAddr && from.Addr() == netip.MustParseAddr("10.0.0.3") {
						for range 20 {
							port++
							w.net.Inject(netip.AddrPortFrom(elsewhere.Addr(), port), to, p)
						}
					}
					return true
				})
				start := time.Now()
				bothWays(t, a, b, content(1, 10000), content(2, 10000))
				require.Less(t, time.Since(start), 2*time.Second)
				require.Equal(t, "10.0.0.3:6000", b.RemoteAddr().String())
			})
		})
	}
}

// The listening end does not number what it sends before the peer has shown that
// it has the token of this session: a hello may have been recorded, and the same
// nonces would be made twice.
func TestNumbersAwaitTheToken(t *testing.T) {
	inWorld(t, 20, clean, func(t *testing.T, w *world) {
		config := &Config{Cipher: testAEAD(t)}
		l := w.listen(config)
		hellos := 0
		w.net.SetFilter(func(_, to netip.AddrPort, _ []byte) bool {
			if to.String() == serverAddr {
				hellos++
				return hellos <= 2
			}
			return hellos >= 2 // the first answer is lost, so hello is repeated
		})
		e, _ := w.endpoint("10.0.0.2:5000", config)
		a := w.dial(e)
		time.Sleep(time.Second)
		l.ep.mu.RLock()
		b := l.ep.table.Get(admission.MakeKey(a.LocalAddr().(*net.UDPAddr).AddrPort(), nil, a.Conv()))
		l.ep.mu.RUnlock()
		numbered := func() bool {
			_, sends, _ := progress(b)
			return sends
		}
		require.False(t, numbered())
		w.net.SetFilter(nil)
		bothWays(t, a, accepted(t, l), []byte("up"), []byte("down"))
		require.True(t, numbered())
	})
}
