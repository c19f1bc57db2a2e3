package kcp

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"time"

	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/pmtud"
)

// Conn is a session: a reliable, ordered connection with one peer. It is a
// net.Conn, and in message mode has messages with boundaries besides. All
// methods are safe for concurrent use.
type Conn struct {
	ep *Endpoint // does not change

	writing sync.Mutex // held by the one Write at work; taken before mu

	mu       sync.Mutex // guards what follows, but for what says otherwise
	kcp      *KCP       // the pointer does not change
	path     pathState
	io       ioState
	hs       handshakeState
	live     livenessState
	closing  closeState
	timers   timerState
	plpmtu   mtuState
	in       inputState
	outgoing outgoing
}

// pathState is where the peer is. Both locks are held to change key, remote and
// shard; Conn.mu or Endpoint.mu is enough to read them. key.conv does not change.
type pathState struct {
	key      sessionKey
	remote   net.Addr
	sameConv *Conn // the next of the conversation id; Endpoint.mu

	// Path validation (RFC 9000 §8.2).
	challengedAt time.Duration // when challenged was sent, since the epoch
	challenged   uint32        // sn of the last challenge of another address
	migrations   uint32        // changes of the peer's address

	shard    uint16 // of the endpoint's sockets the one that the peer's packets come to; Conn.mu
	fecBound bool   // Endpoint.fecByAddr has this session; Endpoint.mu
	counted  bool   // as validated in Endpoint.perNetwork; Endpoint.mu
}

// ioState is what calls of the application wait for and leave behind.
type ioState struct {
	canRead        notifier  // something to read, or reason to fail
	canWrite       notifier  // room to write, everything acknowledged, or reason to fail
	readerWaitsFor *notifier // what the call waits for that reads the socket, or is about to; nil: none does
	readDeadline   deadline
	writeDeadline  deadline

	filling        bool // a waiting Read has lent its buffer to the state machine
	errReported    bool // Read or Write has returned closing.err
	respondPending bool // respond is to be called after the batch
	replyPending   bool // the next call of the application sends the reply, or the read loop
	wokeWaiter     bool // the batch has woken a call that waited
	offPath        bool // the last packet was sent without knowledge of the session
}

// livenessState is what tells whether the peer is there. Times are since the
// endpoint's epoch.
type livenessState struct {
	lastInput    time.Duration // the batch of input at work came
	lastHeard    time.Duration // a good packet came from the peer
	lastActive   time.Duration // new data came, or was acknowledged, or a datagram left
	lastTaken    time.Duration // the peer took data, or there was some for it again; 0: there is none
	lastData     time.Duration // data came from the peer; 0: none has
	unaBackSince time.Duration // all that came since acknowledges less than before; 0: it does not
	since        time.Duration // something is outstanding since then, if outstanding is true
	activity     activity      // up to lastActive
	restartHints uint8         // answers since unaBackSince that acknowledge less than before
	missed       bool          // the peer was asked why no more data comes since lastData
	outstanding  bool          // something is unacknowledged, or unanswered
}

// closeState is how far the session is from its end. Times are since the
// endpoint's epoch.
type closeState struct {
	err         error         // why the session ended; nil: it has not, or in order
	ending      error         // why it is to end after the batch of input; nil: it is not
	linger      time.Duration // how long Close waits without progress
	endAt       time.Duration // when lingering or draining ends; 0: neither
	closeBy     time.Duration // when lingering ends at the latest
	lingerFrom  seq           // snd_una at the last progress
	state       connState
	closed      bool // the application has called Close or Abort
	background  bool // Close does not wait, or no longer
	undelivered bool // the session has ended before the peer had all that was written
	asksKind    bool // CloseWrite waits until it is known what the peer is
	retired     bool // out of the endpoint's tables
}

// timerState is when the session is woken. Times are since the endpoint's epoch.
type timerState struct {
	wakeAt    time.Duration // 0: no wake-up asked for
	compactAt time.Duration // 0: nothing to compact
	wakeIndex int32         // place in Endpoint.wakes, from 1; 0: none; guarded by its lock
	clockBase uint32        // what the state machine's clock shows at the epoch; random, see address_validation.go
}

