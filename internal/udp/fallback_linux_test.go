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
	"time"

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
// nothing is lost, repeated or out of order.
func TestMergedPacketFails(t *testing.T) {
	for _, test := range []struct {
		errno   syscall.Errno
		givesUp bool
	}{
		{unix.EIO, true},
		{unix.EINVAL, true},
		{unix.EMSGSIZE, false},
		{unix.ENOBUFS, false},
		{unix.EPERM, false},
		{unix.ECONNREFUSED, false},
	} {
		t.Run(test.errno.Error(), func(t *testing.T) {
			from, r := listen(t, "udp4", "127.0.0.1:0"), listen(t, "udp4", "127.0.0.1:0")
			sender := newFastConn(t, from)
			failures := 0
			sender.sendmmsg = refuseMerged(test.errno, &failures)
			result := startCollecting(t, r, newConn(r, everything), 100)
			first := mixture(rand.New(rand.NewPCG(3, 4)), 300, addrOf(r))
			second := to(addrOf(r), times(100, 300)...)
			require.Empty(t, writeAll(sender, first))
			require.Equal(t, 1, failures, "a batch is not tried again and again")
			require.Empty(t, writeAll(sender, second))
			require.Equal(t, !test.givesUp, sender.Features().GSO)
			require.Equal(t, test.givesUp, failures == 1, "the socket remembers")
			require.Empty(t, writeAll(sender, []Datagram{{Buf: []byte(lastWord), Addr: addrOf(r)}}))
			requirePackets(t, received(append(first, second...), addrOf(r), addrOf(from)), result())
		})
	}
}

// What is wrong with the datagram itself says nothing about merging. Anyone
// can have us answer to port 0.
func TestBadDestinationDoesNotEndMerging(t *testing.T) {
	c := newFastConn(t, listen(t, "udp4", "127.0.0.1:0"))
	nowhere := netip.MustParseAddrPort("127.0.0.1:0")
	errs := writeAll(c, to(nowhere, times(10, 100)...))
	require.Len(t, errs, 10)
	for _, err := range errs {
		require.ErrorIs(t, err, unix.EINVAL)
	}
	require.True(t, c.Features().GSO)
}

// An error of a datagram in the middle, of whatever kind, is returned with its
// index, and is no reason to give anything up.
func TestEachErrorIsReturned(t *testing.T) {
	for _, errno := range []syscall.Errno{unix.EMSGSIZE, unix.ENOBUFS, unix.EPERM, unix.ECONNREFUSED, unix.EIO, unix.EINVAL} {
		t.Run(errno.Error(), func(t *testing.T) {
			from, r := listen(t, "udp4", "127.0.0.1:0"), listen(t, "udp4", "127.0.0.1:0")
			c := newFastConn(t, from)
			bad := func(h *header) bool { return h.Iov.Len == 77 && !merged(h) }
			c.sendmmsg = func(fd uintptr, headers []header) (int, syscall.Errno) {
				for i := range headers {
					if bad(&headers[i]) && i == 0 {
						return 0, errno
					}
					if bad(&headers[i]) {
						return sendmmsg(fd, headers[:i])
					}
				}
				return sendmmsg(fd, headers)
			}
			result := startCollecting(t, r, newConn(r, everything), 100)
			batch := append(to(addrOf(r), 100, 100, 50, 77, 100, 100), Datagram{Buf: []byte(lastWord), Addr: addrOf(r)})
			errs := writeAll(c, batch)
			require.Len(t, errs, 1)
			require.ErrorIs(t, errs[3], errno)
			require.Len(t, result(), 5)
			require.True(t, c.Features().GSO)
		})
	}
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
	require.NoError(t, pc.SetReadDeadline(time.Now().Add(patience)))
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
