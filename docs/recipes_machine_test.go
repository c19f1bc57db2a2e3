package docs

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
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

// badSocket loses every tenth packet that it sends, and sends some twice or after the
// next one.
type badSocket struct {
	net.PacketConn
	random *rand.Rand
	late   []byte
}

func (s *badSocket) WriteTo(packet []byte, peer net.Addr) (int, error) {
	switch n := s.random.IntN(100); {
	case n < 10:
		return len(packet), nil
	case n < 12:
		_, _ = s.PacketConn.WriteTo(packet, peer)
	case n < 17 && s.late == nil:
		s.late = bytes.Clone(packet)
		return len(packet), nil
	}
	n, err := s.PacketConn.WriteTo(packet, peer)
	if s.late != nil {
		_, _ = s.PacketConn.WriteTo(s.late, peer)
		s.late = nil
	}
	return n, err
}

// TestMachineOnSockets sends messages both ways over the loopback interface, and compares
// all bytes: with the packets as they leave, and with some of them lost.
func TestMachineOnSockets(t *testing.T) {
	for _, bad := range []bool{false, true} {
		seed := rand.Uint64()
		t.Logf("packets are lost: %v, seed %d", bad, seed)
		var sockets [2]net.PacketConn
		for i := range sockets {
			c, err := net.ListenPacket("udp", "127.0.0.1:0")
			require.NoError(t, err)
			t.Cleanup(func() { _ = c.Close() })
			if sockets[i] = c; bad {
				sockets[i] = &badSocket{PacketConn: c, random: rand.New(rand.NewPCG(seed, uint64(i)))}
			}
		}
		var running sync.WaitGroup
		var received [2]chan []byte
		var machines [2]*machine
		for i := range machines {
			m := newMachine(sockets[i], sockets[1-i].LocalAddr(), 0x01020304)
			c := make(chan []byte)
			machines[i], received[i] = m, c
			running.Go(func() {
				err := m.run(func(message []byte) { c <- bytes.Clone(message) })
				if !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
			})
		}
		random := rand.New(rand.NewPCG(seed, 2))
		for range 12 { // a few messages at a time, and an answer to them
			for i, m := range machines {
				var sent [][]byte
				for range 1 + random.IntN(5) {
					message := make([]byte, random.IntN(20_000))
					_, _ = rand.NewChaCha8([32]byte{byte(random.Uint32())}).Read(message)
					sent = append(sent, message)
					require.NoError(t, m.send(message))
				}
				for _, want := range sent {
					require.True(t, bytes.Equal(want, <-received[1-i]))
				}
			}
		}
		for _, s := range sockets {
			require.NoError(t, s.Close())
		}
		running.Wait()
	}
}

// TestMachineStream sends more than two send windows both ways as a stream of bytes, with
// packets lost. A write for which no room comes ends with the socket.
func TestMachineStream(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const size = 1 << 20
	var sockets [2]net.PacketConn
	for i := range sockets {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		sockets[i] = &badSocket{PacketConn: c, random: rand.New(rand.NewPCG(seed, uint64(i)))}
	}
	var machines [2]*machine
	for i := range machines {
		machines[i] = newMachine(sockets[i], sockets[1-i].LocalAddr(), 7)
		machines[i].k.SetStream(true)
	}
	var running, moving sync.WaitGroup
	for i, m := range machines {
		sent := make([]byte, size)
		_, _ = rand.NewChaCha8([32]byte{byte(i)}).Read(sent)
		moving.Go(func() {
			if err := m.write(sent); err != nil {
				t.Error(err)
			}
		})
		moving.Add(1)
		running.Go(func() {
			got := make([]byte, 0, size)
			err := machines[1-i].run(func(b []byte) {
				if got = append(got, b...); len(got) == size {
					if !bytes.Equal(sent, got) {
						t.Error("other bytes have arrived")
					}
					moving.Done()
				}
			})
			if !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		})
	}
	moving.Wait()
	require.NoError(t, sockets[1].Close())
	failed := make(chan error)
	go func() { failed <- machines[0].write(make([]byte, size)) }()
	await.True(t, func() bool {
		machines[0].mu.Lock()
		defer machines[0].mu.Unlock()
		return machines[0].k.WaitSend() >= limit
	})
	require.NoError(t, sockets[0].Close())
	require.ErrorIs(t, <-failed, net.ErrClosed)
	running.Wait()
}
