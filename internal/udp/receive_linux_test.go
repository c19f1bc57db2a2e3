package udp

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// message returns a control message of UDP with data in the machine's order.
func message(typ int, value int32, size int) []byte {
	b := make([]byte, unix.CmsgSpace(size))
	putControlHeader(b, typ, size)
	if size >= 4 {
		*(*int32)(unsafe.Pointer(&b[unix.CmsgLen(0)])) = value
	}
	return b
}

func TestSegmentSize(t *testing.T) {
	gro := message(unix.UDP_GRO, 1400, 4)
	other := message(99, 7, 13)
	huge := message(unix.UDP_GRO, 1400, 4)
	(*unix.Cmsghdr)(unsafe.Pointer(&huge[0])).SetLen(1 << 20)
	tiny := message(99, 7, 4)
	(*unix.Cmsghdr)(unsafe.Pointer(&tiny[0])).SetLen(0)
	for _, test := range []struct {
		name    string
		control []byte
		want    int
	}{
		{"none", nil, 0},
		{"alone", gro, 1400},
		{"behind another", append(append([]byte{}, other...), gro...), 1400},
		{"before another", append(append([]byte{}, gro...), other...), 1400},
		{"another", other, 0},
		{"half a header", gro[:unix.SizeofCmsghdr-1], 0},
		{"header only", gro[:unix.SizeofCmsghdr], 0},
		{"too short", message(unix.UDP_GRO, 0, 2), 0},
		{"length beyond the end", huge, 0},
		{"length of nothing", append(tiny, gro...), 0},
		{"negative", message(unix.UDP_GRO, -1, 4), -1},
	} {
		require.Equal(t, test.want, segmentSize(test.control), test.name)
	}
}

func TestSockaddr(t *testing.T) {
	for _, test := range []struct {
		family int
		addr   string
		size   uint32
		want   string
	}{
		{unix.AF_INET, "192.0.2.1:258", unix.SizeofSockaddrInet4, "192.0.2.1:258"},
		{unix.AF_INET, "[::ffff:192.0.2.1]:258", unix.SizeofSockaddrInet4, "192.0.2.1:258"},
		{unix.AF_INET, "[2001:db8::1]:258", 0, ""},
		{unix.AF_INET6, "[2001:db8::1]:258", unix.SizeofSockaddrInet6, "[2001:db8::1]:258"},
		{unix.AF_INET6, "192.0.2.1:258", unix.SizeofSockaddrInet6, "192.0.2.1:258"},
		{unix.AF_INET6, "[::ffff:192.0.2.1]:258", unix.SizeofSockaddrInet6, "192.0.2.1:258"},
	} {
		s := sockaddr{}
		for i := range s {
			s[i] = 0xee // of whoever was there before
		}
		size := s.put(test.family, netip.MustParseAddrPort(test.addr), 0)
		require.Equal(t, test.size, size, test.addr)
		if size == 0 {
			continue
		}
		addr, port, scope := s.get(size)
		require.Equal(t, test.want, netip.AddrPortFrom(addr, port).String())
		require.Zero(t, scope)
	}
	var s sockaddr
	size := s.put(unix.AF_INET6, netip.MustParseAddrPort("[fe80::1%x]:1"), 7)
	raw := (*unix.RawSockaddrInet6)(unsafe.Pointer(&s)) // any alignment will do for a look
	require.EqualValues(t, unix.AF_INET6, raw.Family)
	require.EqualValues(t, 7, raw.Scope_id)
	addr, _, scope := s.get(size)
	require.Equal(t, "fe80::1", addr.String(), "the zone is added by the caller")
	require.EqualValues(t, 7, scope)
	require.Zero(t, s.put(unix.AF_INET6, netip.AddrPort{}, 0))
	addr, _, _ = s.get(0)
	require.False(t, addr.IsValid())
	addr, _, _ = new(sockaddr).get(unix.SizeofSockaddrInet6)
	require.False(t, addr.IsValid(), "of no family")
}

