package takeover

import (
	"fmt"
	"testing"

	"github.com/arqnet/kcp/internal/udp"
	"github.com/stretchr/testify/require"
)

// predecessors returns some with one socket. Nobody listens to what they tell.
func predecessors(t *testing.T, n int) (s *Predecessors, list Retained, read []*Inbox) {
	s = new(Predecessors)
	for range n {
		from, to := feed(t)
		list = append(list, &Predecessor{feeds: []*Feed{from}, locals: true, inherit: func(Note) {}})
		read = append(read, NewInbox(to))
	}
	s.setLocked(list)
	return s, list, read
}

// arrived returns all that a predecessor has read, and ends it.
func arrived(t *testing.T, p *Predecessor, in *Inbox) (got []string) {
	t.Helper()
	p.close()
	batch := make([]udp.Datagram, 10)
	for {
		n, err := in.ReadBatch(batch)
		if err != nil {
			return got
		}
		for _, d := range batch[:n] {
			got = append(got, fmt.Sprint(d.Addr, " ", d.Local.Addr(), " ", string(d.Buf)))
		}
	}
}

// sealed returns a packet from an address, of an id.
func sealed(addr int, conv uint32) (d *udp.Datagram, p *Packet) {
	from := v4
	if addr > 0 {
		from = elsewhere
	}
	d = &udp.Datagram{Addr: from, Local: udp.LocalOf(v6.Addr()), Buf: []byte(fmt.Sprint("packet ", addr, " ", conv))}
	return d, &Packet{Addr: from, Conv: conv, Sort: Sealed}
}

// A packet goes to the process that has its session at its address, or else to all that
// have one of its id. What opening has changed is forwarded as it has arrived.
func TestForward(t *testing.T) {
	s, list, read := predecessors(t, 3)
	list[0].owned.Add(v6, 7, true)
	list[1].owned.Add(v4, 7, true)
	list[2].owned.Add(v6, 8, true)
	list[2].locals = false
	f := NewForwarder(0)
	forward := func(addr int, conv uint32) Whose {
		d, p := sealed(addr, conv)
		f.Keep(d.Buf)
		clear(d.Buf)
		return f.Forward(s, d, p)
	}
	require.Equal(t, Theirs, forward(0, 7))
	require.Equal(t, Perhaps, forward(1, 7))
	require.Equal(t, Perhaps, forward(1, 8))
	require.Equal(t, Own, forward(1, 9))
	f.Flush(s)
	local := v6.Addr().String()
	require.Equal(t, []string{"127.0.0.1:3 " + local + " packet 1 7"}, arrived(t, list[0], read[0]))
	require.Equal(t, []string{"127.0.0.1:1 " + local + " packet 0 7", "127.0.0.1:3 " + local + " packet 1 7"}, arrived(t, list[1], read[1]))
	require.Equal(t, []string{"127.0.0.1:3 invalid IP packet 1 8"}, arrived(t, list[2], read[2]))
	require.Equal(t, uint64(4), s.Forwarded.Load())
	require.Zero(t, s.Dropped.Load())
}

// What a process does not read is counted, and keeps nothing waiting.
func TestForwardDrops(t *testing.T) {
	s, list, read := predecessors(t, 1)
	list[0].owned.Add(v4, 7, true)
	f := NewForwarder(0)
	d, p := sealed(0, 7)
	d.Buf = make([]byte, 1400)
	for range 100_000 {
		require.Equal(t, Theirs, f.Forward(s, d, p))
	}
	f.Flush(s)
	n := len(arrived(t, list[0], read[0]))
	require.Equal(t, uint64(100_000), uint64(n)+s.Dropped.Load())
	require.Positive(t, n)
}

// Which process answers for a session in TIME-WAIT: the one that has its keys.
func TestKeeperOf(t *testing.T) {
	_, list, _ := predecessors(t, 2)
	list[0].owned.Add(v4, 1, true)
	list[1].owned.End(v4, 2, true)
	require.Equal(t, uint32(1), list.KeeperOf(v4, 1))
	require.Equal(t, uint32(2), list.KeeperOf(v4, 2))
	require.Zero(t, list.KeeperOf(v6, 1))
	require.Zero(t, list.KeeperOf(v4, 3))
	notes := list.AppendOwned(nil)
	require.Len(t, notes, 3)
	require.Equal(t, Note{Kind: Owns, Of: 1, Addr: v4, Conv: 1, Extended: true}, notes[0])
	require.Equal(t, Note{Kind: Ended, Of: 2, Addr: v4, Conv: 2, End: End{Mute: true}}, notes[2])
}
