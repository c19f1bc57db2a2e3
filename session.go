package kcp

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/incast"
	"github.com/arqnet/kcp/internal/migration"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/udp"
)

// Conn is a session: a reliable, ordered connection with one peer. It implements
// net.Conn. With Config.MessageMode it also keeps message boundaries. All methods are
// safe for concurrent use. They are
//   - the stream of bytes: Read, Write, TryWrite, WriteAvailable, WriteReady, Flush;
//   - messages: ReadMessage, NextMessageSize, WriteMessage, TryWriteMessage,
//     SendMessage, MaxMessageSize;
//   - unreliable datagrams: SendDatagram, ReceiveDatagram, HandleDatagrams,
//     MaxDatagramSize;
//   - several flows in one session: OpenStream, AcceptStream;
//   - deadlines: SetDeadline, SetReadDeadline, SetWriteDeadline;
//   - the end: CloseWrite, Close, CloseWithError, Abort, SetLinger, Done, Err;
//   - what there is to know: Stats, Ping, Peer, ConnectionState, Conv, LocalAddr,
//     RemoteAddr, Dialled, Endpoint;
//   - settings at run time: SetMTU, SetWindow, SetNoDelay, SetCongestionControl,
//     SetMessageMode, SetWriteBuffer, SetMaxRate.
//
// Errors are of type *net.OpError, but for io.EOF and those of Err; use errors.Is and
// errors.As. An extended peer is an endpoint of this package, and a legacy peer any
// other, such as kcp-go or the C reference.
type Conn struct {
	ep *Endpoint // immutable

	writing sync.Mutex // held for a whole Write or WriteMessage; locked before mu

	// mu guards the fields below, unless their comment says otherwise. Unexported
	// methods require it, unless their comment says that they lock it or run
	// without it.
	mu sync.Mutex
	session
	io    ioState
	calls *callState // nil: nothing of it is needed
}

// pathState is the network path to the peer.
type pathState struct {
	validation *migration.Validation[inPacket] // nil: no packet has come from another address
	shard      uint16                          // index of the endpoint's socket that receives the peer's packets
}

// pathEnds is the addresses of a path. It is immutable.
type pathEnds struct {
	remote net.Addr  // the peer's, as applications see it
	local  udp.Local // of an accepted session: the one that its peer sends to
}

// ioState is the state of the application's calls: what they wait for.
type ioState struct {
	canRead        notifier  // there is something to read, or a reason to fail
	canWrite       notifier  // there is room, all is acknowledged, or there is a reason to fail
	readerWaitsFor *notifier // what the call that reads the socket waits for; nil: no call reads
	readDeadline   deadline
	writeDeadline  deadline
	member         *groupMember // the session's place in a Group; nil: it is in none

	filling     bool      // a blocked Read has lent its buffer to the state machine
	errReported bool      // Read or Write has returned closing.err
	wokeWaiter  bool      // a waiting call was woken since the last respond
	wakes       heldWakes // wake-ups that are held back until c.mu is free
	batched     batched
}

// closeState is how far a session is with its end, and why it ends. Times are since the
// endpoint's epoch.
type closeState struct {
	closing.State
	err    error // why the session ended; nil: it has not, or was closed in order
	ending error // ends the session after the batch of input; nil: it goes on
}

// timerState is the session's timers. Times are since the endpoint's epoch.
type timerState struct {
	wakeAt    time.Duration // the wake-up that is set; 0: none
	dueAt     time.Duration // when something is to be done; 0: never. Not before wakeAt
	compactAt time.Duration // when spare memory is released; 0: there is none
	heldSince uint32        // since when time-outs wait, in ms since the epoch, from 1; 0: they do not
	heldFor   uint32        // for what they wait; see Endpoint.arrived
	wakeIndex int32         // position in its queue of Endpoint.wakes, from 1; 0: not queued; guarded by its lock
	clockBase uint32        // the state machine's clock at the epoch, ms; random, see internal/amplification
}

// inputState is what handles input before the state machine, or beside it.
type inputState struct {
	decoder   *fec.Decoder   // nil until the peer sends FEC, and once the session is retired
	datagrams *datagramQueue // nil until the first
	holding   holding        // memory held because of the peer
	arrived   uint32         // payload bytes that holding.recent counts, or has counted, modulo 2^32
	sending   incast.Sender  // its turn: the lock of incast.Turns

	protection protect.Protection // of packets; see protect.Scheme.Number
}

