package kcp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/admission"
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

// Flush takes a round trip, and no longer: the acknowledgement wakes it, also if
// the write buffer is full by then.
func TestFlushReturnsWithTheAcknowledgement(t *testing.T) {
	inWorld(t, 2, netsim.LinkConfig{Delay: 100 * time.Millisecond}, func(t *testing.T, w *world) {
		a, _, _ := w.pair(small(true), nil)
		time.Sleep(time.Second)
		require.NoError(t, a.WriteMessage(make([]byte, 1000), nil))
		time.AfterFunc(time.Millisecond, func() { _ = a.WriteMessage(make([]byte, 100000), nil) })
		start := time.Now()
		require.NoError(t, a.Flush(context.Background()))
		require.Less(t, time.Since(start), 300*time.Millisecond)
		require.Zero(t, available(a))
	})
}

// available returns how many bytes TryWrite would queue now.
func available(c *Conn) int {
	c.mu.Lock()
	defer c.unlock()
	return c.session.Inside().Available(&session.WriteCall{Late: c.io.writeDeadline.err()})
}

// isDone reports whether a channel of Done is closed.
func isDone(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// Done is closed, Err is set, and the endpoint has counted the cause, however a
// session ends.
func TestDoneErrAndTheirCount(t *testing.T) {
	mortal := Config{KeepAlive: time.Second, PeerTimeout: 2 * time.Second, Linger: time.Second, ReceiveWindow: 128}
	idle, stalls := Config{IdleTimeout: 3 * time.Second}, Config{StallTimeout: 3 * time.Second, ReceiveWindow: 128}
	unread := make([]byte, 1<<20) // more than the peer's window
	for name, c := range map[string]struct {
		config               *Config
		end                  func(w *world, a *Conn) error
		ours, theirs         error  // nil: not looked at
		ourCounter, theirOne string // in stats.Ended; "": not looked at
	}{
		"close":    {&mortal, func(_ *world, a *Conn) error { return a.Close() }, net.ErrClosed, ErrPeerClosed, "Closed", "PeerClosed"},
		"abort":    {&mortal, func(_ *world, a *Conn) error { return a.Abort(0, "") }, net.ErrClosed, ErrReset, "Aborted", "Reset"},
		"endpoint": {&mortal, func(_ *world, a *Conn) error { return a.Endpoint().Close() }, net.ErrClosed, ErrReset, "Aborted", "Reset"},
		"memory": {&mortal, func(_ *world, a *Conn) error {
			a.mu.Lock()
			a.session.Inside().Machine().Compact() // without spare memory there is nothing to give up
			a.mu.Unlock()
			require.True(t, a.shedMemory())
			return nil
		}, ErrMemoryPressure, ErrReset, "Memory", "Reset"},
		"lost": {&mortal, func(w *world, _ *Conn) error {
			w.deaf()
			return nil
		}, nil, nil, "Lost", "Lost"},
		"idle": {&idle, func(*world, *Conn) error { return nil }, nil, ErrReset, "Idle", "Reset"},
		"stalled": {&stalls, func(_ *world, a *Conn) error {
			_, err := a.Write(unread)
			return err
		}, nil, ErrReset, "Stalled", "Reset"},
		"not delivered": {&mortal, func(_ *world, a *Conn) error {
			_, err := a.Write(unread)
			if closed := a.Close(); !errors.Is(closed, ErrNotDelivered) {
				return errors.Join(err, closed)
			}
			return err
		}, ErrNotDelivered, nil, "NotDelivered", ""},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 1, clean, func(t *testing.T, w *world) {
				server := *c.config
				server.IdleTimeout = 0
				a, b, l := w.pair(c.config, &server)
				done := a.Done()
				require.False(t, isDone(done))
				require.NoError(t, a.Err())
				require.Equal(t, done, a.Done())
				require.NoError(t, c.end(w, a))
				<-done
				<-b.Done()
				require.Error(t, a.Err())
				if c.ours != nil {
					require.Equal(t, c.ours, a.Err())
				}
				if c.theirs != nil {
					require.Equal(t, c.theirs, b.Err())
				}
				require.True(t, isDone(a.Done()), "asked for after the end")
				checkEnds(t, a.Endpoint(), c.ourCounter)
				if c.theirOne != "" {
					checkEnds(t, l.Endpoint(), c.theirOne)
				}
			})
		})
	}
}

