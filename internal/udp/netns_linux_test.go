package udp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/arqnet/kcp/internal/testenv/netns"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// namespace is a thread with a network of its own.
type namespace struct{ *netns.Host }

// do runs f in the namespace. f must not end the test.
func (ns *namespace) do(t *testing.T, f func() error) {
	t.Helper()
	require.NoError(t, ns.Do(f))
}

// socket opens a socket in the namespace.
func (ns *namespace) socket(t *testing.T, network, address string) (pc *net.UDPConn) {
	t.Helper()
	ns.do(t, func() error {
		addr, err := net.ResolveUDPAddr(network, address)
		if err != nil {
			return err
		}
		pc, err = net.ListenUDP(network, addr)
		return err
	})
	return prepare(t, pc)
}

// waitRunning waits until the interface takes packets, which is some time after
// both ends were switched on.
func (ns *namespace) waitRunning(t *testing.T) {
	t.Helper()
	ns.do(t, func() error {
		for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			v0, err := net.InterfaceByName("v0")
			if err != nil {
				return err
			}
			if v0.Flags&net.FlagRunning != 0 {
				return nil
			}
			if time.Now().After(end) {
				return fmt.Errorf("the interface is %v", v0.Flags)
			}
		}
	})
}

// cable makes two namespaces with a cable between: 10.9.0.1, fd09::1 and
// fe80::1%v0 at one end, 10.9.0.2, fd09::2 and fe80::2%v0 at the other. The two
// interfaces have one name and number, since package net remembers these for
// all namespaces alike.
func cable(t *testing.T) (a, b *namespace) {
	t.Helper()
	a, b = &namespace{netns.New(t)}, &namespace{netns.New(t)}
	a.Try(t, "ip link add v0 index 77 type veth peer name v0 index 77 netns "+b.Path)
	for i, ns := range []*namespace{a, b} {
		ns.Try(t, fmt.Sprintf(`
			ip link set lo up
			ip link set v0 addrgenmode none address 02:00:00:00:00:0%[1]d
			ip link set v0 up
			ip addr add 10.9.0.%[1]d/24 dev v0
			ip addr add fd09::%[1]d/64 dev v0 nodad
			ip addr add fe80::%[1]d/64 dev v0 nodad
			ip neigh add 10.9.0.%[2]d lladdr 02:00:00:00:00:0%[2]d dev v0
			ip neigh add fd09::%[2]d lladdr 02:00:00:00:00:0%[2]d dev v0
			ip neigh add fe80::%[2]d lladdr 02:00:00:00:00:0%[2]d dev v0`, 1+i, 2-i))
	}
	for _, ns := range []*namespace{a, b} {
		ns.waitRunning(t)
	}
	return a, b
}

// Commands of the kernel's ethtool interface.
const (
	setTSO = 0x1f // ETHTOOL_STSO
	setGRO = 0x2c // ETHTOOL_SGRO
)

// ethtool changes a feature of the interface.
func (ns *namespace) ethtool(t *testing.T, command, value uint32) {
	t.Helper()
	argument := struct{ command, value uint32 }{command, value} // struct ethtool_value
	request := struct {                                         // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [24]byte
	}{data: unsafe.Pointer(&argument)}
	copy(request.name[:], "v0")
	var failed error
	ns.do(t, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
		if errno != 0 {
			failed = fmt.Errorf("ethtool command %#x: %w", command, errno)
		}
		return unix.Close(fd)
	})
	if failed != nil {
		t.Skip(failed)
	}
}

// What the sender merges is cut on the way, and joined again at the other end,
// as between two hosts.
func TestCutAndJoinedOnTheWay(t *testing.T) {
	a, b := cable(t)
	a.Try(t, "ip link set v0 gso_max_segs 1")
	a.ethtool(t, setTSO, 0) // else the other end takes packets as they are
	b.ethtool(t, setGRO, 1)
	for _, sending := range combinations {
		t.Run(sending.String(), func(t *testing.T) {
			from, r := a.socket(t, "udp4", "10.9.0.1:0"), b.socket(t, "udp4", "10.9.0.2:0")
			receiver := newFastConn(t, r)
			batch := to(addrOf(r), times(1000, 1400)...)
			for i := range batch {
				binary.BigEndian.PutUint32(batch[i].Buf, uint32(i))
			}
			require.Empty(t, writeAll(newConn(from, sending), batch))
			got, joined := make([]Datagram, 1), 0
			for i := range batch {
				_, err := receiver.ReadBatch(got)
				require.NoError(t, err)
				require.True(t, bytes.Equal(batch[i].Buf, got[0].Buf), "datagram %d", i)
				if receiver.in.open && receiver.in.size == 1400 {
					joined++ // with the next
				}
			}
			t.Logf("%d datagrams came joined with the next", joined)
			if sending.GSO { // others send too slowly to be joined
				require.NotZero(t, joined)
			}
		})
	}
}

