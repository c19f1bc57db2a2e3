package interop

import (
	"bytes"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/stretchr/testify/require"
	kcpgo "github.com/xtaci/kcp-go/v5"
)

// wire is a socket that keeps what is written to it, and reads what is put
// into it.
type wire struct {
	net.PacketConn // nil

	in     chan []byte
	closed chan struct{}
	once   sync.Once

	mu  sync.Mutex
	out [][]byte
}

func newWire() *wire { return &wire{in: make(chan []byte), closed: make(chan struct{})} }

// peerOfWire is who all packets of a wire are from.
var peerOfWire = &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}

func (w *wire) ReadFrom(b []byte) (int, net.Addr, error) {
	select {
	case p := <-w.in:
		return copy(b, p), peerOfWire, nil
	case <-w.closed:
		return 0, nil, net.ErrClosed
	}
}

func (w *wire) WriteTo(b []byte, _ net.Addr) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out = append(w.out, bytes.Clone(b))
	return len(b), nil
}

func (w *wire) written() [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out
}

func (w *wire) Close() error {
	w.once.Do(func() { close(w.closed) })
	return nil
}

func (*wire) LocalAddr() net.Addr { return peerOfWire }

// TestKCPGoTakesParityForData shows why error correction that kcp-go is not set
// to must not meet reordering: until it has learned the ratio it takes the peer
// for one of ratio 1:1, in which the parity packet with an odd seqid is a copy
// of the data packet before it. All fields that are the same in all packets of
// a group are the same in its parity, so that what comes out passes for a
// segment: of some other place in the stream, with noise inside. Both ends are
// kcp-go. Should this fail with a newer version, then that has been mended, and
// TestOneSidedFEC can have its rough path for all rows.
func TestKCPGoTakesParityForData(t *testing.T) {
	want, got := throughParity(t, false)
	require.True(t, bytes.Equal(want, got))
	want, got = throughParity(t, true)
	require.False(t, bytes.Equal(want, got), "kcp-go has been mended")
}

// throughParity moves bytes from a kcp-go with error correction to one without,
// and returns what was sent and received. overtakes has a parity
// packet come second.
func throughParity(t *testing.T, overtakes bool) (sent, received []byte) {
	const segments, segment = 30, 1400 - headerSize - 8
	up, down := newWire(), newWire()
	from, err := kcpgo.NewConn4(7, peerOfWire, nil, 10, 3, true, up)
	require.NoError(t, err)
	defer from.Close()
	to, err := kcpgo.NewConn4(7, peerOfWire, nil, 0, 0, true, down)
	require.NoError(t, err)
	defer to.Close()
	for _, s := range []*kcpgo.UDPSession{from, to} {
		s.SetNoDelay(1, interval, 0, 1)
		s.SetWindowSize(256, 256)
		s.SetStreamMode(true)
	}
	content := testenv.Content(seed, segments*segment)
	_, err = from.Write(content)
	require.NoError(t, err)
	const packets = segments * 13 / 10
	await.True(t, func() bool { return len(up.written()) >= packets })

	order := up.written()[:packets]
	if overtakes {
		order = slices.Insert(slices.Delete(slices.Clone(order), 11, 12), 1, order[11])
	}
	for _, p := range order {
		down.in <- p
	}
	received = make([]byte, len(content))
	_, err = io.ReadFull(to, received)
	require.NoError(t, err)
	return content, received
}
