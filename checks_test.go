package kcp

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/takeover"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// Checks of rules that the larger tests would not miss: each brings about what one of
// them refuses.

// To an address that is not validated only the oldest segment is retransmitted, and the
// others once it is.
func TestUnvalidatedGetsTheOldestOnly(t *testing.T) {
	h := newHarness(t, nil)
	h.k.limitUnvalidated(0, false)
	h.k.validation().Received(10_000)
	for _, s := range []string{"a", "b", "c"} {
		h.send(s)
	}
	h.advance(0)
	h.want(`push 0 frg=0 "a"`, `push 1 frg=0 "b"`, `push 2 frg=0 "c"`)
	h.advance(250)
	h.want(`push 0 frg=0 "a"`)
	for h.k.validation().Take(1) {
	}
	h.advance(1000)
	h.want()
	h.k.validateAddress()
	h.advance(1000)
	h.want(`push 0 frg=0 "a"`, `push 1 frg=0 "b"`, `push 2 frg=0 "c"`)
}

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
		require.Zero(t, l.Stats().DropReplay)
		w.net.Inject(hello.from, hello.to, hello.data)
		time.Sleep(time.Second)
		require.EqualValues(t, 1, l.Stats().DropReplay)
		require.Zero(t, l.Stats().Sessions)
	})
}

// Only ECONNREFUSED says that nobody listens. Other errors of a read end no session.
func TestOtherErrorsRefuseNobody(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		e, _ := w.endpoint("10.0.0.2:0", nil)
		e.socket.connected = true
		failed := make(chan error)
		go func() {
			_, err := e.Dial(context.Background(), udpAddr("10.0.0.9:9"))
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
		packet := packetOf(77, segment(wire.CmdWask, 1, 12345, 0, 0, ""), segment(wire.CmdWins, 2, capTLS, handshake.Version, 0, ""))
		_, err = pc.WriteTo(packet, l.Addr())
		require.NoError(t, err)
		time.Sleep(time.Second)
		s := l.Stats()
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
			head, tail := a.session.tls.app.Overhead()
			content := packetOf(conv, segment(wire.CmdWins, 0, 0, 0, 0, ""))
			p := append(make([]byte, head), content...)
			p = append(p, make([]byte, tail)...)
			require.NoError(t, a.session.tls.app.Seal(p, nil))
			a.mu.Unlock()
			w.net.Inject(a.LocalAddr().(*net.UDPAddr).AddrPort(), b.LocalAddr().(*net.UDPAddr).AddrPort(), p)
			time.Sleep(100 * time.Millisecond)
		}
		was := b.Stats().PacketsReceived
		inject(a.Conv())
		require.Equal(t, was+1, b.Stats().PacketsReceived)
		require.Zero(t, l.Stats().DropUnknown)
		inject(a.Conv() + 1)
		require.Equal(t, was+1, b.Stats().PacketsReceived)
		require.EqualValues(t, 1, l.Stats().DropUnknown)
		require.NoError(t, a.Close())
	})
}

// A segment is suspected after 5 transmissions no more.
func TestFastResendLimit(t *testing.T) {
	for sent, want := range map[uint32]bool{5: true, 6: false} {
		h := recoveryHarness(t, 2, Extensions{EarlyRetransmit: true, SendOrder: true})
		s := h.k.snd.ring.at(1)
		s.xmit = sent
		h.later(80)
		h.input(ack(3, 1080, 1))
		require.Equal(t, want, s.early, "after %d", sent)
		h.out = nil

		counted := recoveryHarness(t, 1, Extensions{SendOrder: true})
		counted.k.snd.ring.at(1).xmit = sent
		counted.later(80)
		counted.input(ack(3, 1080, 1))
		counted.advance(0)
		require.Equal(t, want, slices.Contains(counted.out, `push 1 frg=0 "a"`), "after %d", sent)
		counted.out = nil
	}
}

