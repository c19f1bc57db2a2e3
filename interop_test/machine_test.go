package interop

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"sync"
	"time"

	kcpgo "github.com/xtaci/kcp-go/v5"
)

// machineTick is how often a machine is updated.
const machineTick = 10 * time.Millisecond

// machine is kcp-go's state machine behind a simulated socket, driven as its sessions do.
// Those cannot be simulated, as their timers run outside of a bubble.
type machine struct {
	pc     net.PacketConn
	window int

	mu      sync.Mutex // guards what follows
	kcp     *kcpgo.KCP
	to      net.Addr // nil: not known yet
	got     []byte
	arrived chan struct{} // has an element when something was added to got
}

// begin makes the state machine. m.mu is held, or nobody else has m yet.
func (m *machine) begin(conv uint32, to net.Addr) {
	m.to = to
	m.kcp = kcpgo.NewKCP(conv, func(b []byte, size int) {
		_, _ = m.pc.WriteTo(b[:size], m.to) // fails once pc is closed
	})
	m.kcp.NoDelay(1, int(machineTick.Milliseconds()), 2, 1)
	m.kcp.WndSize(m.window, m.window)
}

// run drives the machine until ctx ends, and closes its socket then.
func (m *machine) run(ctx context.Context) {
	go m.read()
	tick := time.NewTicker(machineTick + time.Microsecond)
	defer tick.Stop()
	for {
		m.mu.Lock()
		if m.kcp != nil {
			m.kcp.Update()
		}
		m.mu.Unlock()
		select {
		case <-ctx.Done():
			_ = m.pc.Close()
			return
		case <-tick.C:
		}
	}
}

func (m *machine) read() {
	for b := make([]byte, 2048); ; {
		n, from, err := m.pc.ReadFrom(b)
		if err != nil {
			return
		}
		m.mu.Lock()
		if m.kcp == nil {
			m.begin(binary.LittleEndian.Uint32(b), from)
		}
		m.kcp.Input(b[:n], kcpgo.IKCP_PACKET_REGULAR, true)
		for size := m.kcp.PeekSize(); size >= 0; size = m.kcp.PeekSize() {
			message := make([]byte, size)
			m.kcp.Recv(message)
			m.got = append(m.got, message...)
		}
		m.mu.Unlock()
		select {
		case m.arrived <- struct{}{}:
		default:
		}
	}
}

func (m *machine) write(b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kcp.Send(b)
}

// receive waits until something has arrived that is all of want, or not its beginning,
// or until late.
func (m *machine) receive(want []byte, late <-chan time.Time) (got []byte) {
	for {
		select {
		case <-m.arrived:
		case <-late:
			return got
		}
		m.mu.Lock()
		got = m.got
		m.mu.Unlock()
		if !bytes.HasPrefix(want, got) || len(got) == len(want) {
			return got
		}
	}
}
