package docs

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
)

// machine is a KCP on a socket, for one peer.
type machine struct {
	socket net.PacketConn
	peer   net.Addr
	begin  time.Time

	mu   sync.Mutex // guards k
	k    *kcp.KCP
	room *sync.Cond // WaitSend may be below limit again, or run has ended
}

// limit is from how many segments, waiting or in flight, write waits: two send windows.
const limit = 2 * 256

// newMachine returns a machine. The peer's has the same conv and settings.
func newMachine(socket net.PacketConn, peer net.Addr, conv uint32) *machine {
	m := &machine{socket: socket, peer: peer, begin: time.Now()}
	m.room = sync.NewCond(&m.mu)
	m.k = kcp.New(conv, func(packet []byte) {
		_, _ = socket.WriteTo(packet, peer) // if it fails, it is as if the network had lost it
	})
	m.k.SetNoDelay(kcp.NoDelayOn)
	m.k.SetFastResend(2)
	_ = m.k.SetWindow(limit/2, 256)
	return m
}

// send queues a message of up to 127 packets. It does not wait, and KCP has no limit: a
// program that sends much waits for WaitSend before, as write does.
func (m *machine) send(message []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.k.Send(message); err != nil {
		return err
	}
	return m.socket.SetReadDeadline(time.Now()) // run stops reading, and flushes
}

// write queues all of b after SetStream(true). Send refuses more than 127 segments at a
// time if the last one has no room, so it is given pieces of 32 KiB.
func (m *machine) write(b []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(b) > 0 {
		if err := m.socket.SetReadDeadline(time.Now()); err != nil {
			return err // the socket is closed
		}
		if m.k.WaitSend() >= limit {
			m.room.Wait()
			continue
		}
		n, err := m.k.Send(b[:min(len(b), 32<<10)])
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return m.socket.SetReadDeadline(time.Now())
}

// run calls deliver with each message of the peer, which is valid only during the call.
// It returns when the socket is closed. Between two packets it reads the socket until the
// next flush is due.
func (m *machine) run(deliver func(message []byte)) error {
	defer m.wake()
	packet, message := make([]byte, 1500), make([]byte, 127*1500)
	for {
		if err := m.flush(); err != nil {
			return err
		}
		n, from, err := m.socket.ReadFrom(packet)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case err != nil:
			return err
		case from.String() != m.peer.String():
			continue
		}
		m.input(packet[:n])
		for n, err = m.receive(message); err == nil; n, err = m.receive(message) {
			deliver(message[:n])
		}
		m.wake()
	}
}

// wake lets write go on, once there is room.
func (m *machine) wake() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.room.Broadcast()
}

// flush sends what is due, and sets the deadline of the next read.
func (m *machine) flush() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.k.SetClock(m.now())
	at, ok := m.k.NextFlush()
	if ok && int32(at-m.now()) <= 0 { // a difference, as the clock wraps after 49 days
		m.k.Flush()
		at, ok = m.k.NextFlush()
	}
	if !ok {
		return m.socket.SetReadDeadline(time.Time{}) // nothing is due before a packet, or send
	}
	wait := time.Duration(int32(at-m.now())) * time.Millisecond
	return m.socket.SetReadDeadline(time.Now().Add(wait))
}

func (m *machine) input(packet []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.k.SetClock(m.now())
	_ = m.k.Input(packet) // the error says why a packet was dropped
}

func (m *machine) receive(message []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.k.Recv(message)
}

// now is the clock of the state machine, in milliseconds.
func (m *machine) now() uint32 { return uint32(time.Since(m.begin).Milliseconds()) }

// machines runs f with two machines, over a network that loses packets, has some twice,
// and changes their order. Each gives what arrives to deliver.
func machines(t *testing.T, deliver func(i int, message []byte), f func(t *testing.T, m [2]*machine)) {
	synctest.Test(t, func(t *testing.T) {
		network := netsim.NewNetwork(1, netsim.LinkConfig{
			Delay: 5 * time.Millisecond, Jitter: 5 * time.Millisecond, Loss: 0.1, Duplicate: 0.02, Reorder: 0.05,
		})
		var sockets [2]net.PacketConn
		var m [2]*machine
		for i := range sockets {
			var err error
			sockets[i], err = network.Listen(fmt.Sprintf("10.0.0.%d:4000", i))
			require.NoError(t, err)
		}
		var running sync.WaitGroup
		for i := range m {
			m[i] = newMachine(sockets[i], sockets[1-i].LocalAddr(), 0x01020304)
			running.Go(func() {
				err := m[i].run(func(message []byte) { deliver(i, bytes.Clone(message)) })
				require.ErrorIs(t, err, net.ErrClosed)
			})
		}
		f(t, m)
		for _, s := range sockets {
			_ = s.Close() // f may have done so
		}
		running.Wait()
	})
}

// TestMachine sends messages both ways, and compares all bytes.
func TestMachine(t *testing.T) {
	var received [2][][]byte
	machines(t, func(i int, message []byte) { received[i] = append(received[i], message) }, func(t *testing.T, m [2]*machine) {
		var sent [2][][]byte
		random := rand.New(rand.NewPCG(1, 2))
		for range 40 {
			for i := range m {
				message := bytes.Repeat([]byte{byte(random.Uint32())}, random.IntN(20_000))
				sent[i] = append(sent[i], message)
				require.NoError(t, m[i].send(message))
			}
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, sent[0], received[1])
		require.Equal(t, sent[1], received[0])
	})
}

// TestMachineStream sends more than two send windows as a stream of bytes. A write for
// which no room comes ends with the socket.
func TestMachineStream(t *testing.T) {
	var got []byte
	failed := make(chan error, 1)
	sent := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(sent)
	machines(t, func(_ int, b []byte) { got = append(got, b...) }, func(t *testing.T, m [2]*machine) {
		for _, one := range m {
			one.mu.Lock()
			one.k.SetStream(true)
			one.mu.Unlock()
		}
		require.NoError(t, m[0].write(sent))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.True(t, bytes.Equal(sent, got))
		go func() { failed <- m[0].write(bytes.Repeat(sent, 5)) }()
		time.Sleep(time.Millisecond)
		require.GreaterOrEqual(t, m[0].k.WaitSend(), limit)
		for _, one := range m {
			require.NoError(t, one.socket.Close())
		}
		require.ErrorIs(t, <-failed, net.ErrClosed)
	})
}