// mtuState is the search for the path MTU (RFC 8899).
type mtuState struct {
	search *pmtud.Search // nil before there is reason for one
	counts probeCounts
}

// inputState is what comes before the state machine, or passes it by.
type inputState struct {
	decoder   *fec.Decoder      // nil until the peer sends FEC, and after the end
	decoded   *fec.DecoderStats // what it had done by the end; nil: nothing
	datagrams *datagramQueue    // nil before the first
	dropped   *Drops            // nil: none
	numbers   *packetNumbers    // nil: packets have none
	holding   holding           // memory
}

// connState is where a session is in its life.
type connState uint8

const (
	stateOpen      connState = iota
	stateLingering           // closed; waits for acknowledgements
	stateDraining            // closed; answers what the peer repeats
	stateEnded               // out of the endpoint
)

const (
	// compactAfter is the idle time after which spare memory is given back.
	compactAfter = time.Second
	// drainTime is the least time for which a closed session goes on to
	// acknowledge what the peer repeats; an acknowledgement may be lost, and
	// nothing would tell the peer that the data has arrived.
	drainTime = time.Second
	// drainRTOs is the same in time-outs of ours; the peer's are alike.
	drainRTOs = 6
	// writeBatch is how many segments Write queues before it flushes.
	writeBatch = 64
	// handshakeTime is how long a session that Accept has not returned may go
	// without the peer showing that it gets our packets.
	handshakeTime = 10 * time.Second
)

func newConn(e *Endpoint, key sessionKey, remote net.Addr) *Conn {
	c := &Conn{ep: e, path: pathState{key: key, remote: remote}, timers: timerState{clockBase: randomConv()}}
	c.io.canRead.init(c)
	c.io.canWrite.init(c)
	c.outgoing.init(e)
	c.kcp = New(key.conv, c.collect)
	h := hooks{packetBuffer: c.packetBuffer, onSignal: c.onSignal, frugal: true}
	if e.config.Cipher == nil {
		h.outputInPlace, h.headroom = c.queueSegment, c.outgoing.sender.overhead.head()+headerSize
	}
	c.kcp.setHooks(h)
	e.config.apply(c.kcp)
	now := e.now()
	c.hs.born, c.live.lastInput, c.live.lastHeard, c.live.lastActive = now, now, now, now
	c.closing.linger = e.config.Linger
	c.setClock(now)
	return c
}

// input feeds packets to the state machine. It is true where answer is to be
// called after the batch, for which it is true once.
func (c *Conn) input(packets []routedPacket, shard int, now time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.io.readerWaitsFor = nil
	if c.closing.state == stateEnded {
		c.ep.counters.dropEnded.Add(uint64(len(packets)))
		return false
	}
	c.setClock(now)
	c.path.shard = uint16(shard)
	segments := c.kcp.counts().SegmentsReceived
	news := false
	for i := range packets {
		p := &packets[i].inPacket
		if c.closing.state == stateEnded {
			c.ep.counters.dropEnded.Add(uint64(len(packets) - i))
			break
		}
		if !c.fresh(p, true) {
			if c.takeResets(p) {
				news = true
			} else {
				c.ep.counters.dropReplay.Add(1)
			}
			continue
		}
		c.live.lastInput = now
		c.kcp.setPressure(c.memoryPressure(), c.hs.unvalidated.Load())
		if c.kcp.received(p.size) {
			c.hs.active.Store(true)
		}
		data := p.data
		if p.kind != plainPacket {
			var ok bool
			if data, ok = c.decode(*p, now); !ok {
				news = news || p.kind != datagramPacket // parity may have recovered something
				continue
			}
		}
		c.packetDone(c.kcp.Input(data), now)
		news = true
	}
	if c.kcp.counts().SegmentsReceived != segments {
		c.live.lastData, c.live.missed = now, false
	}
	if !news {
		c.account() // else the answer does
	}
	if !news && !c.io.wokeWaiter || c.io.respondPending {
		return false
	}
	c.io.respondPending = true
	return true
}

