package kcp

import (
	"context"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/takeover"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
)

// Checks of rules that the larger tests would not miss: each brings about what one of
// them refuses.

// A HELLO that is sent once more, when its session is forgotten, opens none.
func TestReplayedHelloOpensNothing(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		config := &Config{Cipher: testAEAD(t)}
		l := w.listen(config)
		e, _ := w.endpoint("10.0.0.2:0", config)
		seen := w.watched()
		a := w.dial(e)
		b := accepted(t, l)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		time.Sleep(70 * time.Second)
		hello := seen.all(w)[0]
		require.Zero(t, l.Endpoint().Stats().DropReplay)
		w.net.Inject(hello.from, hello.to, hello.data)
		time.Sleep(time.Second)
		require.EqualValues(t, 1, l.Endpoint().Stats().DropReplay)
		require.Zero(t, l.Endpoint().Stats().Sessions)
	})
}

// Only ECONNREFUSED says that nobody listens. Other errors of a read end no session.
func TestOtherErrorsRefuseNobody(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		e, _ := w.endpoint("10.0.0.2:0", nil)
		e.socket.connected = true
		failed := make(chan error)
		go func() {
			_, err := e.Dial(context.Background(), udpAddr("10.0.0.9:9"), nil)
			failed <- err
		}()
		time.Sleep(time.Second)
		e.refused(io.ErrUnexpectedEOF)
		time.Sleep(time.Second)
		require.Equal(t, 1, e.Stats().Sessions)
		e.refused(syscall.ECONNREFUSED)
		require.ErrorIs(t, <-failed, ErrRefused)
	})
}

// A listener with TLS drops a HELLO without CRYPTO, of which nothing could open.
func TestTLSHelloWithoutCrypto(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		l := w.listen(&Config{TLS: testenv.TLS()})
		pc, err := w.net.Listen("10.0.0.9:9")
		require.NoError(t, err)
		defer pc.Close()
		packet := packetOf(77, segment(wire.CmdWask, 1, 12345, 0, 0, ""), segment(wire.CmdWins, 2, session.CapTLS, handshake.Version, 0, ""))
		_, err = pc.WriteTo(packet, l.Addr())
		require.NoError(t, err)
		time.Sleep(time.Second)
		s := l.Endpoint().Stats()
		require.EqualValues(t, []uint64{1, 0}, []uint64{s.DropHandshake, s.DropCipher})
	})
}

// What a session seals has to be of its own conversation inside, too.
func TestTLSOtherConversationInside(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		config := &Config{TLS: testenv.TLS(), KeepAlive: -1}
		a, b, l := w.pair(config, config)
		time.Sleep(time.Second)
		inject := func(conv uint32) {
			a.mu.Lock()
			head, tail := a.session.Inside().Keys().Overhead()
			content := packetOf(conv, segment(wire.CmdWins, 0, 0, 0, 0, ""))
			p := append(make([]byte, head), content...)
			p = append(p, make([]byte, tail)...)
			require.NoError(t, a.session.Inside().Keys().Seal(p, nil))
			a.mu.Unlock()
			w.net.Inject(a.LocalAddr().(*net.UDPAddr).AddrPort(), b.LocalAddr().(*net.UDPAddr).AddrPort(), p)
			time.Sleep(100 * time.Millisecond)
		}
		was := b.Stats().PacketsReceived
		inject(a.Conv())
		require.Equal(t, was+1, b.Stats().PacketsReceived)
		require.Zero(t, l.Endpoint().Stats().DropUnknown)
		inject(a.Conv() + 1)
		require.Equal(t, was+1, b.Stats().PacketsReceived)
		require.EqualValues(t, 1, l.Endpoint().Stats().DropUnknown)
		require.NoError(t, a.Close())
	})
}

// What is not in the format of FEC is dropped, and counted.
func TestBadShardsAreCounted(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		bad := []byte{1, 0, 0, 0, 0xf1, 0, 77, 0, 1, 2, 3}
		b.mu.Lock()
		ok := b.session.Inside().Decode(session.InPacket{Packet: protect.Packet{Data: bad}, Kind: session.FECPacket}, machine.Arrival{}, b.ep.now())
		b.mu.Unlock()
		require.False(t, ok)
		require.EqualValues(t, 1, b.Stats().Dropped.FEC)
		require.NoError(t, a.Abort(0, ""))
		require.ErrorIs(t, a.Abort(0, ""), net.ErrClosed, "it was ended before")
	})
}

