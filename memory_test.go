package kcp

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/stretchr/testify/require"
)

// holder is a way of a peer to have memory held with little traffic.
type holder struct {
	name string
	make func(i int) []byte // the i-th packet
}

var holders = []holder{
	{"empty in order", func(i int) []byte { return manyPushes(uint32(i*50), 50, "") }},
	{"one byte in order", func(i int) []byte { return manyPushes(uint32(i*50), 50, "x") }},
	{"full in order", func(i int) []byte { return push(uint32(i), 0, string(make([]byte, 1300))) }},
	{"empty behind a gap", func(i int) []byte { return manyPushes(uint32(1+i*50), 50, "") }},
	{"one byte behind a gap", func(i int) []byte { return manyPushes(uint32(1+i*50), 50, "x") }},
	{"129 bytes behind a gap", func(i int) []byte { return manyPushes(uint32(1+i*8), 8, string(make([]byte, 129))) }},
	{"513 bytes behind a gap", func(i int) []byte { return push(uint32(1+i), 0, string(make([]byte, 513))) }},
	{"full behind a gap", func(i int) []byte { return push(uint32(1+i), 0, string(make([]byte, 1537))) }},
	{"the end of the window", func(i int) []byte { return push(2047, 0, "x") }},
	{"broken messages", func(i int) []byte { return manyPushes(uint32(i*50), 50, "x", 3, 9) }},
	{"endless message", func(i int) []byte { return push(uint32(i), uint8(255-i), string(make([]byte, 1300))) }},
	{"datagrams", func(i int) []byte { return oob(make([]byte, 1300)) }},
	{"small datagrams", func(i int) []byte { return oob([]byte{1}) }},
	{"large datagrams", func(i int) []byte { return oob(make([]byte, 60000)) }},
	{"pieces", func(i int) []byte { return piece(uint32(i), 0, 4032, 4033, "x") }},
	{"pieces of large segments", func(i int) []byte { return piece(uint32(i), 0, 64512, 65535, string(make([]byte, 1023))) }},
	{"shards", func(i int) []byte { return fecShard(uint32(i), push(uint32(i), 0, string(make([]byte, 1200)))) }},
	{"parity", func(i int) []byte { return fecShard(uint32(i), nil) }},
	{"duplicates", func(i int) []byte { return manyPushes(0, 50, "x", 0, 0) }},
	{"pings", func(i int) []byte { return bytesOf(wire.Signal{Code: wire.Ping, SN: uint32(i), TS: 1}) }},
}

// manyPushes returns a packet of n segments from sn on, whose frg are those given
// in turn; 0 if there are none.
func manyPushes(sn uint32, n int, payload string, frgs ...uint8) (p []byte) {
	frgs = append(frgs, 0)[:max(len(frgs), 1)]
	for i := range n {
		p = append(p, push(sn+uint32(i), frgs[i%len(frgs)], payload)...)
	}
	return p
}

// oob returns a datagram of conversation 7.
func oob(b []byte) []byte {
	p := binary.LittleEndian.AppendUint32(nil, 0xffffffff)
	p = binary.LittleEndian.AppendUint16(p, 0xf3)
	p = binary.LittleEndian.AppendUint16(p, uint16(len(b)+6))
	return append(binary.LittleEndian.AppendUint32(p, 7), b...)
}

// fecShard returns a packet in an FEC header, or parity where there is none.
func fecShard(seqid uint32, packet []byte) []byte {
	p := binary.LittleEndian.AppendUint32(nil, seqid)
	if packet == nil {
		return append(binary.LittleEndian.AppendUint16(p, 0xf2), make([]byte, 1300)...)
	}
	p = binary.LittleEndian.AppendUint16(p, 0xf1)
	p = binary.LittleEndian.AppendUint16(p, uint16(len(packet)+2))
	return append(p, packet...)
}

// withConv sets the conversation of a packet.
func withConv(conv uint32, p []byte) []byte {
	switch binary.LittleEndian.Uint16(p[4:]) {
	case 0xf1:
		copy(p[8:], packetOf(conv, p[8:]))
	case 0xf3:
		binary.LittleEndian.PutUint32(p[8:], conv)
	case 0xf2:
	default:
		p = packetOf(conv, p)
	}
	return p
}

