package e2e

import (
	"net"
	"net/netip"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/testenv"
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
	{"pings", func(i int) []byte { return testenv.SegmentOf(wire.Signal{Code: wire.Ping, SN: uint32(i), TS: 1}) }},
}

// Who is ended for want of memory is told, on both sides, and what it held is
// free.
func TestEndedForMemory(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		l := w.listen(&kcp.Config{Limits: kcp.Limits{MaxBuffered: 1 << 16}})
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
		require.ErrorIs(t, err, kcp.ErrMemoryPressure)
		_, err = a.Read(make([]byte, 1))
		require.ErrorIs(t, err, kcp.ErrReset)
		require.Zero(t, l.Endpoint().Stats().Buffered)
		require.EqualValues(t, 1, l.Endpoint().Stats().EndedForMemory)
	})
}

// carriesData reports whether a segment is one of data, or a piece of one.
func carriesData(h *wire.Header) bool { return h.Cmd == wire.CmdPush || h.Cmd == wire.CmdPiece }

// held has n peers hold memory, each in a session of its own, validated or not. It returns
// what is in use for one, and what is counted.
func (h *holder) held(w *world, l *kcp.Listener, n int, validated bool) (inUse, counted int64) {
	const packets = 60
	to := l.Addr().(*net.UDPAddr).AddrPort()
	tokens := map[netip.AddrPort]uint32{}
	w.net.SetFilter(func(_, to netip.AddrPort, p []byte) bool {
		for _, s := range testenv.SignalsOf(p) {
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
	all(func(int) []byte { return helloSegment(9) })
	synctest.Wait()
	if validated {
		all(func(i int) []byte {
			return testenv.SegmentOf(wire.Signal{Code: wire.Confirm, SN: tokens[floodAddr(i)], TS: 9})
		})
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
				l := w.listen(&kcp.Config{ReceiveWindow: 65535, Limits: kcp.Limits{MaxHalfOpen: 4 * n, Backlog: 4 * n}})
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
					l := w.listen(&kcp.Config{ReceiveWindow: 65535, Limits: kcp.Limits{Backlog: 4 * n}})
					inUse, counted := h.held(w, l, n, true)
					most, least := counted+counted/2+12<<10, (counted-8<<10)/2
					good = inUse < most && inUse > least
					require.True(t, good || try < tries, "%d in use, not between %d and %d", inUse, least, most)
				})
			}
		})
	}
}

// The write buffer has its size, or twice what is in flight, up to 32 MiB.
func TestWriteBufferFollowsTheFlight(t *testing.T) {
	for flying, want := range map[int]int{0: 4 << 20, 2<<20 + 1: 4<<20 + 2, 16<<20 - 1: 32<<20 - 2, 17 << 20: 32 << 20} {
		require.Equal(t, want, session.WriteBufferFor(flying), "%d in flight", flying)
	}
}