const (
	// compactAfter is the idle time after which spare memory is released.
	compactAfter = time.Second
	// writeBatch is how many segments Write queues before each flush.
	writeBatch = 64
	// handshakeTime is how long a session that has not been offered to Accept
	// may wait for address validation (RFC 9000 §8).
	handshakeTime = 10 * time.Second
)

// newConn returns a session that is not yet in the endpoint's tables. It runs
// without Conn.mu, as no other goroutine knows the session.
func newConn(e *Endpoint, key sessionKey, remote net.Addr) *Conn {
	c := &Conn{ep: e}
	c.io.canRead.init(c)
	c.io.canWrite.init(c)
	c.init(e.shared(), (*sessionHost)(c), key, remote)
	return c
}

// input locks c.mu and feeds packets to the state machine. It reports whether
// the caller must call respond after the batch, at most once per batch.
func (c *Conn) input(packets []routedPacket, shard int, now time.Duration) bool {
	c.mu.Lock()
	defer c.unlock()
	done := false
	defer c.endIfUnwound(&done)
	c.io.readerWaitsFor = nil
	changed := c.inputLocked(packets, shard, now)
	done = true
	c.letGoOn()
	if !changed && !c.io.wokeWaiter || c.step.respondPending || c.closing.Phase >= closing.Ended {
		return false
	}
	c.step.respondPending = true
	return true
}

// inputLocked feeds packets to the state machine. It reports whether that may have
// changed anything.
func (c *session) inputLocked(packets []routedPacket, shard int, now time.Duration) bool {
	if c.closing.Phase >= closing.Ended {
		c.shared.counters.dropEnded.Add(uint64(len(packets)))
		return false
	}
	c.setClock(now)
	changed := c.path.shard != uint16(shard) && c.changeShard(uint16(shard))
	segments, fresh := c.kcp.counts().SegmentsReceived, uint64(0)
	beside := c.shared.several() || c.in.sending != (incast.Sender{}) // other sessions, now or lately
	if beside {
		fresh = newSegments(c.kcp.counts())
	}
	if c.path.validation != nil {
		changed = c.inputDeferred(now) || changed
	}
	for i := range packets {
		p := &packets[i].inPacket
		if c.closing.Phase >= closing.Ended {
			c.shared.counters.dropEnded.Add(uint64(len(packets) - i))
			break
		}
		changed = c.inputPacket(p, now) || changed
	}
	if n := c.kcp.counts().SegmentsReceived - segments; n > 0 {
		c.live.MoreExpected(now)
		if beside {
			c.takeShare(packets, int(newSegments(c.kcp.counts())-fresh), c.host.incast(shard), now)
		}
	} else if beside && c.kcp.counts().PacketsSent == 0 {
		c.limitFirstWindow(c.host.incast(shard))
	}
	if !changed {
		c.account() // else respond does it
	}
	return changed
}

// inputPacket feeds one packet to the state machine. It reports whether that may
// have changed anything.
func (c *session) inputPacket(p *inPacket, now time.Duration) (changed bool) {
	if p.kind >= clearPacket {
		return c.inputHandshake(p, now)
	}
	if v := c.in.protection.Fresh(&p.Packet, true); v != protect.New {
		if v == protect.Foreign && c.takeResets(p) {
			return true
		}
		c.shared.counters.dropReplay.Add(1)
		return false
	}
	c.step.inputAt = now
	a := arrival{unvalidated: c.hs.unvalidated.Load()}
	if a.unvalidated || c.shared.overMemoryLimit() {
		a.pressure = c.memoryPressure()
	}
	credited := a.unvalidated && c.kcp.validation().Received(p.size) // what waits for that may leave
	if credited {
		c.hs.active.Store(true)
	}
	if c.tls != nil && c.takeSecured(p) {
		return true
	}
	data := p.Data
	if p.kind != plainPacket {
		var ok bool
		if data, ok = c.decode(*p, a, now); !ok {
			return p.kind != datagramPacket || credited // parity may have recovered something
		}
	}
	rtt, err := c.kcp.feed(data, a)
	c.packetDone(err, len(data), now)
	c.measuredByData(time.Duration(rtt)*time.Microsecond, now)
	return true
}