// What is not in the format of FEC is dropped, and counted.
func TestBadShardsAreCounted(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		bad := []byte{1, 0, 0, 0, 0xf1, 0, 77, 0, 1, 2, 3}
		b.mu.Lock()
		_, ok := b.session.decode(inPacket{Packet: protect.Packet{Data: bad}, kind: fecPacket}, arrival{}, b.ep.now())
		b.mu.Unlock()
		require.False(t, ok)
		require.EqualValues(t, 1, b.Stats().Dropped.FEC)
		require.NoError(t, a.Abort())
		require.ErrorIs(t, a.Abort(), net.ErrClosed, "it was ended before")
	})
}

// Datagrams that come after Close are dropped, and counted.
func TestDatagramsAfterClose(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		b.mu.Lock()
		b.session.takeDatagram([]byte{1})
		was := b.session.closing
		b.session.closing.Stop()
		b.session.takeDatagram([]byte{2})
		s := b.session.in.datagrams.Stats
		b.session.closing = was
		b.mu.Unlock()
		require.EqualValues(t, []uint64{2, 1}, []uint64{s.Received, s.Dropped})
		require.NoError(t, a.Abort())
	})
}

// A write buffer of streams that was set to more than the session's counts for all
// streams together.
func TestLargeStreamWriteBuffer(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		e, _ := w.endpoint("10.0.0.2:0", &Config{StreamWriteBuffer: 8 << 20})
		w.listen(nil)
		c := w.dial(e)
		require.Equal(t, 8<<20, (*streamHost)(&c.session).WriteBuffer())
		e.load.written.Store(writePressure + 1)
		require.Equal(t, 8<<20, (*streamHost)(&c.session).WriteBuffer(), "also when memory is short")
		e.load.written.Store(0)
		require.NoError(t, c.Abort())
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
		next := uint32(b.session.kcp.position().received)
		require.True(t, b.session.takeFin(wire.Signal{Code: wire.Fin, SN: next + 5, TS: 0}))
		require.True(t, b.session.takeFin(wire.Signal{Code: wire.Fin, SN: next + 5, TS: 0}), "again")
		require.False(t, b.session.takeFin(wire.Signal{Code: wire.Fin, SN: next + 6, TS: 0}))
		require.False(t, b.session.takeFin(wire.Signal{Code: wire.Close, SN: next + 4, TS: 0}))
		require.True(t, b.session.takeFin(wire.Signal{Code: wire.Close, SN: next + 6, TS: 0}))
		b.mu.Unlock()
		require.NoError(t, a.Abort())
	})
}

// A session that has ended sends nothing more when it is aborted, or closed.
func TestNothingLeavesAnEndedSession(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		time.Sleep(time.Second)
		require.NoError(t, a.Abort())
		time.Sleep(time.Second)
		_, err := b.Read(make([]byte, 1))
		require.ErrorIs(t, err, ErrReset)
		seen := w.watched()
		require.NoError(t, b.Abort())
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
		require.NoError(t, a.Abort())
	})
}

// A peer that has not announced that it answers PROBE is sent none.
func TestNoProbesToOthers(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		require.True(t, a.session.mayProbeMTU())
		a.mu.Lock()
		a.session.hs.capabilities &^= capPMTU
		a.mu.Unlock()
		go io.Copy(io.Discard, b)
		writeAll(t, a, make([]byte, 1<<20))
		time.Sleep(time.Minute)
		require.False(t, a.session.plpmtu.Begun())
		require.NoError(t, a.Abort())
	})
}

