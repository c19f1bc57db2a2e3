package kcp

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/fec"
)

// Conn is a session: a reliable, ordered connection with one peer. It is a
// net.Conn, and in message mode has messages with boundaries besides. All
// methods are safe for concurrent use.
type Conn struct {
	ep     *Endpoint
	key    sessionKey
	remote net.Addr

	writing sync.Mutex // held by the one Write at work

	mu                          sync.Mutex
	kcp                         *KCP
	canRead                     notifier  // something to read, or reason to fail
	canWrite                    notifier  // room to write, everything acknowledged, or reason to fail
	readerWaitsFor              *notifier // what the call waits for that is about to read the socket, or does
	readDeadline, writeDeadline deadline
	hs                          handshakeState
	err                         error          // why the session ended
	ending                      error          // why it is to end, once the batch of input is done
	dropped                     *Drops         // nil: none
	numbers                     *packetNumbers // nil: packets have none
	sameConv                    *Conn          // the next of the conversation id; under Endpoint.mu
	search                      *pmtuSearch    // nil before there is reason for one
	mtuCounts                   probeCounts
	outgoing                    outgoing
	decoder                     *fec.Decoder      // nil until the peer sends FEC, and after the end
	decoded                     *fec.DecoderStats // what it had done by the end; nil: nothing
	datagrams                   *datagramQueue    // nil before the first

	// Times since the endpoint's epoch.
	born         time.Duration
	lastInput    time.Duration // the batch of input at work came
	lastHeard    time.Duration // a good packet came from the peer
	lastActive   time.Duration // new data has come, or was acknowledged, or a datagram has left
	lastTaken    time.Duration // the peer has taken data, or there was some for it again; 0: there is none
	activity     activity      // up to then
	unaBackSince time.Duration // all that came since acknowledges less than before; 0: it does not
	lastData     time.Duration // data came from the peer
	since        time.Duration // there is something outstanding
	linger       time.Duration // how long Close waits without progress
	endAt        time.Duration // when lingering or draining ends
	closeBy      time.Duration // when lingering ends at the latest
	compactAt    time.Duration // 0: nothing to compact
	challengedAt time.Duration // challenged was sent
	wakeAt       time.Duration // 0: no wake-up asked for
	holding      holding

	// What is small stands together; there may be very many sessions.
	unvalidated    atomic.Bool // accepted, and the peer's address is not validated; kcp.validation is its credit
	active         atomic.Bool // something has come from the peer since Endpoint.oldestHalfOpen looked
	greeted        atomic.Bool // the peer is one of ours
	lingerFrom     seq         // snd_una at the last progress
	challenged     uint32      // sn of the last challenge of another address
	wakeIndex      int32       // of wakeQueue, under its lock; 0: no wake-up asked for
	migrations     uint32      // changes of the peer's address
	clockBase      uint32      // what the state machine's clock shows at the epoch; random, see validation.go
	shard          uint16      // of the endpoint's sockets the one that the peer's packets come to
	state          connState
	restartHints   uint8 // answers since unaBackSince that acknowledge less than before
	closed         bool  // by the application
	background     bool  // Close does not wait, or no longer
	dialled        bool  // by us; accepted otherwise
	dialling       bool  // Dial waits, and its time is what counts
	offered        bool  // to Accept, or dialled
	missed         bool  // the peer was asked why no more data comes since lastData
	asksKind       bool  // CloseWrite waits until it is known what the peer is
	undelivered    bool  // the session has ended before the peer had all that was written
	errReported    bool  // Read or Write has returned err
	offPath        bool  // it was sent by somebody without a session
	respondPending bool  // answer is to be called
	replyPending   bool  // by the next call of the application, or by the loop
	wokeWaiter     bool  // a call that waited has been woken
	filling        bool  // a waiting Read has lent its buffer to the state machine
	fecBound       bool  // Endpoint.fecByAddr has this session; under Endpoint.mu
	counted        bool  // as validated in Endpoint.perNetwork; under Endpoint.mu
	openedFEC      bool  // the peer's first packet had an FEC header
	outstanding    bool  // something is unacknowledged, since then
	retired        bool  // out of the endpoint
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
	c := &Conn{ep: e, key: key, remote: remote, clockBase: randomConv()}
	c.canRead.init(c)
	c.canWrite.init(c)
	c.outgoing.init(e)
	c.kcp = New(key.conv, c.collect)
	h := hooks{packetBuffer: c.packetBuffer, onSignal: c.onSignal, frugal: true}
	if e.config.Cipher == nil {
		h.outputInPlace, h.headroom = c.queueSegment, c.outgoing.sender.overhead.head()+headerSize
	}
	c.kcp.setHooks(h)
	e.config.apply(c.kcp)
	now := e.now()
	c.born, c.lastInput, c.lastHeard, c.lastActive = now, now, now, now
	c.linger = e.config.Linger
	c.setClock(now)
	return c
}

