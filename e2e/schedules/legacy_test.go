package schedules

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/schedule"
)

// Conversations with a peer that knows no signals: the bare state machine. Such a peer
// hears of no end, so the conversations have sizes. No event comes beside them: a
// session with such a peer has no way to survive one, or to tell it.
var legacyLives = []*life{
	{name: "asked", peer: legacyAsks, server: answersSome},
	{name: "receipts", peer: legacyTakesMessages, server: sendsDown, config: func(c *kcp.Config) { c.MessageMode = true }},
	{name: "asking", client: asksSome, ofLegacy: true},
}

// bareMachine is one end without signals, updated every 10 ms until all has been said.
type bareMachine struct {
	tr   *trial
	pc   *faultySocket
	got  chan []byte // what Recv returns
	done chan struct{}

	mu sync.Mutex // guards what follows
	k  *kcp.KCP
	to net.Addr // nil: not known yet
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

// write sends b.
func (m *bareMachine) write(b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(b) > 0 {
		n, err := m.k.Send(b[:min(len(b), 32<<10)])
		if err != nil {
			m.tr.fail("legacy: Send: %v", err)
			return
		}
		b = b[n:]
	}
}

// receive takes as many bytes as want has, and compares them. It reports false if they
// do not come.
func (m *bareMachine) receive(want []byte) bool {
	for at := 0; at < len(want); {
		b, ok := m.next()
		if !ok {
			m.tr.fail("legacy: %d of %d bytes", at, len(want))
			return false
		}
		if len(b) > len(want)-at || string(b) != string(want[at:at+len(b)]) {
			m.tr.fail("legacy: wrong bytes after %d", at)
			return false
		}
		at += len(b)
	}
	return true
}

// next takes a message.
func (m *bareMachine) next() ([]byte, bool) {
	select {
	case b := <-m.got:
		return b, true
	case <-time.After(2 * runLimit):
		return nil, false
	}
}

// A peer without signals asks.
func legacyAsks(tr *trial, _ int) bool {
	m := tr.bare(schedule.Client, "10.0.0.7:7", serverUDP)
	m.write(question)
	m.receive(answer)
	return true
}

func answersSome(e *end) error {
	if err := e.receiveSome(e.conn, question); err != nil {
		return err
	}
	if err := e.send(e.conn, answer); err != nil {
		return err
	}
	return named("Close", e.conn.Close())
}

// A peer without signals takes messages, for which there are receipts.
func legacyTakesMessages(tr *trial, _ int) bool {
	m := tr.bare(schedule.Client, "10.0.0.7:7", serverUDP)
	m.write(word)
	e := &end{tr, nil, tr.client, "legacy"}
	to := e.inbox(fmt.Sprintf("down of %d", legacyConv), true, down...)
	for range down {
		b, ok := m.next()
		if !ok {
			tr.fail("legacy: no message")
			return true
		}
		to.add(b)
	}
	return true
}

func sendsDown(e *end) error {
	if err := e.receiveSome(e.conn, word); err != nil {
		return err
	}
	sent := e.receipts(e.peerInbox("down", true, down...))
	if err := sent.send(e.conn.SendMessage); err != nil {
		return err
	}
	return named("Close", e.conn.Close())
}

// A peer without signals is asked.
func asksSome(e *end) error {
	if err := e.send(e.conn, question); err != nil {
		return err
	}
	if err := e.receiveSome(e.conn, answer); err != nil {
		return err
	}
	return named("Close", e.conn.Close())
}

// answerAsLegacy is the server of that.
func (tr *trial) answerAsLegacy() {
	m := tr.bare(schedule.Server, serverAddr, nil)
	tr.lives.Add(1)
	go func() {
		defer tr.lives.Add(-1)
		if m.receive(question) {
			m.write(answer)
		}
	}()
}