// An endpoint that does not listen answers nobody, of whatever version.
func TestNoAnswerToOldVersionWithoutListener(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		e, pc := w.endpoint("10.0.0.2:5000", &Config{TLS: testenv.TLS()})
		packet := packetOf(77, segment(wire.CmdWask, 1, 12345, 0, 0, ""), segment(wire.CmdWins, 2, capTLS, 1, 0, ""), segment(wire.CmdWask, 0, 0, 0, 0, ""))
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
			_, ok := b.session.decode(inPacket{Packet: protect.Packet{Data: shard}, kind: fecPacket}, arrival{unvalidated: short}, b.ep.now())
			decoders = append(decoders, ok, b.session.in.decoder != nil)
		}
		b.mu.Unlock()
		require.Equal(t, []bool{true, false, true, true}, decoders)
		require.NoError(t, a.Abort())
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
			require.NoError(t, a.Abort())
			require.Equal(t, used, len(records.Of("kcp")) == was)
		})
	}
}

// To an address that is not validated no redundant copies are sent.
func TestNoCopiesToTheUnvalidated(t *testing.T) {
	packets := 0
	h := redundantHarness(t, &packets, Extensions{Redundancy: 100})
	h.k.limitUnvalidated(0, false)
	h.k.validation().Received(10_000)
	for i, s := range []string{"a", "b"} {
		h.send(s)
		h.advance(10)
		h.want(fmt.Sprintf("push %d frg=0 %q", i, s))
	}
}

// Only transmissions since the peer was last heard count for DeadLink.
func TestSilenceBeginsWithTheLastPacket(t *testing.T) {
	h := newHarness(t, nil)
	require.Zero(t, h.k.sender().silentTransmissions(), "nothing is in flight")
	h.send("x")
	later := func() {
		for range 100 {
			h.advance(50)
		}
	}
	later()
	sent := h.k.sender().silentTransmissions()
	require.Greater(t, sent, 1)
	h.input(segment(wire.CmdWask, 0, 0, 0, 0, ""))
	require.Zero(t, h.k.sender().silentTransmissions())
	later()
	require.Positive(t, h.k.sender().silentTransmissions())
	h.out = nil
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
		_, err := e.Dial(t.Context(), l.Addr())
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
		packet := inPacket{Packet: protect.Packet{Data: packetOf(b.Conv(), segment(wire.CmdWins, 0, 0, 0, 0, ""))}}
		for _, test := range []struct{ unvalidated, numbered, mine bool }{
			{false, false, true}, {true, false, false}, {false, true, false},
		} {
			was := b.session.hs.unvalidated.Swap(test.unvalidated)
			p := packet
			p.from = source{addr: netip.MustParseAddrPort("10.0.0.9:9")}
			mine, moved := b.claims(question{what: admission.AskPacket, numbered: test.numbered}, &p, b.ep.now())
			b.session.hs.unvalidated.Store(was)
			require.Equal(t, test.mine, mine, "%+v", test)
			require.False(t, moved)
		}
		require.NoError(t, a.Abort())
	})
}

// A payload that does not fit into a packet stays away from its signal.
func TestPayloadsOfSignalsFit(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		a.mu.Lock()
		s := wire.Signal{Code: wire.Close, SN: 1}
		a.session.hs.reasons = &closeReasons{ours: make([]byte, 100)}
		fits := a.session.kcp.signalPayload(s)
		mtu := a.session.kcp.cfg.mtu
		a.session.kcp.cfg.mtu = wire.HeaderSize + 99
		tooLong := a.session.kcp.signalPayload(s)
		a.session.kcp.cfg.mtu = mtu
		a.mu.Unlock()
		require.Len(t, fits, 100)
		require.Empty(t, tooLong)
		require.NoError(t, b.Abort())
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
			require.NoError(t, c.Abort())
		})
	}
}

// Each error of a packet has a count of its own.
func TestDropsByTheirErrors(t *testing.T) {
	var d Drops
	for i, err := range []error{ErrPacketShort, ErrConv, ErrSegmentLength, ErrCommand, ErrForgedUna, ErrPiece, ErrRequests} {
		for range i + 1 {
			countDrop(&d, err)
		}
	}
	require.Equal(t, Drops{Short: 1, Conv: 2, Length: 3, Command: 4, Una: 5, Piece: 6, Requests: 7}, d)
}