// input feeds packets to the state machine. It is true where answer is to be
// called after the batch, for which it is true once.
func (c *Conn) input(packets []routedPacket, shard int, now time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readerWaitsFor = nil
	if c.state == stateEnded {
		c.ep.counters.dropEnded.Add(uint64(len(packets)))
		return false
	}
	c.setClock(now)
	c.shard = uint16(shard)
	segments := c.kcp.counts().SegmentsReceived
	news := false
	for i := range packets {
		p := &packets[i].inPacket
		if c.state == stateEnded {
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
		c.lastInput = now
		c.kcp.setPressure(c.memoryPressure(), c.unvalidated.Load())
		if c.kcp.received(p.size) {
			c.active.Store(true)
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
		c.lastData, c.missed = now, false
	}
	if !news {
		c.account() // else the answer does
	}
	if !news && !c.wokeWaiter || c.respondPending {
		return false
	}
	c.respondPending = true
	return true
}

// decode takes a packet with an FEC header. It is false where nothing is left
// for the state machine.
func (c *Conn) decode(p inPacket, now time.Duration) ([]byte, bool) {
	if p.kind == datagramPacket {
		if c.state == stateOpen {
			c.takeDatagram(p.data[datagramHeader:])
			c.canRead.Broadcast()
			c.heard(now)
		}
		return nil, false
	}
	if c.kcp.underPressure() {
		return c.decodePlain(p) // nothing is kept for it
	}
	if c.decoder == nil {
		c.decoder = fec.NewDecoder()
	}
	data, kind, err := c.decoder.Decode(p.data, clock(now), func(packet []byte) {
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
	if c.decoder != nil && c.decoder.Stats().Held > 0 {
		c.decoder.Compact()
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
	outside := c.offPath
	c.offPath = false
	switch {
	case err != nil:
		c.drops().count(err)
	case !outside:
		c.heard(now)
	}
}

// drops returns the counts of what was dropped, which most sessions have none of.
func (c *Conn) drops() *Drops {
	if c.dropped == nil {
		c.dropped = new(Drops)
	}
	return c.dropped
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
	c.respondPending, c.replyPending = false, false
	if c.state == stateEnded {
		return false
	}
	if c.readable() {
		c.canRead.Broadcast()
	}
	c.sendDueSignals(now)
	c.flushDue(now)
	c.finishStep(now)
	if c.room() > 0 || c.kcp.WaitSend() == 0 {
		c.canWrite.Broadcast()
	}
	c.writePackets()
	roused := c.wokeWaiter
	c.wokeWaiter = false
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
	c.canRead.Broadcast()
	c.canWrite.Broadcast()
}

// LocalAddr returns the address of the endpoint's socket.
func (c *Conn) LocalAddr() net.Addr { return c.ep.LocalAddr() }

// RemoteAddr returns the address of the peer. It changes when the peer moves.
func (c *Conn) RemoteAddr() net.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.remote
}

// Conv returns the conversation id.
func (c *Conn) Conv() uint32 { return c.key.conv }

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
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	if read {
		c.readDeadline.set(t, &c.mu, &c.canRead)
	}
	if write {
		c.writeDeadline.set(t, &c.mu, &c.canWrite)
	}
	return nil
}

// opError wraps err as the net package does, which leaves io.EOF as it is.
func (c *Conn) opError(op string, err error) error {
	if err == io.EOF {
		return err
	}
	return opError(op, c.LocalAddr(), c.remote, err)
}