// Datagrams that come after Close are dropped, and counted.
func TestDatagramsAfterClose(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		b.mu.Lock()
		b.session.Inside().TakeDatagram([]byte{1})
		was := *b.session.Inside().Closing()
		b.session.Inside().Closing().Stop()
		b.session.Inside().TakeDatagram([]byte{2})
		s := b.session.Inside().Datagrams()
		*b.session.Inside().Closing() = was
		b.mu.Unlock()
		require.EqualValues(t, []uint64{2, 1}, []uint64{s.Received, s.Dropped})
		require.NoError(t, a.Abort(0, ""))
	})
}

// A write buffer of streams that was set to more than the session's counts for all
// streams together.
func TestLargeStreamWriteBuffer(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		e, _ := w.endpoint("10.0.0.2:0", &Config{StreamWriteBuffer: 8 << 20})
		w.listen(nil)
		c := w.dial(e)
		require.Equal(t, 8<<20, c.session.Inside().StreamHost().WriteBuffer())
		e.shared.Load.Written.Store(session.WritePressure + 1)
		require.Equal(t, 8<<20, c.session.Inside().StreamHost().WriteBuffer(), "also when memory is short")
		e.shared.Load.Written.Store(0)
		require.NoError(t, c.Abort(0, ""))
	})
}

// With streams, too, there is one end of the session's own data: FIN names it, and
// only CLOSE may name a later one.
func TestSecondFinBesideStreams(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		s := openStream(t, a, nil)
		writeAll(t, s, []byte("x"))
		time.Sleep(time.Second)
		b.mu.Lock()
		next := uint32(b.session.Inside().Machine().Position().Received)
		require.True(t, b.session.Inside().TakeFin(wire.Signal{Code: wire.Fin, SN: next + 5, TS: 0}))
		require.True(t, b.session.Inside().TakeFin(wire.Signal{Code: wire.Fin, SN: next + 5, TS: 0}), "again")
		require.False(t, b.session.Inside().TakeFin(wire.Signal{Code: wire.Fin, SN: next + 6, TS: 0}))
		require.False(t, b.session.Inside().TakeFin(wire.Signal{Code: wire.Close, SN: next + 4, TS: 0}))
		require.True(t, b.session.Inside().TakeFin(wire.Signal{Code: wire.Close, SN: next + 6, TS: 0}))
		b.mu.Unlock()
		require.NoError(t, a.Abort(0, ""))
	})
}

// A session that has ended sends nothing more when it is aborted, or closed.
func TestNothingLeavesAnEndedSession(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		time.Sleep(time.Second)
		require.NoError(t, a.Abort(0, ""))
		time.Sleep(time.Second)
		_, err := b.Read(make([]byte, 1))
		require.ErrorIs(t, err, ErrReset)
		seen := w.watched()
		require.NoError(t, b.Abort(0, ""))
		time.Sleep(time.Second)
		require.Empty(t, seen.all(w))
	})
}

// A Tracer may want nothing of a session.
func TestTracerOfNothing(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		asked := 0
		config := &Config{Tracer: func(*Conn) *Trace { asked++; return nil }}
		a, b, _ := w.pair(config, config)
		send(t, a, []byte("hello"))
		receive(t, b, []byte("hello"))
		require.Equal(t, 2, asked)
		require.NoError(t, a.Abort(0, ""))
	})
}

// A peer that has not announced that it answers PROBE is sent none.
func TestNoProbesToOthers(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		require.True(t, a.session.Inside().MayProbeMTU())
		a.mu.Lock()
		*a.session.Inside().Capabilities() &^= session.CapPMTU
		a.mu.Unlock()
		go io.Copy(io.Discard, b)
		writeAll(t, a, make([]byte, 1<<20))
		time.Sleep(time.Minute)
		_, begun := a.session.Inside().ProbesMTU()
		require.False(t, begun)
		require.NoError(t, a.Abort(0, ""))
	})
}

// An endpoint that does not listen answers nobody, of whatever version.
func TestNoAnswerToOldVersionWithoutListener(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		e, pc := w.endpoint("10.0.0.2:5000", &Config{TLS: testenv.TLS()})
		packet := packetOf(77, segment(wire.CmdWask, 1, 12345, 0, 0, ""), segment(wire.CmdWins, 2, session.CapTLS, 1, 0, ""), segment(wire.CmdWask, 0, 0, 0, 0, ""))
		to := pc.LocalAddr().(*net.UDPAddr).AddrPort()
		w.net.Inject(netip.MustParseAddrPort("10.0.0.9:9"), to, packet)
		time.Sleep(time.Second)
		require.Zero(t, e.Stats().HandshakeErrors)
	})
}