// checkEnds checks that the only session of e is counted by one counter, and by no
// other.
func checkEnds(t *testing.T, e *Endpoint, counter string) {
	t.Helper()
	s := e.Stats()
	require.EqualValues(t, 1, reflect.ValueOf(s.Ended).FieldByName(counter).Uint(), "%+v", s.Ended)
	require.EqualValues(t, 1, s.Ended.Total())
	require.EqualValues(t, 1, s.Dialled+s.Accepted)
	require.Equal(t, 1, s.Peak)
	require.Zero(t, s.Sessions)
}

// The handler of a session in a group comes before the group's events.
func TestHandlerInGroup(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, g := w.grouped(nil)
		var calls atomic.Int32
		b.handleDatagrams(func(p []byte) {
			calls.Add(1)
			_ = b.Abort(0, "") // does not wait
		})
		require.NoError(t, a.SendDatagram([]byte("x")))
		require.NoError(t, a.SendDatagram([]byte("y")))
		time.Sleep(time.Second)
		require.EqualValues(t, 1, calls.Load(), "dropped after Abort")
		for _, e := range take(t, g) {
			require.NotEqual(t, EventDatagram, e.Kind)
		}
	})
}

// What arrived in the batch in which the session was closed is dropped.
func TestHandlerOfClosedSession(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		_, b, _ := w.pair(nil, nil)
		b.handleDatagrams(func([]byte) { t.Error("called after Abort") })
		require.NoError(t, b.Abort(0, ""))
		b.handleDatagram([]byte("x"))
		require.Equal(t, stats.Datagrams{Received: 1, Dropped: 1}, b.Stats().Datagrams)
	})
}

// Listener: context, deadline and Close end Accept; accepted sessions survive.
func TestListener(t *testing.T) {
	inWorld(t, 3, clean, func(t *testing.T, w *world) {
		a, b, l := w.pair(nil, nil)
		_, err := l.Endpoint().Listen()
		require.ErrorIs(t, err, errListening)

		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err = l.AcceptKCP(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, l.SetDeadline(time.Now().Add(time.Second)))
		_, err = l.Accept()
		requireTimeout(t, err)
		require.NoError(t, l.SetDeadline(time.Time{}))

		errs := make(chan error)
		go func() {
			_, err := l.Accept()
			errs <- err
		}()
		time.Sleep(time.Second)
		require.NoError(t, l.Close())
		require.ErrorIs(t, <-errs, net.ErrClosed)
		require.ErrorIs(t, l.Close(), net.ErrClosed)
		require.ErrorIs(t, l.SetDeadline(time.Now()), net.ErrClosed)

		want := content(3, 10000)
		send(t, a, want)
		receive(t, b, want)
		again, err := b.Endpoint().Listen()
		require.NoError(t, err)
		require.NoError(t, again.Close())
	})
}

// Every field of Config has an effect on the session that it is given to.
func TestSettingsTakeEffect(t *testing.T) {
	inWorld(t, 33, clean, func(t *testing.T, w *world) {
		cfg := &Config{
			MTU: 600, SendWindow: 77, ReceiveWindow: 333, Tuning: Tuning{NoDelay: NoDelayTurbo, MinRTO: 55 * time.Millisecond, Interval: 20 * time.Millisecond, FastResend: 4, FastResendLimit: 9, DeadLink: 3},
			CongestionControl: congestion.NewNone, MessageMode: true, Redundancy: 0.5,
		}
		a, _, _ := w.pair(cfg, nil)
		k := a.session.Inside().Machine().Inspect()
		require.EqualValues(t, 50, k.Extensions.Redundancy)
		k.Extensions = machine.Extensions{}
		require.Equal(t, machine.Settings{
			MTU: 600, SendWindow: 77, ReceiveWindow: 333, NoDelay: machine.NoDelayTurbo,
			MinRTO: 55, Interval: 20, FastResend: 4, FastResendLimit: 9, DeadLink: 3, Data: machine.MessageData,
		}, k.Settings)
		require.IsType(t, congestion.NewNone(), k.Control)
	})
}

// What is nil and cannot be does harm where it is given, and not at the first packet.
func TestNilIsFoundWhereItIsGiven(t *testing.T) {
	require.PanicsWithValue(t, "kcp: New: nil output", func() { machine.New(1, nil) })
	g := NewGroup()
	err := g.Handle(nil)
	require.ErrorIs(t, err, errNoHandler)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.NoError(t, g.Close())
}

// Checks of rules that the larger tests would not miss: each brings about what one of
// them refuses.

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
