package interop

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/simsocket"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
	kcpgo "github.com/xtaci/kcp-go/v5"
)

// kcpGoSender is a session of kcp-go that sends without end: its state machine,
// driven as its sessions do. Those cannot be simulated, as their timers run
// outside of a bubble.
type kcpGoSender struct {
	mu       sync.Mutex // guards what follows
	machine  *kcpgo.KCP
	next     uint32 // the segment that was not sent yet
	segments uint64 // sent for the first time
	again    uint64 // sent once more

	received atomic.Uint64 // bytes that have arrived
}

const (
	senderTick   = 10 * time.Millisecond
	senderWindow = 512
	senderChunk  = 16 << 10 // bytes of content that a sender repeats
)

// count counts the segments with data in a packet.
func (s *kcpGoSender) count(packet []byte) {
	const header, push = 24, 81
	for len(packet) >= header {
		sn := binary.LittleEndian.Uint32(packet[12:])
		if packet[4] == push {
			if int32(sn-s.next) >= 0 {
				s.segments++
				s.next = sn + 1
			} else {
				s.again++
			}
		}
		packet = packet[header+binary.LittleEndian.Uint32(packet[20:]):]
	}
}

// run sends from pc until ctx ends.
func (s *kcpGoSender) run(ctx context.Context, pc *netsim.PacketConn, to net.Addr, conv uint32, data []byte) {
	s.machine = kcpgo.NewKCP(conv, func(b []byte, size int) {
		s.count(b[:size])
		_, _ = pc.WriteTo(b[:size], to) // fails once pc is closed
	})
	s.machine.NoDelay(1, int(senderTick.Milliseconds()), 2, 1)
	s.machine.WndSize(senderWindow, senderWindow)
	go func() {
		b := make([]byte, 2048)
		for {
			n, _, err := pc.ReadFrom(b)
			if err != nil {
				return
			}
			s.mu.Lock()
			s.machine.Input(b[:n], kcpgo.IKCP_PACKET_REGULAR, true)
			s.mu.Unlock()
		}
	}()
	tick := time.NewTicker(senderTick)
	defer tick.Stop()
	for {
		s.mu.Lock()
		for s.machine.WaitSnd() < 2*senderWindow {
			s.machine.Send(data)
		}
		s.machine.Update()
		s.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// sent returns how many segments left for the first time, and how many again.
func (s *kcpGoSender) sent() (first, again uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.segments, s.again
}

// receiveFrom reads what a sender sends, and compares it.
func (s *kcpGoSender) receiveFrom(c net.Conn, data []byte) error {
	want, at, b := slices.Repeat(data, 2), 0, make([]byte, 8<<10)
	for {
		n, err := c.Read(b)
		if !bytes.Equal(b[:n], want[at:at+n]) {
			return fmt.Errorf("not what was sent, after %d bytes", s.received.Load())
		}
		at = (at + n) % len(data)
		s.received.Add(uint64(n))
		if err != nil {
			return nil // the end of the test
		}
	}
}

// 200 senders of kcp-go share a small socket buffer: hardly anything is sent
// twice, and none starves.
func TestIncastSimulated(t *testing.T) {
	const seed = 1
	t.Logf("seed %d", seed)
	senders := 200
	if slowdown > 1 {
		senders = 40 // the detector makes them ten times as slow
	}
	synctest.Test(t, func(t *testing.T) {
		n := netsim.NewNetwork(seed, netsim.LinkConfig{Delay: 2 * time.Millisecond})
		pc, err := simsocket.Listen(n, "10.0.0.1:4000", senders*(5<<10), 50*time.Microsecond)
		require.NoError(t, err)
		e, err := kcp.NewEndpoint(pc, nil)
		require.NoError(t, err)
		l, err := e.Listen()
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer func() {
			cancel()
			require.NoError(t, e.Close())
			require.NoError(t, pc.Close())
			synctest.Wait()
		}()
		data := make([]byte, senderChunk)
		_, _ = rand.NewChaCha8([32]byte{seed}).Read(data)
		all, bySource := make([]*kcpGoSender, senders), make(map[string]*kcpGoSender)
		for i := range all {
			at := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
			out, err := n.Listen(netip.AddrPortFrom(at, 5000).String())
			require.NoError(t, err)
			defer out.Close()
			all[i] = new(kcpGoSender)
			bySource[out.LocalAddr().String()] = all[i]
			go all[i].run(ctx, out, pc.LocalAddr(), uint32(i+1), data)
			c, err := l.Accept()
			require.NoError(t, err)
			s := bySource[c.RemoteAddr().String()]
			go func() {
				if err := s.receiveFrom(c, data); err != nil {
					t.Error(err)
				}
			}()
		}
		time.Sleep(3 * time.Second)
		measure := func() (first, again uint64, received []uint64) {
			for _, s := range all {
				f, a := s.sent()
				first, again, received = first+f, again+a, append(received, s.received.Load())
			}
			return first, again, received
		}
		first, again, before := measure()
		time.Sleep(2 * time.Second)
		first2, again2, after := measure()
		mean, slowest := 0., 1e18
		for i := range after {
			got := float64(after[i] - before[i])
			mean += got / float64(senders)
			slowest = min(slowest, got)
		}
		share := float64(again2-again) / float64(again2-again+first2-first)
		t.Logf("%d segments, %.2f %% sent again, goodput %.0f%%, slowest %.2f of the mean", first2-first, share*100,
			mean*float64(senders)/1376/2/20000*100, slowest/mean)
		require.LessOrEqual(t, share, 0.01)
		require.GreaterOrEqual(t, slowest, 0.5*mean)
	})
}