// While memory is short, or the address is not validated, nothing is kept for the
// recovery of packets.
func TestNoDecoderUnderPressure(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		shard := fecShard(0, packetOf(b.Conv(), segment(wire.CmdWins, 0, 0, 0, 0, "")))
		var decoders []bool
		b.mu.Lock()
		for _, short := range []bool{true, false} {
			ok := b.session.Inside().Decode(session.InPacket{Packet: protect.Packet{Data: shard}, Kind: session.FECPacket}, machine.Arrival{Unvalidated: short}, b.ep.now())
			decoders = append(decoders, ok, b.session.Inside().Decodes())
		}
		b.mu.Unlock()
		require.Equal(t, []bool{true, false, true, true}, decoders)
		require.NoError(t, a.Abort(0, ""))
	})
}

// The ends of sessions count in the limit of records, too.
func TestEndsAreLoggedWithinTheLimit(t *testing.T) {
	for _, used := range []bool{false, true} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			var records testenv.Records
			a, _, _ := w.pair(&Config{Logger: records.Logger()}, nil)
			for ok := used; ok; {
				_, ok = a.ep.mayLogSession()
			}
			was := len(records.Of("kcp"))
			require.NoError(t, a.Abort(0, ""))
			require.Equal(t, used, len(records.Of("kcp")) == was)
		})
	}
}

// The flight of a listener, and its repetitions, are within three times what has
// arrived from an address that is not validated.
func TestTLSFlightIsWithinCredit(t *testing.T) {
	inWorld(t, 1, netsim.LinkConfig{Delay: 20 * time.Millisecond}, func(t *testing.T, w *world) {
		config := &Config{TLS: testenv.TLS(), DialTimeout: 20 * time.Second}
		l := w.listen(config)
		begin := time.Now()
		in, out := 0, 0
		w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
			if from == netip.MustParseAddrPort(serverAddr) {
				out += len(p)
				return true
			}
			if time.Since(begin) > 20*time.Millisecond {
				return false
			}
			in += len(p)
			return true
		})
		e, _ := w.endpoint("10.0.0.2:0", config)
		_, err := e.Dial(t.Context(), l.Addr(), nil)
		require.NoError(t, err)
		time.Sleep(15 * time.Second)
		w.net.SetFilter(nil)
		require.Greater(t, out, in)
		require.LessOrEqual(t, out, 3*in)
	})
}

// A packet from another address counts only if it is numbered as the session's are,
// and while the peer's address is not validated, only if it is numbered at all.
func TestPacketsOfNewAddresses(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		packet := session.InPacket{Packet: protect.Packet{Data: packetOf(b.Conv(), segment(wire.CmdWins, 0, 0, 0, 0, ""))}}
		for _, test := range []struct{ unvalidated, numbered, mine bool }{
			{false, false, true}, {true, false, false}, {false, true, false},
		} {
			was := b.session.Inside().Unvalidated().Swap(test.unvalidated)
			p := packet
			p.From = session.Source{Addr: netip.MustParseAddrPort("10.0.0.9:9")}
			mine, moved := b.claims(session.Question{What: admission.AskPacket, Numbered: test.numbered}, &p, b.ep.now())
			b.session.Inside().Unvalidated().Store(was)
			require.Equal(t, test.mine, mine, "%+v", test)
			require.False(t, moved)
		}
		require.NoError(t, a.Abort(0, ""))
	})
}

// A conversation id that another process has used counts as used after a takeover.
func TestUsedConvsAreInherited(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		e, _ := w.endpoint(serverAddr, nil)
		e.inherit(takeover.Note{Kind: takeover.Used, Conv: 7})
		require.True(t, e.table.Used.Has(7))
		require.False(t, e.table.Used.Has(8))
	})
}

// Figures of rules, as RULES.md has them: these tests spell the figures, and do not
// use the constants.

