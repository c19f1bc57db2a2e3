package paths

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
)

// settled is how long a session takes at most to find out what its path takes, after the
// opening or a change, at a round trip of 40 ms.
const settled = 5 * time.Second

// sized returns a path that takes so many bytes of UDP payload.
func sized(mtu int) path {
	p := delay(40 * time.Millisecond)
	p.up.MTU, p.down.MTU = mtu, mtu
	return p
}

// mtus are those of a dial-up line, IPv6's least, WireGuard's, Ethernet's and jumbo
// frames.
var mtus = []int{576, 1232, 1252, 1280, 1392, 1400, 1472, 9000}

// changes are paths that take so many bytes from the start, later, or no longer.
func changes(mtu int) map[string][2]path {
	return map[string][2]path{
		"always":  {sized(mtu), sized(mtu)},
		"shrinks": {sized(0), sized(mtu)},
		"grows":   {sized(mtu), sized(0)},
	}
}

// overChanges runs f over each path, whatever protects the packets.
func overChanges(t *testing.T, config kcp.Config, f func(w *world, change func())) {
	for name, protected := range protections(t) {
		for _, mtu := range mtus {
			for change, p := range changes(mtu) {
				if name == "TLS" && mtu < 1200 && change != "shrinks" {
					continue // a handshake has packets of 1200 bytes
				}
				t.Run(fmt.Sprint(name, " ", mtu, " ", change), func(t *testing.T) {
					t.Parallel()
					over(t, p[0], protected(config), protected(config), func(w *world) {
						f(w, func() { w.set(p[1]) })
					})
				})
			}
		}
	}
}

// sender sends datagrams of the largest size at a rate, and counts those that arrive.
type sender struct {
	from, to      *kcp.Conn
	sent, arrived int
	stop          bool
}

// numbered returns n bytes that show what they should be.
func numbered(n, number int) []byte {
	b := make([]byte, max(n, 8))
	binary.BigEndian.PutUint64(b, uint64(number))
	for i := range b[8:] {
		b[8+i] = byte(number + i)
	}
	return b
}

// run sends until the test ends.
func (s *sender) run(t *testing.T, each time.Duration) {
	done := make(chan struct{})
	t.Cleanup(func() {
		s.stop = true
		<-done
	})
	go func() {
		for {
			b, err := s.to.ReceiveDatagram(context.Background())
			if err != nil {
				return
			}
			require.Equal(t, numbered(len(b), int(binary.BigEndian.Uint64(b))), b)
			s.arrived++
		}
	}()
	go func() {
		defer close(done)
		for number := 0; !s.stop; number++ {
			if s.from.SendDatagram(numbered(s.from.MaxDatagramSize(), number)) == nil {
				s.sent++
			}
			time.Sleep(each)
		}
	}()
}

// Datagrams of the size that MaxDatagramSize says arrive, both ways, but for those of the
// first seconds after the opening or after the path has changed.
func TestLargestDatagramsArrive(t *testing.T) {
	overChanges(t, kcp.Config{}, func(w *world, change func()) {
		up := &sender{from: w.client, to: w.server}
		down := &sender{from: w.server, to: w.client}
		up.run(w.t, 33*time.Millisecond)
		down.run(w.t, 250*time.Millisecond)
		time.Sleep(time.Second)
		change()
		time.Sleep(settled)
		for _, s := range []*sender{up, down} {
			s.sent, s.arrived = 0, 0
		}
		time.Sleep(20 * time.Second)
		for _, s := range []*sender{up, down} {
			require.Greater(w.t, s.sent, 50)
			require.InDelta(w.t, s.sent, s.arrived, 2, "sent %d of %d bytes, %+v", s.sent, s.from.MaxDatagramSize(), s.from.Stats().PathMTU)
		}
		require.Greater(w.t, up.from.MaxDatagramSize(), 490)
	})
}

var _ = netsim.LinkConfig{}
