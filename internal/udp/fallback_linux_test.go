package udp

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var everything = Features{Mmsg: true, GSO: true, GRO: true}

// newFastConn returns a Conn with all features, or skips the test.
func newFastConn(t *testing.T, pc *net.UDPConn) *fastConn {
	t.Helper()
	c := newConn(pc, everything)
	requireFeatures(t, everything, c)
	return c.(*fastConn)
}

// sendmmsg makes the system call.
func sendmmsg(fd uintptr, headers []header) (int, syscall.Errno) {
	return newPermitted(new(refusals)).sendmmsg(fd, headers)
}

// merged reports whether the kernel is to cut a packet.
func merged(h *header) bool { return h.Control != nil }

// refuseMerged lets merged packets fail, at their place among others.
func refuseMerged(errno syscall.Errno, calls *int) func(uintptr, []header) (int, syscall.Errno) {
	return func(fd uintptr, headers []header) (int, syscall.Errno) {
		for i := range headers {
			if !merged(&headers[i]) {
				continue
			}
			if i == 0 {
				*calls++
				return 0, errno
			}
			return sendmmsg(fd, headers[:i])
		}
		return sendmmsg(fd, headers)
	}
}

// Whatever a merged packet fails with, its datagrams are sent one by one, and
// nothing is lost, repeated or out of order. If merging was the cause, that is
// remembered of the address.
func TestMergedPacketFails(t *testing.T) {
	for _, test := range []struct {
		errno      syscall.Errno
		remembered int
	}{
		{unix.EIO, 1},
		{unix.EINVAL, 1},
		{unix.EMSGSIZE, 0},
		{unix.ENOBUFS, 0},
		{unix.EPERM, 0},
		{unix.ECONNREFUSED, 0},
	} {
		t.Run(test.errno.Error(), func(t *testing.T) {
			from, r := listen(t, "udp4", "127.0.0.1:0"), listen(t, "udp4", "127.0.0.1:0")
			sender := newFastConn(t, from)
			var told []RefusalError
			sender.OnRefusal(func(e error) { told = append(told, e.(RefusalError)) })
			failures := 0
			sender.sendmmsg = refuseMerged(test.errno, &failures)
			result := startCollecting(t, r, newConn(r, everything), 100)
			first := mixture(rand.New(rand.NewPCG(3, 4)), 300, addrOf(r))
			second := to(addrOf(r), times(100, 300)...)
			require.Empty(t, writeAll(sender, first))
			require.Equal(t, 1, failures, "a batch is not tried again and again")
			require.Empty(t, writeAll(sender, second))
			require.Equal(t, Merging{Refused: test.remembered}, sender.Merging())
			require.Equal(t, test.remembered == 1, failures == 1, "the socket remembers")
			require.Len(t, told, test.remembered)
			if test.remembered > 0 {
				require.Equal(t, RefusalError{addrOf(r).Addr(), test.errno}, told[0])
			}
			require.Empty(t, writeAll(sender, []Datagram{{Buf: []byte(lastWord), Addr: addrOf(r)}}))
			requirePackets(t, received(append(first, second...), addrOf(r), addrOf(from)), result())
		})
	}
}

// A socket is taken to be unable to merge once many addresses have refused, and none
// has not. Addresses are forgotten after some time, and the oldest first.
func TestRefusalsOfManyAddresses(t *testing.T) {
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
	synctest.Test(t, func(t *testing.T) {
		var m merging
		var told []RefusalError
		m.active.Store(true)
		m.tell(func(e error) { told = append(told, e.(RefusalError)) })
		for i := range provingRefusals - 1 {
			m.refuse(addr(i), unix.EIO)
			m.refuse(addr(i), unix.EIO)
			require.Len(t, told, i+1)
			require.Equal(t, Merging{Refused: i + 1}, m.state())
		}
		require.True(t, m.on())
		m.refuse(addr(1000), unix.EIO)
		require.False(t, m.on())
		require.Contains(t, m.state().Off, unix.EIO.Error())
		require.False(t, told[len(told)-1].To.IsValid())

		m = merging{}
		m.active.Store(true)
		m.worked()
		for i := range 3 * maxRefusals {
			m.refuse(addr(i), unix.EIO)
			require.Equal(t, Merging{Refused: min(i+1, maxRefusals)}, m.state())
			require.True(t, m.refuses(addr(i)))
			require.Equal(t, i < maxRefusals, m.refuses(addr(0)))
		}
		require.True(t, m.on())
		time.Sleep(refusalTime - 1)
		require.True(t, m.refuses(addr(3*maxRefusals-1)))
		time.Sleep(time.Nanosecond)
		require.False(t, m.refuses(addr(3*maxRefusals-1)))
		require.Equal(t, Merging{}, m.state())
		require.False(t, m.refusesAny())
	})
}