// What waits until a peer's new address is validated counts, and no longer.
func TestDeferredPacketIsCounted(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		_, b, l := w.pair(nil, nil)
		b.mu.Lock()
		defer b.mu.Unlock()
		const size = 1200
		before := l.Endpoint().Stats().Buffered
		b.session.Inside().DeferPacket(&session.InPacket{Packet: protect.Packet{Data: make([]byte, size)}}, 1, size)
		b.session.Inside().Account()
		require.GreaterOrEqual(t, l.Endpoint().Stats().Buffered-before, size)
		b.session.Inside().DropUnreliable()
		b.session.Inside().Account()
		require.Less(t, l.Endpoint().Stats().Buffered-before, size)
	})
}

// Who reads makes progress, also when nothing arrives any more; who does not, does
// not.
func TestReadingIsProgress(t *testing.T) {
	for _, kind := range []string{"bytes", "stream"} {
		for _, reads := range []bool{false, true} {
			inWorld(t, 2, clean, func(t *testing.T, w *world) {
				a, b, l := w.pair(nil, nil)
				want := content(1, 60_000)
				var from io.Reader = b
				if kind == "stream" {
					s, r := streamPair(t, a, b, nil)
					send(t, s, want)
					from = r
				} else {
					send(t, a, want)
				}
				for at := 0; at < 30_000; at += 1000 {
					time.Sleep(time.Second)
					if reads {
						receive(t, from, want[at:at+1000])
					}
					_, err := a.Ping(context.Background()) // the peer is there
					require.NoError(t, err)
				}
				h := b.session.Inside()
				require.Greater(t, h.Held().Load(), int64(30_000))
				rank := fair.RankOf(h.Held().Load(), h.Lately(l.ep.now()), false)
				require.Equal(t, !reads, rank.Holds(4), "%s, %d of %d", kind, h.Lately(l.ep.now()), h.Held().Load())
			})
		}
	}
}

// Who is ended for want of memory is told, on both sides, and what it held is
// free.
func TestEndedForMemory(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		l := w.listen(&Config{Limits: Limits{MaxBuffered: minMaxBuffered}})
		e, _ := w.endpoint("10.0.0.2:5000", nil)
		a := w.dial(e)
		w.net.SetFilter(func(_, _ netip.AddrPort, p []byte) bool {
			h := wire.DecodeHeader(p)
			return !carriesData(&h) || h.SN != 0
		})
		b := accepted(t, l)
		go func() { _, _ = a.Write(make([]byte, 1<<20)) }()
		time.Sleep(20 * time.Second)
		_, err := b.Read(make([]byte, 1))
		require.ErrorIs(t, err, ErrMemoryPressure)
		_, err = a.Read(make([]byte, 1))
		require.ErrorIs(t, err, ErrReset)
		require.Zero(t, l.Endpoint().Stats().Buffered)
		require.EqualValues(t, 1, l.Endpoint().Stats().EndedForMemory)
	})
}

// carriesData reports whether a segment is one of data, or a piece of one.
func carriesData(h *wire.Header) bool { return h.Cmd == wire.CmdPush || h.Cmd == wire.CmdPiece }

// Datagrams that wait for the cap of the rate are on the account of what waits to be
// sent.
func TestWhatWaitsForTheCapIsCounted(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, _, _ := w.pair(&Config{MaxRate: 20_000, FEC: FEC{Data: 1, Parity: 4}}, nil)
		for range recovery.MaxHeld {
			require.NoError(t, a.SendDatagram(make([]byte, 1000)))
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.session.Inside().AccountWrites()
		counted := a.ep.shared.Load.Written.Load()*session.WriteGrain - int64(a.session.Inside().Machine().Load().Memory)
		bytes := a.session.Inside().DatagramBytes()
		require.Greater(t, bytes, 10*session.WriteGrain)
		require.InEpsilon(t, bytes, counted, 0.2)
	})
}

// held has n peers hold memory, each in a session of its own, validated or not. It returns
// what is in use for one, and what is counted.
func (h *holder) held(w *world, l *Listener, n int, validated bool) (inUse, counted int64) {
	const packets = 60
	to := l.Addr().(*net.UDPAddr).AddrPort()
	tokens := map[netip.AddrPort]uint32{}
	w.net.SetFilter(func(_, to netip.AddrPort, p []byte) bool {
		for _, s := range signalsOf(p) {
			if s.Code == wire.Welcome {
				tokens[to] = s.SN
			}
		}
		return to.Addr().As4()[0] != 172
	})
	all := func(packet func(i int) []byte) {
		for i := range n {
			w.net.Inject(floodAddr(i), to, withConv(uint32(1000+i), packet(i)))
		}
	}
	all(func(int) []byte { return hello(9) })
	synctest.Wait()
	if validated {
		all(func(i int) []byte { return bytesOf(wire.Signal{Code: wire.Confirm, SN: tokens[floodAddr(i)], TS: 9}) })
		synctest.Wait()
		require.Equal(w.t, n, l.Endpoint().Stats().Backlog)
	}
	empty := memoryInUse()
	for j := range packets {
		all(func(int) []byte { return h.make(j) })
		time.Sleep(time.Millisecond)
	}
	synctest.Wait()
	inUse, counted = (memoryInUse()-empty)/int64(n), int64(l.Endpoint().Stats().Buffered/n)
	w.t.Logf("a session holds %d, counted %d", inUse, counted)
	if !validated {
		require.Equal(w.t, n, l.Endpoint().Stats().HalfOpen)
	}
	runtime.KeepAlive(l)
	return inUse, counted
}

