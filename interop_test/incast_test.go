package interop

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/simsocket"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// incastSender is a session of kcp-go that sends without end.
type incastSender struct {
	machine
	next            uint32        // the segment that was not sent yet
	segments, again atomic.Uint64 // sent for the first time, and once more
	received        atomic.Uint64 // bytes that have arrived
}

// count counts the segments with data in a packet.
func (s *incastSender) count(packet []byte) {
	const push = 81
	for len(packet) >= headerSize {
		sn := binary.LittleEndian.Uint32(packet[12:])
		if packet[4] == push {
			if int32(sn-s.next) >= 0 {
				s.segments.Add(1)
				s.next = sn + 1
			} else {
				s.again.Add(1)
			}
		}
		packet = packet[headerSize+binary.LittleEndian.Uint32(packet[20:]):]
	}
}

// receiveFrom reads what a sender sends, and compares it.
func (s *incastSender) receiveFrom(c net.Conn) error {
	want, at, b := slices.Repeat(s.sends, 2), 0, make([]byte, 8<<10)
	for {
		n, err := c.Read(b)
		if !bytes.Equal(b[:n], want[at:at+n]) {
			return fmt.Errorf("not what was sent, after %d bytes", s.received.Load())
		}
		at = (at + n) % len(s.sends)
		s.received.Add(uint64(n))
		if err != nil {
			return nil // the end of the test
		}
	}
}

// Many senders of kcp-go share a small socket buffer: hardly anything is sent twice, and
// none starves.
func TestIncast(t *testing.T) {
	senders := 40
	if long && !testenv.RaceEnabled { // the detector makes them ten times as slow
		senders = 200
	}
	synctest.Test(t, func(t *testing.T) {
		n := netsim.NewNetwork(1, netsim.LinkConfig{Delay: 2 * time.Millisecond})
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
		data := testenv.Content(1, 16<<10)
		all, bySource := make([]*incastSender, senders), make(map[string]*incastSender)
		for i := range all {
			at := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
			out, err := n.Listen(netip.AddrPortFrom(at, 5000).String())
			require.NoError(t, err)
			s := &incastSender{machine: machine{pc: out, window: 512, sends: data}}
			s.packet = s.count
			s.begin(uint32(i+1), pc.LocalAddr())
			all[i], bySource[out.LocalAddr().String()] = s, s
			go s.run(ctx)
			c, err := l.Accept()
			require.NoError(t, err)
			of := bySource[c.RemoteAddr().String()]
			go func() {
				if err := of.receiveFrom(c); err != nil {
					t.Error(err)
				}
			}()
		}
		time.Sleep(3 * time.Second)
		var first, again uint64
		before := make([]uint64, senders)
		for i, s := range all {
			first, again, before[i] = first+s.segments.Load(), again+s.again.Load(), s.received.Load()
		}
		time.Sleep(2 * time.Second)
		mean, slowest := 0., 1e18
		var first2, again2 uint64
		for i, s := range all {
			got := float64(s.received.Load() - before[i])
			mean, slowest = mean+got/float64(senders), min(slowest, got)
			first2, again2 = first2+s.segments.Load(), again2+s.again.Load()
		}
		share := float64(again2-again) / float64(again2-again+first2-first)
		t.Logf("%d segments, %.2f %% sent again, slowest %.2f of the mean", first2-first, share*100, slowest/mean)
		require.LessOrEqual(t, share, 0.01)
		require.GreaterOrEqual(t, slowest, 0.5*mean)
	})
}