// A packet whose datagrams cannot be told apart is dropped; the next is not.
func TestLostControlMessage(t *testing.T) {
	c := newFastConn(t, listen(t, "udp4", "127.0.0.1:0"))
	r := &c.in
	r.first = make([]byte, readBufferSize)
	r.others = new(slab)
	r.filled = 2
	for i := range r.headers[:2] {
		r.headers[i].size = 100
		r.headers[i].SetControllen(0)
	}
	r.headers[0].Flags = unix.MSG_CTRUNC
	batch := make([]Datagram, 4)
	require.Equal(t, 1, r.deal(batch))
	require.Same(t, &r.others[0][0], &batch[0].Buf[0])
}

// In dense traffic a socket has more buffers, and as soon as it waits it has
// not.
func TestBuffersFollowTraffic(t *testing.T) {
	from, r := listen(t, "udp4", "127.0.0.1:0"), listen(t, "udp4", "127.0.0.1:0")
	sender, receiver := newConn(from, Features{Mmsg: true}), newFastConn(t, r)
	batch := make([]Datagram, receiver.BatchSize())
	read := func() int {
		n, err := receiver.ReadBatch(batch)
		require.NoError(t, err)
		return n
	}
	for range 2 * denseAfter { // one at a time
		time.AfterFunc(2*time.Millisecond, func() { _, _ = sender.WriteBatch(to(addrOf(r), 100)) })
		require.Equal(t, 1, read())
		require.Nil(t, receiver.in.others)
	}
	var many []Datagram
	for i := range 500 {
		many = append(many, Datagram{Buf: fmt.Appendf(nil, "%d", i), Addr: addrOf(r)})
	}
	require.Empty(t, writeAll(sender, many))
	most := 0
	for i := 0; i < len(many); {
		n := read()
		most = max(most, n)
		for _, d := range batch[:n] {
			require.Equal(t, fmt.Sprint(i), string(d.Buf))
			i++
		}
	}
	require.Equal(t, maxSlots, most)
	require.NotNil(t, receiver.in.others)
	require.NoError(t, r.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
	_, err := receiver.ReadBatch(batch)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Nil(t, receiver.in.others, "it has waited")
	for i := range receiver.in.vectors[1:] {
		require.Nil(t, receiver.in.vectors[1+i].Base)
	}
}

func TestIdleSocketIsSmall(t *testing.T) {
	const sockets, limit = 50, 96 << 10
	heap := func() int64 {
		runtime.GC()
		runtime.GC() // pools forget at the second
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	peer := listen(t, "udp4", "127.0.0.1:0")
	before := heap()
	var conns []*fastConn
	waiting := make(chan error, sockets)
	for range sockets {
		pc := listen(t, "udp4", "127.0.0.1:0")
		c := newFastConn(t, pc)
		conns = append(conns, c)
		_, err := peer.WriteToUDPAddrPort([]byte("x"), addrOf(pc))
		require.NoError(t, err)
		batch := make([]Datagram, c.BatchSize())
		_, err = c.ReadBatch(batch)
		require.NoError(t, err)
		go func() {
			_, err := c.ReadBatch(batch)
			waiting <- err
		}()
	}
	each := (heap() - before) / sockets
	t.Logf("%d bytes for each idle socket", each)
	require.Less(t, each, int64(limit))
	for _, c := range conns {
		require.NoError(t, c.pc.(io.Closer).Close())
		require.Error(t, <-waiting)
	}
}

func TestZones(t *testing.T) {
	var z zones
	index := z.index("lo")
	require.NotZero(t, index)
	require.Equal(t, "lo", z.name(index))
	require.EqualValues(t, 4711, z.index("4711"), "a number stands for itself")
	require.Equal(t, "4711", z.name(4711))
	require.Zero(t, z.index("no such interface"))
	z.asked = time.Now().Add(-2 * zonesLast)
	require.Equal(t, index, z.index("lo"))
	require.Less(t, time.Since(z.asked), zonesLast, "asked again")
	require.Zero(t, testing.AllocsPerRun(10, func() { z.index("lo"); z.name(index) }))
}
