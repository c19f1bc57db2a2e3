package kcp

import (
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/incast"
	"github.com/arqnet/kcp/internal/neterr"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/takeover"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/internal/wakeup"
	"github.com/arqnet/kcp/internal/wire"
)

// The packet pipeline: output passes forward error correction and then the cipher,
// input the reverse. Each step works in the packet's own buffer, with space for headers
// in front and for the cipher's tag behind. WIRE.md §4 has the layout.

// readLoop reads a socket except during the turns of calls (see wakeup.ReadTurn).
func (e *Endpoint) readLoop(s *shard) {
	for {
		if h := e.wantsPause(s); h != nil && !udp.HasReceived(s.sock()) {
			e.park(s, h)
		}
		woke, ok := e.readOnce(s, nil)
		if !ok {
			return
		}
		if woke && s.lead.Possible() && e.shared.Single() && s.lead.HandOver() {
			if c := s.lead.Await(); c != nil {
				c.respond(e.now(), nil)
			}
		}
	}
}

// readOnce reads one batch from a socket and feeds it to the sessions. Then each replies
// once, except for reading: its call runs readOnce, and decides itself when to reply. The
// read loop gives nil. woke: a waiting call was woken; ok: the socket can be read.
func (e *Endpoint) readOnce(s *shard, reading *Conn) (woke, ok bool) {
	n, err := s.link.Load().Read(s.batch)
	if err != nil {
		return false, e.interrupted(s, err) || e.resumes(s) || e.survives(s, err)
	}
	s.failures = neterr.Failures{}
	s.in.size = n
	if e.shared.Env != nil {
		e.shared.Env.Woken(nil, uint32(s.in.shard), wakeup.AtReader)
	}
	if !e.stopped() { // else the reader ends only now, and what it has read is lost
		grouped := reading == nil && e.feeding.Used.Load()
		if grouped {
			e.feeding.Begin()
		}
		woke = e.take(s.batch[:n], &s.in, reading)
		if e.replies.queued.Load() {
			e.sendReplies(s.in.shard)
		}
		if grouped {
			e.feeding.End(attendGroup)
		}
		return woke, true
	}
	return false, false
}

// readState is the working memory of a socket's reader for one batch.
type readState struct {
	shard    int // index of the socket; immutable
	packets  []session.InPacket
	to       []*Conn // their sessions
	touched  []*Conn // sessions to call respond of after the batch
	handed   []handedDatagram
	kept     []byte    // a packet that may not open
	out      sendBatch // what they send
	burst    udp.Burst
	size     int                 // packets of the last batch from the socket
	forwards *takeover.Forwarder // datagrams of the batch for predecessors; nil: there are none

	// The session of an earlier packet of the batch, and its source; nil: none.
	last     *Conn
	lastFrom session.Source
	lastConv uint32
}

// handedDatagram is a datagram of a batch for the handler of its session.
type handedDatagram struct {
	conn *Conn
	data []byte
}

// take feeds a batch, and what follows in a burst, to the sessions, consecutive packets
// of one in one call. Then each replies once. reading and woke are as for readOnce.
func (e *Endpoint) take(batch []udp.Datagram, in *readState, reading *Conn) (woke bool) {
	now := e.now()
	shard := &e.socket.shards[in.shard]
	shard.taking.Store(int64(now))
	defer shard.taking.Store(0)
	bytes, buffered := 0, 0
	for i := range batch {
		buffered += incast.BufferBytes(len(batch[i].Buf))
	}
	taken := shard.taken.Add(uint32(buffered / arrivedUnit))
	for i := range batch {
		d := &batch[i]
		bytes += len(d.Buf)
		in.packets = append(in.packets, session.InPacket{})
		if c := e.receive(d, in, &in.packets[len(in.to)], now); c != nil {
			in.to = append(in.to, c)
		} else {
			in.packets = in.packets[:len(in.to)]
		}
	}
	several := e.shared.Several()
	if several {
		shard.observe(bytes, now)
	}
	e.shared.Counters.PacketsReceived.Add(uint64(len(batch)))
	e.shared.Counters.BytesReceived.Add(uint64(bytes))
	for first, end := 0, 0; first < len(in.packets); first = end {
		c := in.to[first]
		for end++; end < len(in.packets) && in.to[end] == c; {
			end++
		}
		if c.input(in.packets[first:end], in.shard, now) {
			in.touched = append(in.touched, c)
		}
	}
	shard.fed.Store(taken)
	shard.taking.Store(0)
	if bytes >= udp.BurstLeast && reading == nil && len(in.handed) == 0 && in.forwards == nil && shard.link.Load().Inbox == nil {
		if n := in.burst.More(shard.sock(), shard.batch, bytes); n > 0 {
			in.reset()
			return e.take(shard.batch[:n], in, nil)
		}
	}
	woke, in.burst = in.respond(reading, now), udp.Burst{}
	if several {
		shard.incast.Advance(now)
	}
	if e.shared.OverMemoryLimit() || e.shared.Load.Share.Load() != 0 {
		e.relieve(now)
	}
	for i := range in.handed {
		in.handed[i].conn.handleDatagram(in.handed[i].data)
	}
	if in.forwards != nil && !in.forwards.Flush(&e.takeover.Before) {
		in.forwards = nil
	}
	in.reset()
	return woke
}

