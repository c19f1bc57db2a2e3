package session

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/testenv/life"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/stretchr/testify/require"
)

// check holds what end e counts against what it has.
func (l *sessionLink) check(e *machineEnd) {
	c := e.conn
	if c == nil {
		return
	}
	t, state, load := l.t, c.closing.Phase, &c.shared.Load
	if state < l.seen[e.side] {
		t.Fatalf("end %d was in state %d, and is in %d", e.side, l.seen[e.side], state)
	}
	l.seen[e.side] = state
	if err := c.kcp.Audit(); err != nil {
		t.Fatalf("end %d: %v", e.side, err)
	}
	held, counted := int64(c.held()), c.in.holding.bytes.Load()
	if len(e.work) > 0 && c.hs.Role >= opening.Dialled {
		held = counted // it is counted when TLS has done its work
	}
	exact := held == 0 || c.hs.unvalidated.Load() || c.hs.Role == opening.Accepted
	if d := max(held-counted, counted-held); d > 0 && exact || d >= AccountGrain+16*machine.SignalBytesHeld { // PING beside a datagram is not counted at once
		t.Fatalf("end %d holds %d, and has counted %d; state %d", e.side, held, counted, state)
	}
	if n := load.Buffered.Load(); n != counted+e.others {
		t.Fatalf("end %d: %d bytes of all sessions, %d of this one", e.side, n, counted)
	}
	halfOpen := int32(0)
	if c.hs.unvalidated.Load() {
		halfOpen = 1
	}
	if n := load.HalfOpen.Load(); n != halfOpen {
		t.Fatalf("end %d: %d half-open sessions", e.side, n)
	}
	l.checkWrites(e)
	l.checkWake(e)
}

// checkWrites holds the account of write buffers against what they have.
func (l *sessionLink) checkWrites(e *machineEnd) {
	c := e.conn
	used := c.kcp.Load().Memory
	if c.streams != nil {
		used += c.streams.Queued()
	}
	if s := c.capped; s != nil {
		used += s.waiting() * (c.shared.Config.MTU + heldPacketBytes)
	}
	if c.closing.Phase == closing.Retired {
		used = 0
	}
	grains := int(c.outgoing.grains)
	if n := int(c.shared.Load.Written.Load()); n != grains || used/WriteGrain > grains+1 || used/WriteGrain < grains-1 {
		l.t.Fatalf("end %d holds %d bytes to be sent, and has counted %d, of all %d", e.side, used, grains*WriteGrain, n*WriteGrain)
	}
}

// checkWake demands that the wake-up that is set is not later than what is due.
func (l *sessionLink) checkWake(e *machineEnd) {
	c := e.conn
	s := c.timers
	if c.closing.Phase >= closing.Ended {
		if e.wakeAt != 0 || c.outgoing.waiting() > 0 || c.closing.Phase != closing.Retired {
			l.t.Fatalf("end %d has ended, and is woken at %v to send %d packets", e.side, e.wakeAt, c.outgoing.waiting())
		}
		return
	}
	due := e.dueAgain() // pacing counts microseconds, and wake-ups milliseconds
	if t := c.streams; t != nil && due > 0 && t.openAt > 0 {
		due = max(due, t.openAt) // a new stream waits for its first message
	}
	if s.wakeAt != e.wakeAt || due > 0 && (s.dueAt == 0 || !e.stale && s.dueAt >= due+time.Millisecond) || s.dueAt > 0 && (s.wakeAt == 0 || s.wakeAt > s.dueAt) {
		l.t.Fatalf("end %d at %v: something is due at %v, noted is %v, the wake-up is set for %v, asked for is %v", e.side, l.now, due, s.dueAt, s.wakeAt, e.wakeAt)
	}
}

// finish makes the link good, and demands that all arrives, or that an error says why it
// does not. Then both ends close their session, and hold nothing any more.
func (l *sessionLink) finish() {
	l.loss, l.jitter, l.path, l.delay = 0, 0, 0, 10*time.Millisecond
	for i, e := range l.ends {
		l.rests[i], l.late[i], l.slow[i] = false, 0, false
		e.limit, e.backlog, e.delayed = 0, false, false
		e.shared.Load.Buffered.Add(-e.others)
		e.others = 0
		e.shared.Load.Share.Store(0)
	}
	l.await("all is delivered", 20*time.Minute, l.done)
	l.run(time.Second) // what has no place in done
	l.judge()
	for side, e := range l.ends {
		if e.conn != nil {
			l.parties[side].Do(life.Step{Op: life.Close})
			l.check(e)
		}
	}
	l.await("both ends have ended", 20*time.Minute, func() bool {
		return l.over(l.ends[0]) && l.over(l.ends[1])
	})
	for i, e := range l.ends {
		if e.conn == nil {
			continue
		}
		l.receive(i)
		l.check(e)
		load := &e.shared.Load
		require.Zero(l.t, e.conn.held(), "end %d", i)
		require.Zero(l.t, load.Buffered.Load()+load.Written.Load()+int64(load.HalfOpen.Load()), "end %d", i)
	}
	l.Check()
}

// over reports whether the session of an end has ended, or never began.
func (l *sessionLink) over(e *machineEnd) bool {
	return e.conn == nil || e.conn.closing.Phase >= closing.Ended
}