// decode takes a packet with an FEC header, and feeds packets that it recovers
// to the state machine. It returns the packet's own data. It reports false if
// there is none for the state machine.
func (c *session) decode(p inPacket, a arrival, now time.Duration) ([]byte, bool) {
	if p.kind == datagramPacket {
		if c.closing.Phase < closing.Lingering {
			c.takeDatagram(p.Data[datagramHeader:])
			c.step.ready |= readers
			c.heard(now)
		}
		return nil, false
	}
	if a.unvalidated || a.pressure != pressureNone {
		return c.decodePlain(p) // under pressure, nothing is kept for recovery
	}
	if c.in.decoder == nil {
		c.in.decoder = fec.NewDecoder()
	}
	recovered := a
	recovered.recovered = true
	data, kind, err := c.in.decoder.Decode(p.Data, clock(now), func(packet []byte) {
		_, err := c.kcp.feed(packet, recovered)
		c.packetDone(err, len(packet), now)
	})
	if err != nil {
		c.drops().FEC++
		return nil, false
	}
	return data, kind == fec.KindData
}

// decodePlain is decode under memory pressure: the packet is not kept for
// recovery, and the decoder releases what it holds.
func (c *session) decodePlain(p inPacket) ([]byte, bool) {
	if c.in.decoder != nil && c.in.decoder.Stats().Held > 0 {
		c.in.decoder.Compact()
	}
	if p.kind != fecPacket {
		return nil, false
	}
	if int(binary.LittleEndian.Uint16(p.Data[fec.HeaderSize-2:])) != len(p.Data)-(fec.HeaderSize-2) {
		c.drops().FEC++
		return nil, false
	}
	return p.Data[fec.HeaderSize:], true
}

// packetDone ends the processing of a packet of size bytes: it counts a packet
// that the state machine refused with err. Any other packet is a sign of life
// of the peer, unless it came from outside the session.
func (c *session) packetDone(err error, size int, now time.Duration) {
	outside := c.step.offPath
	c.step.offPath = false
	switch {
	case err != nil:
		countDrop(c.drops(), err)
		c.traceDropped(size, err)
	case !outside:
		c.heard(now)
	}
}

// drops returns the drop counters, which it allocates: most sessions drop
// nothing.
func (c *session) drops() *Drops { return &c.rarely().dropped }

// respond locks c.mu, sends what a batch of input has caused, and wakes the
// calls that wait for it. The packets are left to b, unless that is nil. It reports
// whether a waiting call was woken since the last time.
func (c *Conn) respond(now time.Duration, b *sendBatch) bool {
	c.mu.Lock()
	defer c.unlockWith(b)
	c.io.wakes |= holdWakes
	if !c.respondLocked(now) {
		return false
	}
	c.letGoOn()
	woke := c.io.wokeWaiter
	c.io.wokeWaiter = false
	return woke
}

// respondLater locks c.mu, and leaves what respond would do to the waiting calls and the
// next wake-up, unless it was done.
func (c *Conn) respondLater() {
	c.mu.Lock()
	defer c.unlock()
	if c.step.respondPending && c.closing.Phase < closing.Ended {
		c.step.respondPending = false
		c.wakeAll()
		c.wake(c.ep.now())
	}
}

// respondLocked is respond with c.mu held, up to the collected packets. It reports false
// if the session had ended.
func (c *session) respondLocked(now time.Duration) bool {
	c.step.respondPending, c.step.replyPending = false, false
	if c.closing.Phase >= closing.Ended {
		return false
	}
	if c.readable() {
		c.step.ready |= readers
	}
	done := false
	defer c.endIfUnwound(&done)
	c.sendDueSignals(now)
	c.flushDue(now)
	c.finishStep(now)
	if c.kcp.WaitSend() == 0 || c.room() > 0 || c.measurement().delivers(c.kcp.position().acked) {
		c.step.ready |= writers
	}
	done = true
	return true
}

// readable reports whether a waiting Read must look again: there is data, or
// the peer has announced its end.
func (c *session) readable() bool {
	return c.kcp.receiver().readable() || c.closing.Read != closing.ReadOpen
}

// unlock carries out what a step has brought about. Packets are written once c.mu is
// released: see writePackets. Nothing lets go of c.mu in the middle but await.
func (c *Conn) unlock() {
	c.letGoOn()
	held, writes := c.io.wakes, c.toWrite()
	c.io.wakes = 0
	c.outgoing.sending = c.outgoing.sending || writes
	c.mu.Unlock()
	if held&heldRead != 0 {
		c.io.canRead.cond.Broadcast() // without c.mu, which the calls lock at once
	}
	if held&heldWrite != 0 {
		c.io.canWrite.cond.Broadcast()
	}
	if writes {
		c.writePackets()
	}
}

