package takeover

import (
	"io"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/udp"
	"github.com/stretchr/testify/require"
)

// pipes returns the two ends of a Pipe.
func pipes(t *testing.T) (a, b *Pipe) {
	t.Helper()
	a, fd, err := NewPipe()
	require.NoError(t, err)
	b, err = OpenPipe(fd)
	require.NoError(t, err)
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// feed returns both ends of a Pipe, of which one only writes.
func feed(t *testing.T) (from *Feed, to *Pipe) {
	t.Helper()
	to, fd, err := NewPipe()
	require.NoError(t, err)
	from, err = OpenFeed(fd)
	require.NoError(t, err)
	t.Cleanup(func() { from.Close(); to.Close() })
	return from, to
}

// The netpoller does not have the end that only writes: a deadline would work then.
func TestFeedIsNotPolled(t *testing.T) {
	from, to := feed(t)
	require.ErrorIs(t, from.f.SetDeadline(time.Now()), os.ErrNoDeadline)
	require.NoError(t, to.conn.SetDeadline(time.Now()))
}

// Datagrams arrive whole, in order, and from whom they came, however they are batched.
func TestDatagramsThroughPipe(t *testing.T) {
	a, b := feed(t)
	var out Outbox
	var want []udp.Datagram
	for i := range 300 {
		d := udp.Datagram{Addr: v4, Buf: make([]byte, i*7%1500)}
		if i%2 == 0 {
			d.Addr = v6
		}
		if i%3 == 0 {
			d.Local = udp.LocalOf([]netip.AddrPort{v6, v4}[i%2].Addr())
		}
		for j := range d.Buf {
			d.Buf[j] = byte(i + j)
		}
		want = append(want, d)
		require.Zero(t, out.Put(a, &d))
	}
	require.Zero(t, out.Flush(a))
	a.Close()
	in, batch := NewInbox(b), make([]udp.Datagram, 7)
	for {
		n, err := in.ReadBatch(batch)
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		for _, d := range batch[:n] {
			require.Equal(t, want[0].Addr, d.Addr)
			require.Equal(t, want[0].Local, d.Local)
			require.Equal(t, string(want[0].Buf), string(d.Buf))
			require.Len(t, d.Buf, cap(d.Buf))
			want = want[1:]
		}
	}
	require.Empty(t, want)
}

// Malformed messages are skipped. The largest datagram is not one.
func TestMalformedMessages(t *testing.T) {
	a, b := feed(t)
	for _, message := range [][]byte{{0}, {6, 127, 0}, {255}, {255, 3, 1}, {255, 0, 0, 0}, {0, 1, 0, 'x'}, make([]byte, 200<<10)} {
		require.True(t, a.TryWrite(message))
	}
	var out Outbox
	want := udp.Datagram{Addr: v6, Local: udp.LocalOf(v6.Addr()), Buf: make([]byte, 65535)}
	want.Buf[65534] = 1
	require.Zero(t, out.Put(a, &want)+out.Flush(a))
	batch := make([]udp.Datagram, 3)
	n, err := NewInbox(b).ReadBatch(batch)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, want.Addr, batch[0].Addr)
	require.Equal(t, string(want.Buf), string(batch[0].Buf))
}

// What was written before the end is read, also if the end leaves something unread.
func TestEndWithUnread(t *testing.T) {
	a, b := pipes(t)
	require.True(t, b.TryWrite([]byte("unread")))
	require.True(t, a.TryWrite([]byte("last")))
	a.Close()
	buf := make([]byte, 10)
	n, err := b.Read(buf)
	require.NoError(t, err)
	require.Equal(t, "last", string(buf[:n]))
	_, err = b.Read(buf)
	require.ErrorIs(t, err, io.EOF)
}

// Descriptors that are something else are refused, and closed.
func TestOtherDescriptors(t *testing.T) {
	open := func() int {
		f, err := os.Open(os.DevNull)
		require.NoError(t, err)
		fd, err := Duplicate(f)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		return fd
	}
	before := open()
	CloseFiles([]int{before})
	_, err := OpenPipe(open())
	require.Error(t, err)
	_, err = OpenFeed(open())
	require.Error(t, err)
	_, err = OpenSocket(open())
	require.Error(t, err)
	after := open()
	CloseFiles([]int{after})
	require.Equal(t, before, after)
	_, err = OpenPipe(-1)
	require.Error(t, err)
	_, err = OpenFeed(-1)
	require.Error(t, err)
	_, err = OpenSocket(-1)
	require.Error(t, err)
}