// reset makes in ready for the next batch, except for sessions that have not replied.
func (in *readState) reset() {
	clear(in.packets)
	clear(in.to)
	clear(in.handed)
	in.packets, in.to, in.handed, in.last = in.packets[:0], in.to[:0], in.handed[:0], nil
}

// dropBatch drops what is left of a batch in which code of the application's has
// panicked. Sessions that have got some of it go on.
func (s *shard) dropBatch() {
	s.taking.Store(0)
	s.fed.Store(s.taken.Load())
	for _, c := range s.in.touched {
		c.respondLater()
	}
	s.in.forwards, s.in.touched = nil, nil
	s.in.reset()
}

// respond lets each session that a batch has touched reply once, but the one that
// reads. Their packets leave together. It reports whether a waiting call was woken.
func (in *readState) respond(reading *Conn, now time.Duration) (woke bool) {
	var out *sendBatch
	if len(in.touched) > 1 {
		out = &in.out
		defer out.send() // even if code of the application's panics
	}
	for _, c := range in.touched {
		if c != reading {
			woke = c.respond(now, out) || woke
		}
	}
	clear(in.touched)
	in.touched = in.touched[:0]
	return woke
}

// receive opens and classifies a datagram into p, and returns its session; nil if none
// takes it, which is counted. A packet that only its session's keys open is opened last.
func (e *Endpoint) receive(d *udp.Datagram, in *readState, p *session.InPacket, now time.Duration) *Conn {
	p.Data, p.From, p.Size = d.Buf, session.SourceOf(d), len(d.Buf)
	if e.config.Cipher != nil && e.takeover.Before.Any() {
		in.forwarder().Keep(d.Buf) // Open works in place
	}
	var why admission.Reason
	p.Kind, p.Conv, why = e.table.Open(&p.Packet, admission.MakeKey(d.Addr, d.Peer, 0), &in.kept, e.mu.RLocker(), now)
	if why == admission.Cipher && p.Kind != session.PlainPacket && e.takeover.Before.Any() && e.forward(admission.MakeKey(d.Addr, d.Peer, p.Conv), d, p, in) {
		return nil
	}
	if why != admission.NoReason {
		e.shared.Counters.Count(why)
		if why == admission.Cipher {
			e.warnUnopened(p.From)
		}
		return nil
	}
	c := in.last
	if c == nil || !p.Kind.Alone() || p.Conv != in.lastConv ||
		p.From.Addr != in.lastFrom.Addr || p.From.Peer != nil || in.lastFrom.Peer != nil {
		if c = e.demultiplex(d, p, in, now); c == nil {
			return nil
		}
		if p.Kind.Alone() {
			in.last, in.lastFrom, in.lastConv = c, p.From, p.Conv
		}
	}
	if p.Kind == session.SealedPacket && !e.openSealed(c, p, now) {
		return nil
	}
	return c
}

// demultiplex finds the session of a packet, or opens one if the listener
// accepts it. It returns nil if no session takes the packet: it was dropped,
// which is counted, answered outside any session, or forwarded to another process.
func (e *Endpoint) demultiplex(d *udp.Datagram, p *session.InPacket, in *readState, now time.Duration) *Conn {
	key := admission.MakeKey(d.Addr, d.Peer, p.Conv)
	c := e.table.Find(key)
	if p.Kind == session.ParityPacket {
		c = e.table.OfParity(key)
	} else if c == nil {
		e.mu.RLock()
		c = e.table.Get(key)
		e.mu.RUnlock()
	}
	bound := c != nil && p.Kind == session.FECPacket && e.table.Bound(c)
	if c == nil {
		if e.takeover.Before.Any() && e.forward(key, d, p, in) {
			return nil
		}
		c = e.admit(key, p, now)
	}
	if c != nil && p.Kind == session.FECPacket && !bound {
		e.bindFEC(c)
	}
	return c
}