// await lets time pass until something holds.
func (l *sessionLink) await(what string, limit time.Duration, holds func() bool) {
	for until := l.now + limit; ; {
		l.step()
		if holds() {
			return
		}
		at := l.next()
		if at == 0 || at > until {
			l.t.Fatalf("at %v, before %s: nothing happens until %v", l.now, what, at)
		}
		l.now = max(l.now, at)
	}
}

// done reports whether nothing is on its way any more.
func (l *sessionLink) done() bool {
	if l.over(l.ends[0]) && l.over(l.ends[1]) {
		return true
	}
	for _, e := range l.ends {
		c := e.conn
		switch {
		case c == nil:
			return false
		case c.closing.Phase >= closing.Ended:
		case c.kcp.WaitSend() > 0, c.streamsUnsent(), c.hs.Unanswered != 0, c.tls != nil && c.tls.handshake != nil:
			return false
		}
	}
	return len(l.wire[0])+len(l.wire[1]) == 0
}

// judge demands that what was written was read, unless an end says why not.
func (l *sessionLink) judge() {
	failed := false
	for i, e := range l.ends {
		if e.conn == nil {
			continue
		}
		s, peer := &e.conn.closing, l.ends[1-i].conn
		is := life.Class("")
		if s.err != nil {
			is, _ = e.Class(s.err)
		}
		aborted := l.Seen(0).Called == life.Abort || l.Seen(1).Called == life.Abort
		failed = failed || s.Undelivered() || s.err != nil && s.err != ErrPeerClosed || s.Caller != closing.Uses
		switch {
		case s.err == nil || is == life.PeerClosed || s.Caller != closing.Uses || l.Broken || aborted:
		case peer == nil:
			l.t.Fatalf("end %d has ended, and had no peer: %v", i, s.err)
		case (is == life.ResetByPeer || is == life.PeerLost) && l.over(l.ends[1-i]): // the peer has closed it, as one of legacy
		case is == life.PeerLost && l.moved && peer.over(): // it has nothing to say
		case is == life.Refused && l.moved && peer.closing.Phase >= closing.Ended && peer.hs.Role == opening.Accepted:
			// It has moved while it dialled. Its first address was not validated in time.
		default:
			l.t.Fatalf("end %d has ended: %v", i, s.err)
		}
	}
	l.Broken = l.Broken || failed
	if !failed && l.ends[1].conn != nil && !l.Complete() {
		l.t.Fatalf("not all was read that was written")
	}
}

// A datagram counts for the anti-amplification limit, so data that has waited for that
// leaves at once, and not with the next time-out.
func TestCreditOfDatagrams(t *testing.T) {
	t.Parallel()
	const conv = 7
	w := newMachineWorld(t, 1, defaults(), defaults())
	sent := 0
	w.send = func(*machineEnd, *udp.Datagram) { sent++ }
	server, from := w.ends[1], w.ends[0].addr
	legacy := machine.New(conv, func(p []byte) { server.receive(p, from) })
	legacy.SetClock(1)
	_, err := legacy.Send(make([]byte, 300))
	require.NoError(t, err)
	legacy.Flush()
	server.respond()
	require.NotNil(t, server.conn)
	require.True(t, server.conn.hs.unvalidated.Load())
	n, err := server.Write(0, make([]byte, 5000), false)
	require.NoError(t, err)
	require.Equal(t, 5000, n)
	before := sent
	w.now += 10 * time.Millisecond
	b := make([]byte, DatagramHeader+1300)
	fec.PutOOB(b)
	binary.LittleEndian.PutUint32(b[DatagramHeader-4:], conv)
	server.receive(b, from)
	server.respond()
	require.Greater(t, sent, before)
}

// What an outage has lost of HELLO does not show a legacy peer. After it, one more that
// is lost beside the first data makes neither end take the other for one.
func TestHellosBeforeAnOutageEnds(t *testing.T) {
	t.Parallel()
	w := newMachineWorld(t, 1, defaults(), defaults())
	var onWire [2][][]byte
	lost := func(from *machineEnd, p []byte) bool {
		return from.side == 0 && (w.now < 6*time.Second || w.now < 9*time.Second && hasSignal(p, wire.Hello))
	}
	w.send = func(from *machineEnd, d *udp.Datagram) {
		if to := 1 - from.side; !lost(from, d.Buf) {
			onWire[to] = append(onWire[to], bytes.Clone(d.Buf))
		}
	}
	w.dial(7, false)
	_, err := w.ends[0].Write(0, []byte("data"), false)
	require.NoError(t, err)
	for ; w.now < 20*time.Second; w.now += 10 * time.Millisecond {
		for side, e := range w.ends {
			arrived := onWire[side]
			onWire[side] = nil
			for _, p := range arrived {
				e.receive(p, w.ends[1-side].addr)
			}
			e.respond()
			e.wakes()
			require.True(t, e.conn == nil || e.conn.hs.Peer != opening.Legacy, "end %d at %v", side, w.now)
		}
	}
	for _, e := range w.ends {
		require.NoError(t, e.conn.closing.err)
		require.GreaterOrEqual(t, e.conn.hs.Peer, opening.Extended)
	}
}

// hasSignal reports whether a packet in the clear has a signal.
func hasSignal(packet []byte, code wire.Code) bool {
	for len(packet) >= wire.HeaderSize {
		h := wire.DecodeHeader(packet)
		if s, is := h.Signal(); is && s.Code == code {
			return true
		}
		payload, _ := h.Payload(packet[wire.HeaderSize:])
		packet = packet[wire.HeaderSize+len(payload):]
	}
	return false
}