// All combinations work over an interface that is not the loopback one, with
// each kind of address.
func TestOverCable(t *testing.T) {
	a, b := cable(t)
	for _, test := range []struct{ network, from, to string }{
		{"udp4", "10.9.0.1:0", "10.9.0.2:0"},
		{"udp6", "[fd09::1]:0", "[fd09::2]:0"},
		{"udp6", "[fe80::1%v0]:0", "[fe80::2%v0]:0"},
	} {
		for _, sending := range combinations {
			for _, receiving := range combinations {
				name := fmt.Sprintf("%s %s %v to %v", test.network, test.from, sending, receiving)
				t.Run(name, func(t *testing.T) {
					from := a.socket(t, test.network, test.from)
					r := b.socket(t, test.network, test.to)
					receiver := newConn(r, receiving)
					testCable(t, a, newConn(from, sending), addrOf(from), b, receiver, r)
				})
			}
		}
	}
}

// testCable sends from one end to the other. Both ends are at work in their
// namespaces, since the names of interfaces are looked up there.
func testCable(t *testing.T, a *namespace, sender Conn, from netip.AddrPort, b *namespace, receiver Conn, r *net.UDPConn) {
	batch := mixture(rand.New(rand.NewPCG(7, 8)), 100, addrOf(r))
	for i := range batch {
		batch[i].Cut = len(batch[i].Buf) > 1400 // than the interface takes
	}
	a.do(t, func() error {
		if errs := writeAll(sender, batch); len(errs) > 0 {
			return fmt.Errorf("%v", errs)
		}
		_, err := sender.WriteBatch([]Datagram{{Buf: []byte(lastWord), Addr: addrOf(r)}})
		return err
	})
	var got []packet
	b.do(t, func() (err error) {
		got, err = collect(r, receiver, receiver.BatchSize())
		return err
	})
	requirePackets(t, received(batch, addrOf(r), from), got)
}

// A writer that is faster than the interface waits for room in the socket, and
// goes on where it was.
func TestWriterWaitsForInterface(t *testing.T) {
	a, b := cable(t)
	a.Try(t, `
		tc qdisc add dev v0 root handle 1: htb default 1
		tc class add dev v0 parent 1: classid 1:1 htb rate 40mbit`)
	for _, features := range combinations {
		t.Run(features.String(), func(t *testing.T) {
			from, r := a.socket(t, "udp4", "10.9.0.1:0"), b.socket(t, "udp4", "10.9.0.2:0")
			require.NoError(t, from.SetWriteBuffer(100_000))
			sender := newConn(from, features)
			waited := 0
			if fast, ok := sender.(*fastConn); ok {
				fast.sendmmsg = func(fd uintptr, headers []header) (int, unix.Errno) {
					n, errno := sendmmsg(fd, headers)
					if errno == unix.EAGAIN {
						waited++
					}
					return n, errno
				}
			}
			result := startCollecting(t, r, newConn(r, everything), 100)
			batch := to(addrOf(r), times(1000, 1400)...)
			begin := time.Now()
			n, err := sender.WriteBatch(batch)
			require.NoError(t, err)
			require.Equal(t, len(batch), n)
			t.Logf("%d waits in %v", waited, time.Since(begin))
			if features.Mmsg {
				require.NotZero(t, waited)
			}
			require.Empty(t, writeAll(sender, []Datagram{{Buf: []byte(lastWord), Addr: addrOf(r)}}))
			requirePackets(t, received(batch, addrOf(r), addrOf(from)), result())
		})
	}
}