// write writes batch to a socket. A write error concerns one packet, which then
// counts as lost on the path. It reports whether the system has refused some as too
// large, and marks them.
func (e *Endpoint) write(shard int, batch []udp.Datagram) (refused bool) {
	s := &e.socket.shards[shard]
	for rest := batch; len(rest) > 0; {
		link := s.link.Load()
		n, err := link.Packets.WriteBatch(rest)
		e.shared.Counters.PacketsSent.Add(uint64(n))
		switch {
		case err == nil:
			return refused
		case link != s.link.Load():
			rest = rest[n:] // the socket was handed over meanwhile
		case neterr.Is(err, syscall.EMSGSIZE):
			e.shared.Counters.TooLarge.Add(1)
			rest[n].TooLarge, refused = true, true
			rest = rest[n+1:]
		case !e.writeFailed(err):
			return refused
		default:
			rest = rest[n+1:]
		}
	}
	return refused
}

// socketError is an error of a socket, or of its route, and when it happened, since the
// epoch.
type socketError struct {
	at  time.Duration
	err error
}

// socketErrorSince returns the last error of the socket, if it is not older than since.
func (e *Endpoint) socketErrorSince(since time.Duration) error {
	if last := e.socket.lastError.Load(); last != nil && last.at >= since {
		return last.err
	}
	return nil
}

// socketErrorOf is socketErrorSince for the session with a peer. An error of a socket
// that has other peers too counts if it names that one.
func (e *Endpoint) socketErrorOf(peer net.Addr, since time.Duration) error {
	err := e.socketErrorSince(since)
	var op *net.OpError
	if e.socket.own.Load() == nil && !(errors.As(err, &op) && op.Addr != nil && op.Addr.String() == peer.String()) {
		return nil
	}
	return err
}

// noteSocketError makes err the last error of the socket.
func (e *Endpoint) noteSocketError(err error) {
	e.socket.lastError.Store(&socketError{e.now(), err})
}

// writeFailed handles a write error of a socket. It reports false if the socket
// is closed.
func (e *Endpoint) writeFailed(err error) bool {
	e.shared.Counters.WriteErrors.Add(1)
	if errors.Is(err, net.ErrClosed) {
		return false
	}
	if !neterr.Is(err, syscall.EDESTADDRREQ) { // else the error of connecting it again says why
		e.noteSocketError(err)
	}
	e.refused(err) // the system reports it once, to a read or to a write
	e.troubled(err)
	e.warn("socket write failed", err)
	return true
}

// reply sends three signals at most to an address that is not the peer's of a session,
// which by seals. It reports whether the limit of the rate allows that.
func (e *Endpoint) reply(to session.Source, by protect.Protection, h wire.Header, signals ...wire.Signal) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.table.MayReply(e.now()) {
		e.shared.Counters.DropReplies.Add(1)
		return false
	}
	var content [3 * wire.HeaderSize]byte
	for i, s := range signals {
		s.Encode(h, content[i*wire.HeaderSize:])
	}
	e.queueReplyLocked(to, by, content[:len(signals)*wire.HeaderSize])
	return true
}

// queueReplyLocked queues a packet to the peer of a source, which by seals. It leaves
// from the address that the source has sent to. Endpoint.mu is held.
func (e *Endpoint) queueReplyLocked(to session.Source, by protect.Protection, content []byte) {
	head, tail := by.Overhead()
	p := e.shared.Packet(head + len(content) + tail)
	copy(p.Buf[head:], content)
	e.replies.queued.Store(true)
	e.replies.packets = append(e.replies.packets, p)
	e.replies.sealers = append(e.replies.sealers, by)
	e.replies.datagrams = append(e.replies.datagrams, to.Datagram(p.Buf))
}

// sendReplies encrypts and writes all queued replies. The readers call it after
// each batch, if there are any.
func (e *Endpoint) sendReplies(shard int) {
	e.mu.Lock()
	e.replies.queued.Store(false)
	packets, batch, sealers := e.replies.packets, e.replies.datagrams, e.replies.sealers
	e.replies.packets, e.replies.datagrams, e.replies.sealers = nil, nil, nil
	e.mu.Unlock()
	if len(packets) == 0 {
		return // another reader was faster
	}
	sealed := batch[:0]
	for i, d := range batch {
		if sealers[i].Seal(d.Buf, nil) == nil {
			sealed = append(sealed, d)
		}
	}
	e.write(shard, sealed)
	e.shared.Recycle(packets)
}