// Whatever unvalidated peers send, each holds no more than 16 KiB beside its
// session, of the heap and not only by count.
func TestUnvalidatedPeersHoldLittle(t *testing.T) {
	t.Parallel()
	sequential(t)
	long(t)
	if !alone(t) {
		return
	}
	const n = 64
	for _, h := range holders {
		t.Run(h.name, func(t *testing.T) {
			inWorld(t, 2, clean, func(t *testing.T, w *world) {
				l := w.listen(&Config{ReceiveWindow: 65535, Limits: Limits{MaxHalfOpen: 4 * n, Backlog: 4 * n}})
				inUse, counted := h.held(w, l, n, false)
				require.LessOrEqual(t, counted, int64(machine.UnvalidatedBytes+session.HalfOpenBytes))
				require.Less(t, inUse, int64(machine.UnvalidatedBytes)+8<<10)
			})
		})
	}
}

// What proven peers have held is counted: no more is in use than that, but for sessions
// themselves, and not much less. What earlier tests have left on the heap may be freed at
// any time, so each is tried three times at most.
func TestHeldIsCounted(t *testing.T) {
	t.Parallel()
	long(t)
	if !alone(t) {
		return
	}
	const n, tries = 32, 3
	for _, h := range holders {
		t.Run(h.name, func(t *testing.T) {
			for try, good := 1, false; !good; try++ {
				inWorld(t, 2, clean, func(t *testing.T, w *world) {
					l := w.listen(&Config{ReceiveWindow: 65535, Limits: Limits{Backlog: 4 * n}})
					inUse, counted := h.held(w, l, n, true)
					most, least := counted+counted/2+12<<10, (counted-8<<10)/2
					good = inUse < most && inUse > least
					require.True(t, good || try < tries, "%d in use, not between %d and %d", inUse, least, most)
				})
			}
		})
	}
}

// A session that nothing new moves over releases its spare memory after a second, and not
// before.
func TestSpareMemoryIsReleased(t *testing.T) {
	inWorld(t, 3, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&Config{KeepAlive: -1}, &Config{KeepAlive: -1})
		want := content(3, 1<<16)
		send(t, a, want)
		receive(t, b, want)
		state := func() (sent, spare bool) {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.session.Inside().Machine().WaitSend() == 0, a.session.Inside().Machine().Inspect().Send > 0
		}
		for sent := false; !sent; time.Sleep(time.Millisecond) {
			sent, _ = state()
		}
		moved := time.Now()
		for spare := true; spare; time.Sleep(time.Millisecond) {
			_, spare = state()
		}
		require.InDelta(t, time.Second, time.Since(moved), float64(50*time.Millisecond))
	})
}

// The write buffer has its size, or twice what is in flight, up to 32 MiB.
func TestWriteBufferFollowsTheFlight(t *testing.T) {
	for flying, want := range map[int]int{0: 4 << 20, 2<<20 + 1: 4<<20 + 2, 16<<20 - 1: 32<<20 - 2, 17 << 20: 32 << 20} {
		require.Equal(t, want, session.WriteBufferFor(flying), "%d in flight", flying)
	}
}

// A session that was ended for want of memory has dropped what was not read. A call that
// reads returns that, and not the end of the peer's data, which has arrived too.
func TestDroppedDataIsNoEnd(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		writeAll(t, a, make([]byte, 100_000))
		require.NoError(t, a.CloseWrite())
		time.Sleep(time.Second)
		b.mu.Lock()
		all := b.session.Waiting().All
		b.mu.Unlock()
		require.True(t, all)
		require.True(t, b.shedMemory())
		n, err := b.Read(make([]byte, 10))
		require.Zero(t, n)
		require.ErrorIs(t, err, ErrMemoryPressure)
	})
}
