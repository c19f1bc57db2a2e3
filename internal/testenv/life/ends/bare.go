package ends

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/testenv/life"
)

// Bare is one end without signals: a state machine that is updated every 10 ms, and
// acknowledges at once, as kcp-go does.
type Bare struct {
	Got      chan []byte // what Recv returns
	Patience time.Duration

	pc       net.PacketConn
	messages bool
	fec      bool
	begun    time.Time
	rest     []byte // of what Read has got last

	mu   sync.Mutex // guards what follows
	k    *kcp.KCP
	conv uint32
	to   net.Addr
	next uint32 // seqid of error correction
}

// BareOptions are those of NewBare.
type BareOptions struct {
	Conv     uint32
	To       net.Addr // nil: Conv too is that of the first packet
	Messages bool
	FEC      bool            // packets have the header of error correction
	Stop     <-chan struct{} // closed when the end is to close its socket
}

// NewBare returns an end on a socket.
func NewBare(pc net.PacketConn, o BareOptions) *Bare {
	m := &Bare{Got: make(chan []byte, 1<<14), Patience: time.Minute, pc: pc, messages: o.Messages, fec: o.FEC, begun: time.Now(), to: o.To}
	if o.To != nil {
		m.begin(o.Conv)
	}
	go m.read()
	go m.update(o.Stop)
	return m
}

// begin makes the machine. m.mu is held, or nobody else has m yet.
func (m *Bare) begin(conv uint32) {
	m.conv = conv
	m.k = kcp.New(conv, func(b []byte) {
		if m.fec {
			b = WithFEC(m.next, b)
			m.next++
		}
		_, _ = m.pc.WriteTo(b, m.to)
	})
	m.k.SetNoDelay(kcp.NoDelayOn)
	m.k.SetStream(!m.messages)
	m.k.SetFastResend(2)
	m.k.SetCongestionControl(congestion.NewNone())
	if err := errors.Join(m.k.SetWindow(256, 256), m.k.SetInterval(10)); err != nil {
		panic(err)
	}
	m.k.Update(0)
}

// WithFEC returns p as a data shard.
func WithFEC(seqid uint32, p []byte) []byte {
	b := make([]byte, fec.HeaderSize, fec.HeaderSize+len(p))
	binary.LittleEndian.PutUint32(b, seqid)
	binary.LittleEndian.PutUint16(b[4:], fec.TypeData)
	binary.LittleEndian.PutUint16(b[6:], uint16(len(p)+2))
	return append(b, p...)
}

// Conv returns the conversation, once something has arrived.
func (m *Bare) Conv() uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.conv
}

func (m *Bare) read() {
	for b := make([]byte, 1<<16); ; {
		n, from, err := m.pc.ReadFrom(b)
		if err != nil {
			return
		}
		time.Sleep(time.Microsecond)
		packet := b[:n]
		if m.fec && fec.IsFEC(packet) {
			packet = packet[fec.HeaderSize:]
		} else if m.fec {
			continue // as older kcp-go do
		}
		m.mu.Lock()
		if m.k == nil {
			m.to = from
			m.begin(binary.LittleEndian.Uint32(packet))
		}
		_ = m.k.Input(packet)
		for size := m.k.PeekSize(); size >= 0; size = m.k.PeekSize() {
			message := make([]byte, size)
			_, _ = m.k.Recv(message)
			m.Got <- message
		}
		m.k.Flush()
		m.mu.Unlock()
	}
}

func (m *Bare) update(stop <-chan struct{}) {
	tick := time.NewTicker(10*time.Millisecond + time.Microsecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-stop: // else it goes on to ask for a window
			_ = m.pc.Close()
			return
		}
		m.mu.Lock()
		if m.k != nil {
			m.k.Update(uint32(time.Since(m.begun).Milliseconds()))
		}
		m.mu.Unlock()
	}
}

// Write implements life.End, as what follows does. There are no other calls.
func (m *Bare) Write(_ uint32, b []byte, _ bool) (sent int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for sent < len(b) && err == nil {
		var n int
		n, err = m.k.Send(b[sent:min(len(b), sent+32<<10)])
		sent += n
	}
	return sent, err
}

func (m *Bare) SendMessage(_ uint32, b []byte, _ life.Options, _ bool) error {
	_, err := m.Write(0, b, true)
	return err
}

func (m *Bare) Read(_ uint32, b []byte, _ bool) (int, error) {
	if len(m.rest) == 0 {
		select {
		case m.rest = <-m.Got:
		case <-time.After(m.Patience):
			return 0, os.ErrDeadlineExceeded
		}
	}
	n := copy(b, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}

// Unread has Read return b first.
func (m *Bare) Unread(b []byte) { m.rest = b }

func (m *Bare) SendDatagram([]byte) error                           { return errNone }
func (m *Bare) OpenStream(life.StreamOptions, bool) (uint32, error) { return 0, errNone }
func (m *Bare) EndStream(uint32, life.Op, uint64) error             { return errNone }
func (m *Bare) Close(life.Op) error                                 { return nil }
func (m *Bare) Set(life.Step) error                                 { return errNone }
func (m *Bare) Class(err error) (life.Class, uint64)                { return life.Unknown(err), 0 }

var errNone = errors.New("no such call")