// unlockWith is unlock, but leaves the packets to b, unless that is nil.
func (c *Conn) unlockWith(b *sendBatch) {
	if b == nil || !c.toWrite() || c.outgoing.waiting() == 0 || c.outgoing.probe != nil {
		c.unlock()
		return
	}
	c.outgoing.sending, c.outgoing.batched = true, true
	c.unlock()
	b.add(c)
}

// endIfUnwound is deferred by what calls code of the application's in the middle of a
// change. If that has panicked, or has ended its goroutine, *done is not set, and the
// session ends: nobody knows what state it is in. No more such code is called. c.mu is
// held.
func (c *session) endIfUnwound(done *bool) {
	if *done {
		return
	}
	c.kcp.SetTrace(nil)
	if c.outgoing.outbox != nil {
		c.outgoing.probe, c.outgoing.packets = nil, nil
	}
	c.dropReceived()
	c.end(errUnwound)
}

// call calls f, which is, or calls, code of the application's. c.mu is held.
func (c *session) call(f func()) {
	done := false
	defer c.endIfUnwound(&done)
	f()
	done = true
}

// each calls f for each of conns, also for those behind one for which code of the
// application's panics.
func each(conns []*Conn, f func(*Conn)) {
	next := 0
	defer func() {
		if next < len(conns) {
			each(conns[next:], f)
		}
	}()
	for next < len(conns) {
		next++
		f(conns[next-1])
	}
}

// wakeAll wakes all waiting calls, which then look why.
func (c *session) wakeAll() { c.step.ready |= readers | writers }

// LocalAddr returns the address of the endpoint's socket. If that is bound to none, as
// ":4000" is, an accepted session has the address that its peer sends to, with the port,
// and the zone if it is link-local. Its packets leave from there, as long as the host
// has that address. Only Linux, macOS and the BSDs tell it.
func (c *Conn) LocalAddr() net.Addr {
	socket := c.ep.LocalAddr()
	at, ok := socket.(*net.UDPAddr)
	if own := c.ends.Load().local.Addr(); ok && own.IsValid() {
		return net.UDPAddrFromAddrPort(netip.AddrPortFrom(own, at.AddrPort().Port()))
	}
	return socket
}

// RemoteAddr returns the address of the peer. It changes when the peer migrates (RFC
// 9000 §9), which needs TLS, or a Cipher that authenticates. So may LocalAddr.
func (c *Conn) RemoteAddr() net.Addr { return c.ends.Load().remote }

// Conv returns the conversation id, which never changes.
func (c *Conn) Conv() uint32 { return c.entry.Conv }

// SetDeadline sets the read and the write deadline; see SetReadDeadline and
// SetWriteDeadline.
func (c *Conn) SetDeadline(t time.Time) error { return c.setDeadlines(t, true, true) }

// SetReadDeadline sets the time after which Read, ReadMessage and ReceiveDatagram fail
// with os.ErrDeadlineExceeded. The zero time means never. It returns net.ErrClosed after
// Close or Abort.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, true, false) }

// SetWriteDeadline sets the time after which calls that wait for room, and CloseWrite,
// fail with os.ErrDeadlineExceeded. The zero time means never. It returns net.ErrClosed
// after Close or Abort.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, false, true) }

// setDeadlines locks c.mu.
func (c *Conn) setDeadlines(t time.Time, read, write bool) error {
	c.mu.Lock()
	defer c.unlock()
	if c.closing.Caller != closing.Uses {
		return c.opError("set", net.ErrClosed)
	}
	if read {
		c.io.readDeadline.set(t, &c.mu, &c.io.canRead)
	}
	if write {
		c.io.writeDeadline.set(t, &c.mu, &c.io.canWrite)
	}
	return nil
}

// opError wraps err in a *net.OpError, as package net does; io.EOF stays as it
// is, and so does ErrWouldBlock.
func (c *Conn) opError(op string, err error) error {
	if err == io.EOF || err == ErrWouldBlock {
		return err
	}
	return opError(op, c.LocalAddr(), c.RemoteAddr(), err)
}
