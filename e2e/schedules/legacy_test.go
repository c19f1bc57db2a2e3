package schedules

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/schedule"
	"github.com/arqnet/kcp/internal/testenv/life"
)

// bareMachine is one end without signals, updated every 10 ms until all has been said.
type bareMachine struct {
	tr   *trial
	pc   *faultySocket
	got  chan []byte // what Recv returns
	done chan struct{}
	rest []byte // of what it returned last

	mu   sync.Mutex // guards what follows
	k    *kcp.KCP
	conv uint32
	to   net.Addr // nil: not known yet
}

const legacyConv = 77

// bare opens such an end. If to is nil, it answers the first who sends.
func (tr *trial) bare(side schedule.Side, addr string, to net.Addr) *bareMachine {
	pc, err := tr.net.Listen(addr)
	if err != nil {
		panic(err)
	}
	m := &bareMachine{
		tr: tr, pc: &faultySocket{pc, tr, new(process), side}, to: to,
		got: make(chan []byte, 100), done: make(chan struct{}, 2),
	}
	if to != nil {
		m.begin(legacyConv)
	}
	go m.read()
	go m.update()
	return m
}

// begin makes the machine. m.mu is held, or nobody else has m yet.
func (m *bareMachine) begin(conv uint32) {
	m.conv = conv
	m.k = kcp.New(conv, func(b []byte) { _, _ = m.pc.WriteTo(b, m.to) })
	m.k.SetNoDelay(kcp.NoDelayOn)
	m.k.SetStream(!m.tr.rules.MessageMode)
	m.k.SetFastResend(2)
	m.k.SetCongestionControl(congestion.NewNone())
	if err := errors.Join(m.k.SetWindow(256, 256), m.k.SetInterval(10)); err != nil {
		panic(err)
	}
	m.k.Update(m.now())
}

// now is the machine's clock.
func (m *bareMachine) now() uint32 { return uint32(time.Since(m.tr.begun).Milliseconds()) }

func (m *bareMachine) read() {
	defer func() { m.done <- struct{}{} }()
	for b := make([]byte, 1<<16); ; {
		n, from, err := m.pc.ReadFrom(b)
		if err != nil {
			return
		}
		time.Sleep(time.Microsecond)
		m.mu.Lock()
		if m.k == nil {
			m.to = from
			m.begin(binary.LittleEndian.Uint32(b[:n]))
		}
		_ = m.k.Input(b[:n])
		for size := m.k.PeekSize(); size >= 0; size = m.k.PeekSize() {
			message := make([]byte, size)
			_, _ = m.k.Recv(message)
			m.got <- message
		}
		m.k.Flush()
		m.mu.Unlock()
	}
}

func (m *bareMachine) update() {
	defer func() { m.done <- struct{}{} }()
	for tick := time.NewTicker(10*time.Millisecond + time.Microsecond); ; {
		select {
		case <-tick.C:
		case <-m.tr.rests: // else it goes on to ask for a window
			tick.Stop()
			_ = m.pc.Close()
			return
		}
		m.mu.Lock()
		if m.k != nil {
			m.k.Update(m.now())
		}
		m.mu.Unlock()
	}
}

// The calls of life.End. It has no others.

func (m *bareMachine) Write(_ uint32, b []byte, _ bool) (sent int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for sent < len(b) && err == nil {
		var n int
		n, err = m.k.Send(b[sent:min(len(b), sent+32<<10)])
		sent += n
	}
	return sent, err
}

func (m *bareMachine) SendMessage(_ uint32, b []byte, _ life.Options, _ bool) error {
	_, err := m.Write(0, b, true)
	return err
}

func (m *bareMachine) Read(_ uint32, b []byte, _ bool) (int, error) {
	if len(m.rest) == 0 {
		select {
		case m.rest = <-m.got:
		case <-time.After(2 * runLimit):
			return 0, os.ErrDeadlineExceeded
		}
	}
	n := copy(b, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}

func (m *bareMachine) SendDatagram([]byte) error                           { return errNone }
func (m *bareMachine) OpenStream(life.StreamOptions, bool) (uint32, error) { return 0, errNone }
func (m *bareMachine) EndStream(uint32, life.Op, uint64) error             { return errNone }
func (m *bareMachine) Close(life.Op) error                                 { return nil }
func (m *bareMachine) Set(life.Step) error                                 { return errNone }
func (m *bareMachine) Class(err error) (life.Class, uint64)                { return life.Unknown(err), 0 }

var errNone = errors.New("no such call")

// answerAsLegacy is a server without signals.
func (tr *trial) answerAsLegacy() {
	m := tr.bare(schedule.Server, serverAddr, nil)
	tr.lives.Add(1)
	go func() {
		defer tr.lives.Add(-1)
		m.rest = <-m.got // then its conversation is known
		e := &end{tr, life.NewParty(tr.session(m.conv), 1, m), nil, new(process)}
		e.perform()
	}()
}