// A system that takes UDP_SEGMENT and does not segment is found out before anything
// is merged, also one that refuses to everybody. Where the trial cannot be made, it
// says nothing.
func TestTrialOfSegmentation(t *testing.T) {
	require.Empty(t, trySegmentation(sendmmsg))
	require.Contains(t, trySegmentation(func(fd uintptr, headers []header) (int, syscall.Errno) {
		headers[0].Control = nil
		headers[0].SetControllen(0)
		return sendmmsg(fd, headers)
	}), "does not segment")
	for _, errno := range []syscall.Errno{unix.EIO, unix.EINVAL} {
		require.Contains(t, trySegmentation(func(uintptr, []header) (int, syscall.Errno) { return 0, errno }), errno.Error())
	}
	require.Empty(t, trySegmentation(func(uintptr, []header) (int, syscall.Errno) { return 0, unix.ENETUNREACH }))
	require.Empty(t, trySegmentation(func(uintptr, []header) (int, syscall.Errno) { return 1, 0 }), "it is lost")
}

// A connected socket returns EMSGSIZE for an ICMP message about an earlier datagram.
// That says nothing of the one that is written.
func TestStaleErrorOfConnectedSocket(t *testing.T) {
	r := listen(t, "udp4", "127.0.0.1:0")
	c := newFastConn(t, dial(t, "udp4", "", addrOf(r)))
	stale := 0
	c.sendto = func(fd uintptr, packet []byte, name *sockaddr, n uint32) syscall.Errno {
		if stale++; stale%2 == 1 {
			return unix.EMSGSIZE
		}
		return sendto(fd, packet, name, n)
	}
	c.sendmmsg = func(fd uintptr, headers []header) (int, syscall.Errno) {
		if stale++; stale%2 == 1 {
			return 0, unix.EMSGSIZE
		}
		return sendmmsg(fd, headers[:1])
	}
	require.Empty(t, writeAll(c, to(addrOf(r), 100)))
	require.Empty(t, writeAll(c, to(addrOf(r), 100, 200, 300, 300, 300)))
	for _, want := range []int{100, 100, 200, 300, 300, 300} {
		n, err := r.Read(make([]byte, 1000))
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	c.sendto = func(uintptr, []byte, *sockaddr, uint32) syscall.Errno { return unix.EMSGSIZE }
	c.sendmmsg = func(uintptr, []header) (int, syscall.Errno) { return 0, unix.EMSGSIZE }
	require.Len(t, writeAll(c, to(addrOf(r), 100)), 1)
	require.Len(t, writeAll(c, to(addrOf(r), 100, 200)), 2)
}

// The kernel may send less than it was given, and say nothing.
func TestPartialSend(t *testing.T) {
	from, r := listen(t, "udp4", "127.0.0.1:0"), listen(t, "udp4", "127.0.0.1:0")
	c := newFastConn(t, from)
	interrupted := false
	c.sendmmsg = func(fd uintptr, headers []header) (int, syscall.Errno) {
		if interrupted = !interrupted; interrupted {
			return 0, unix.EINTR
		}
		return sendmmsg(fd, headers[:(len(headers)+1)/2])
	}
	result := startCollecting(t, r, newConn(r, everything), 100)
	batch := mixture(rand.New(rand.NewPCG(5, 6)), 700, addrOf(r))
	n, err := c.WriteBatch(batch)
	require.NoError(t, err)
	require.Equal(t, len(batch), n)
	require.Empty(t, writeAll(c, []Datagram{{Buf: []byte(lastWord), Addr: addrOf(r)}}))
	requirePackets(t, received(batch, addrOf(r), addrOf(from)), result())
}

// full is a system call that finds the socket full, after some packets.
func full(after int) func(uintptr, []header) (int, syscall.Errno) {
	return func(fd uintptr, headers []header) (int, syscall.Errno) {
		if after == 0 {
			return 0, unix.EAGAIN
		}
		after--
		return sendmmsg(fd, headers[:1])
	}
}

// requireWaiting fails the test if the call has returned that sends to failed.
func requireWaiting(t *testing.T, failed <-chan error) {
	t.Helper()
	select {
	case err := <-failed:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
}

// A writer waits for room. Deadlines and Close wake it, and it knows how far it
// has come.
func TestFullSocketWakesUp(t *testing.T) {
	for _, test := range []struct {
		name string
		wake func(pc *net.UDPConn) error
		want error
	}{
		{"deadline", func(pc *net.UDPConn) error { return pc.SetWriteDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded},
		{"close", (*net.UDPConn).Close, net.ErrClosed},
	} {
		t.Run(test.name, func(t *testing.T) {
			pc := listen(t, "udp4", "127.0.0.1:0")
			c := newFastConn(t, pc)
			c.sendmmsg = full(2)
			var n int
			failed := make(chan error, 1)
			go func() {
				var err error
				n, err = c.WriteBatch(to(addrOf(pc), 100, 100, 50, 200, 200, 200, 300))
				failed <- err
			}()
			requireWaiting(t, failed)
			require.NoError(t, test.wake(pc))
			require.ErrorIs(t, <-failed, test.want)
			require.Equal(t, 6, n, "datagrams in two packets")
		})
		t.Run(test.name+", single", func(t *testing.T) {
			pc := listen(t, "udp4", "127.0.0.1:0")
			c := newFastConn(t, pc)
			asked := make(chan struct{}, 100)
			c.sendto = func(uintptr, []byte, *sockaddr, uint32) syscall.Errno {
				asked <- struct{}{}
				return unix.EAGAIN
			}
			failed := make(chan error, 1)
			go func() {
				_, err := c.WriteBatch(to(addrOf(pc), 100))
				failed <- err
			}()
			<-asked
			<-asked // when nothing else writes
			requireWaiting(t, failed)
			require.NoError(t, test.wake(pc))
			require.ErrorIs(t, <-failed, test.want)
		})
	}
}

// A single datagram is sent although another writer waits for the socket, and
// also if the system call was interrupted, or found the socket full at first.
func TestSingleSend(t *testing.T) {
	from, r := listen(t, "udp4", "127.0.0.1:0"), listen(t, "udp4", "127.0.0.1:0")
	c := newFastConn(t, from)
	result := startCollecting(t, r, newConn(r, everything), 4)
	single := func(data string) {
		n, err := c.WriteBatch([]Datagram{{Buf: []byte(data), Addr: addrOf(r)}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	errnos := []syscall.Errno{unix.EINTR, unix.EAGAIN, unix.EINTR}
	c.sendto = func(fd uintptr, packet []byte, name *sockaddr, n uint32) syscall.Errno {
		if len(errnos) > 0 {
			errno := errnos[0]
			errnos = errnos[1:]
			return errno
		}
		return sendto(fd, packet, name, n)
	}
	single("at last")
	require.Empty(t, errnos)

	waits := make(chan struct{})
	began := sync.OnceFunc(func() { close(waits) })
	c.sendmmsg = func(uintptr, []header) (int, syscall.Errno) {
		began()
		return 0, unix.EAGAIN
	}
	ended := make(chan error, 1)
	go func() {
		_, err := c.WriteBatch(to(addrOf(r), 10, 20))
		ended <- err
	}()
	<-waits
	single("at once")
	single(strings.Repeat("a long one", shortCall/10+1))
	single(lastWord)
	var want []packet
	for _, data := range []string{"at last", "at once", strings.Repeat("a long one", shortCall/10+1)} {
		want = append(want, packet{data, addrOf(from)})
	}
	require.Equal(t, want, result())
	require.NoError(t, from.Close())
	require.ErrorIs(t, <-ended, net.ErrClosed)
	_, err := c.WriteBatch(to(addrOf(r), 10))
	require.ErrorIs(t, err, net.ErrClosed)
	_, std := from.WriteToUDPAddrPort([]byte{1}, addrOf(r))
	require.Equal(t, std.Error(), err.Error(), "as package net says it")
}

func TestEnvironment(t *testing.T) {
	newFastConn(t, listen(t, "udp4", "127.0.0.1:0")) // or skip
	for _, test := range []struct {
		variable, value string
		want            Features
	}{
		{"KCP_DISABLE_GSO", "1", Features{Mmsg: true, GRO: true}},
		{"KCP_DISABLE_GRO", "1", Features{Mmsg: true, GSO: true}},
		{"KCP_DISABLE_MMSG", "1", Features{}},
		{"KCP_DISABLE_GSO", "0", everything},
		{"KCP_DISABLE_GRO", "", everything},
	} {
		t.Run(test.variable+"="+test.value, func(t *testing.T) {
			for _, name := range []string{"KCP_DISABLE_GSO", "KCP_DISABLE_GRO", "KCP_DISABLE_MMSG"} {
				t.Setenv(name, "") // whatever the tests run with
			}
			t.Setenv(test.variable, test.value)
			require.Equal(t, test.want, New(listen(t, "udp4", "127.0.0.1:0")).Features())
		})
	}
	require.Equal(t, "mmsg+gso+gro", everything.String())
	require.Equal(t, "portable", Features{}.String())
}

// Another reader of the socket, after us, is not handed joined packets; one who
// has asked for them before us still is.
func TestRelease(t *testing.T) {
	option := func(pc *net.UDPConn) (on int) {
		raw, err := pc.SyscallConn()
		require.NoError(t, err)
		require.NoError(t, raw.Control(func(fd uintptr) {
			on, err = unix.GetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_GRO)
		}))
		require.NoError(t, err)
		return on
	}
	pc := listen(t, "udp4", "127.0.0.1:0")
	outer := newFastConn(t, pc)
	require.Equal(t, 1, option(pc))
	inner := newFastConn(t, pc)
	require.NoError(t, inner.Release())
	require.Equal(t, 1, option(pc), "as it was found")
	require.NoError(t, outer.Release())
	require.Equal(t, 0, option(pc))

	from := newFastConn(t, listen(t, "udp4", "127.0.0.1:0"))
	require.Empty(t, writeAll(from, to(addrOf(pc), 100, 100)))
	for range 2 {
		n, _, err := pc.ReadFromUDPAddrPort(make([]byte, 1000))
		require.NoError(t, err)
		require.Equal(t, 100, n)
	}

	on := newFastConn(t, pc)
	require.Equal(t, 1, option(pc))
	off := newConn(pc, Features{Mmsg: true})
	require.Equal(t, 0, option(pc), "switched off where it was on")
	require.NoError(t, off.Release())
	require.Equal(t, 1, option(pc), "and on again")
	require.NoError(t, on.Release())
	require.NoError(t, pc.Close())
	require.Error(t, on.Release())
}

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Lack of processor time", "1 s after", delayedFor},
		{"| Lack of processor time", "5 ms", delayedBy},
		{"| Lack of processor time", "16 KiB", shortCall},
		{"| After a batch", "32 KiB", BurstLeast},
		{"| After a batch", "512 KiB", burstMost},
		{"| A dialled socket's route", "each 500 ms", routeIdle},
		{"| It is connected again", "3 checks", confirmations},
	})
}