// A second plain window update shows a dialled session that its peer is a legacy one.
// The first does not.
func TestTwoWindowUpdatesShowALegacyPeer(t *testing.T) {
	for updates := range 4 {
		inWorld(t, 3, clean, func(t *testing.T, w *world) {
			pc, err := w.net.Listen(serverAddr)
			require.NoError(t, err)
			defer pc.Close()
			e, _ := w.endpoint("10.0.0.2:5000", &Config{DialTimeout: -1})
			c := w.dial(e)
			time.Sleep(100 * time.Millisecond) // before the second HELLO
			for range updates {
				w.net.Inject(netip.MustParseAddrPort(serverAddr), netip.MustParseAddrPort("10.0.0.2:5000"), packetOf(c.Conv(), segment(wire.CmdWins, 0, 0, 0, 0, "")))
				time.Sleep(20 * time.Millisecond)
			}
			require.Equal(t, updates >= 2, c.Peer().Legacy, "after %d", updates)
			require.NoError(t, c.Abort(0, ""))
		})
	}
}

// Each error of a packet has a count of its own.
func TestDropsByTheirErrors(t *testing.T) {
	var d stats.Drops
	for i, err := range []error{machine.ErrPacketShort, machine.ErrConv, machine.ErrSegmentLength, machine.ErrCommand, machine.ErrForgedUna, machine.ErrPiece, machine.ErrRequests} {
		for range i + 1 {
			session.CountDrop(&d, err)
		}
	}
	require.Equal(t, stats.Drops{Short: 1, Conv: 2, Length: 3, Command: 4, Una: 5, Piece: 6, Requests: 7}, d)
}

// While a woken call has not run, an ACK waits for it, for 25 ms and half of a round trip
// in all.
func TestAckAwaitsCall(t *testing.T) {
	for _, late := range []bool{false, true} {
		inWorld(t, 1, netsim.LinkConfig{Delay: 20 * time.Millisecond}, func(t *testing.T, w *world) {
			l := w.listen(nil)
			e, _ := w.endpoint("10.0.0.2:0", nil)
			a := w.dial(e)
			b := accepted(t, l)
			bothWays(t, a, b, []byte("here"), []byte("here"))
			time.Sleep(time.Second)
			sent := make(chan time.Duration, 10)
			begin := time.Now()
			w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
				if from == netip.MustParseAddrPort(serverAddr) {
					sent <- time.Since(begin)
				}
				return true
			})
			if late {
				b.mu.Lock()
				b.io.woken = true // as nothing waits, no call takes it back
				b.unlock()
			}
			writeAll(t, a, []byte("x"))
			time.Sleep(500 * time.Millisecond)
			require.Len(t, sent, 1)
			waited := <-sent - 20*time.Millisecond
			if late {
				require.InDelta(t, 45, waited.Milliseconds(), 2)
			} else {
				require.InDelta(t, 10, waited.Milliseconds(), 2)
			}
			require.Zero(t, a.Stats().SpuriousRetransmits)
			require.Zero(t, a.Stats().TimeoutRetransmits)
		})
	}
}

// What follows a question and its answer is the initial window, in bytes, however
// small those were. While nothing is known of the path it is not paced.
func TestFirstWindow(t *testing.T) {
	inWorld(t, 2, netsim.LinkConfig{Delay: 100 * time.Millisecond}, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		bothWays(t, a, b, []byte("ask"), []byte("answer"))
		time.Sleep(50 * time.Millisecond)
		start, data := time.Now(), content(3, 200_000)
		go func() { _, _ = a.Write(data) }()
		receive(t, b, data[:13_000])
		require.Less(t, time.Since(start), 150*time.Millisecond)
		first := a.Stats()
		require.LessOrEqual(t, first.InFlight, 10+1)
		receive(t, b, data[13_000:])
	})
}

// A peer that does not take DATA of stream 0 gets PUSH.
func TestOwnSegmentsNeedThePeer(t *testing.T) {
	for _, takes := range []bool{true, false} {
		inWorld(t, 3, netsim.LinkConfig{Loss: 0.1}, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			for _, c := range []*Conn{a, b} {
				c.mu.Lock()
				require.NotZero(t, *c.session.Inside().Capabilities()&session.CapOwnOrder)
				if !takes {
					*c.session.Inside().Capabilities() &^= session.CapOwnOrder
				}
				c.mu.Unlock()
			}
			writeAll(t, a, content(1, 5000))
			s := openStream(t, a, nil)
			send(t, s, content(2, 50_000))
			writeAll(t, a, content(3, 5000))
			r, err := b.AcceptStream(t.Context())
			require.NoError(t, err)
			receive(t, b, slices.Concat(content(1, 5000), content(3, 5000)))
			receive(t, r, content(2, 50_000))
			a.mu.Lock()
			defer a.mu.Unlock()
			require.Equal(t, takes, a.session.Inside().Machine().Load().Payload < a.session.Inside().Machine().PacketSize()-wire.HeaderSize)
		})
	}
}