// decode takes a packet with an FEC header. It is false where nothing is left
// for the state machine.
func (c *Conn) decode(p inPacket, now time.Duration) ([]byte, bool) {
	if p.kind == datagramPacket {
		if c.closing.state == stateOpen {
			c.takeDatagram(p.data[datagramHeader:])
			c.io.canRead.Broadcast()
			c.heard(now)
		}
		return nil, false
	}
	if c.kcp.underPressure() {
		return c.decodePlain(p) // nothing is kept for it
	}
	if c.in.decoder == nil {
		c.in.decoder = fec.NewDecoder()
	}
	data, kind, err := c.in.decoder.Decode(p.data, clock(now), func(packet []byte) {
		c.packetDone(c.kcp.InputRecovered(packet), now)
	})
	if err != nil {
		c.drops().FEC++
		return nil, false
	}
	return data, kind == fec.KindData
}

// decodePlain takes a packet with an FEC header without keeping it for recovery.
func (c *Conn) decodePlain(p inPacket) ([]byte, bool) {
	if c.in.decoder != nil && c.in.decoder.Stats().Held > 0 {
		c.in.decoder.Compact()
	}
	if p.kind != fecPacket {
		return nil, false
	}
	if int(binary.LittleEndian.Uint16(p.data[fec.HeaderSize-2:])) != len(p.data)-(fec.HeaderSize-2) {
		c.drops().FEC++
		return nil, false
	}
	return p.data[fec.HeaderSize:], true
}

// packetDone counts what became of a packet.
func (c *Conn) packetDone(err error, now time.Duration) {
	outside := c.io.offPath
	c.io.offPath = false
	switch {
	case err != nil:
		c.drops().count(err)
	case !outside:
		c.heard(now)
	}
}

// drops returns the counts of what was dropped, which most sessions have none of.
func (c *Conn) drops() *Drops {
	if c.in.dropped == nil {
		c.in.dropped = new(Drops)
	}
	return c.in.dropped
}

// respond flushes what a batch of input has caused, and wakes who waits for it.
// It is true if a call was woken since the last time.
func (c *Conn) respond(now time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.respondLocked(now)
}

// reply is answer with mu held.
func (c *Conn) respondLocked(now time.Duration) bool {
	c.io.respondPending, c.io.replyPending = false, false
	if c.closing.state == stateEnded {
		return false
	}
	if c.readable() {
		c.io.canRead.Broadcast()
	}
	c.sendDueSignals(now)
	c.flushDue(now)
	c.finishStep(now)
	if c.room() > 0 || c.kcp.WaitSend() == 0 {
		c.io.canWrite.Broadcast()
	}
	c.writePackets()
	roused := c.io.wokeWaiter
	c.io.wokeWaiter = false
	return roused
}

// readable reports whether there is news for calls that read.
func (c *Conn) readable() bool {
	return c.kcp.readable() || c.hs.peerFin
}

// unlocked calls f without the lock that is held, which is held again when f
// returns, or panics.
func (c *Conn) unlocked(f func()) {
	c.mu.Unlock()
	defer c.mu.Lock()
	f()
}

// wakeAll lets all waiting calls look why.
func (c *Conn) wakeAll() {
	c.io.canRead.Broadcast()
	c.io.canWrite.Broadcast()
}

// LocalAddr returns the address of the endpoint's socket.
func (c *Conn) LocalAddr() net.Addr { return c.ep.LocalAddr() }

// RemoteAddr returns the address of the peer. It changes when the peer moves.
func (c *Conn) RemoteAddr() net.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.path.remote
}

// Conv returns the conversation id.
func (c *Conn) Conv() uint32 { return c.path.key.conv }

// SetDeadline sets the read and the write deadline; see SetReadDeadline.
func (c *Conn) SetDeadline(t time.Time) error { return c.setDeadlines(t, true, true) }

// SetReadDeadline sets the time at which pending and future reads fail with
// os.ErrDeadlineExceeded; the zero time means never.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, true, false) }

// SetWriteDeadline sets the time at which pending and future writes fail with
// os.ErrDeadlineExceeded; the zero time means never.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, false, true) }

func (c *Conn) setDeadlines(t time.Time, read, write bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.closed {
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

// opError wraps err as the net package does, which leaves io.EOF as it is.
func (c *Conn) opError(op string, err error) error {
	if err == io.EOF {
		return err
	}
	return opError(op, c.LocalAddr(), c.path.remote, err)
}
