package kcp

import (
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
	peer   net.Addr // remote where it is not a UDP address, else nil

	writing sync.Mutex // held by the one Write at work

	mu        sync.Mutex
	kcp       *KCP
	canRead   news  // something to read, or reason to fail
	canWrite  news  // room to write, everything acknowledged, or reason to fail
	blockedOn *news // what the call waits for that is about to read the socket, or does
	rd, wd    deadline
	life      lifecycle
	err       error          // why the session ended
	ending    error          // why it is to end, once the batch of input is done
	dropped   *Drops         // nil: none
	numbers   *packetNumbers // nil: packets have none
	sameConv  *Conn          // the next of the conversation id; under Endpoint.mu
	search    *pmtuSearch    // nil before there is reason for one
	probing   probeCounts
	outgoing  outgoing
	decoder   *fec.Decoder   // nil until the peer sends FEC
	datagrams *datagramQueue // nil before the first

	// Times since the endpoint's epoch.
	born         time.Duration
	lastInput    time.Duration // the batch of input at work came
	lastHeard    time.Duration // a good packet came from the peer
	lastActive   time.Duration // data went in either direction
	activity     uint64        // segments and datagrams up to then
	unaBackSince time.Duration // all that came since acknowledges less than before; 0: it does not
	lastData     time.Duration // data came from the peer
	missed       time.Duration // lastData as the peer was asked why no more comes
	since        time.Duration // there is something outstanding
	linger       time.Duration // how long Close waits without progress
	endAt        time.Duration // when lingering or draining ends
	compactAt    time.Duration // 0: nothing to compact
	challengedAt time.Duration // challenged was sent
	wakeAt       time.Duration // 0: no wake-up asked for
	wakeIndex    int           // of wakeQueue, under its lock
	accounted    int           // bytes of Endpoint.buffered

	// What is small stands together; there may be very many sessions.
	unproven    atomic.Bool // accepted, and the peer has not shown that it gets our packets
	greeted     atomic.Bool // the peer is one of ours
	lingerFrom  seq         // snd_una at the last progress
	challenged  uint32      // sn of the last challenge of another address
	forgetful   uint8       // answers since unaBackSince that acknowledge less than before
	moves       uint32      // changes of the peer's address
	shard       uint16      // of the endpoint's sockets the one that the peer's packets come to
	state       connState
	closed      bool // by the application
	dialled     bool // by us; accepted otherwise
	offered     bool // to Accept, or dialled
	undelivered bool // the session has ended before the peer had all that was written
	told        bool // Read or Write has returned err
	outside     bool // it was sent by somebody without a session
	answering   bool // answer is to be called
	owes        bool // by the next call of the application, or by the loop
	roused      bool // a call that waited has been woken
	filling     bool // a waiting Read has lent its buffer to the state machine
	coded       bool // Endpoint.coded names this session; under Endpoint.mu
	outstanding bool // something is unacknowledged, since then
	buried      bool // out of the endpoint
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
	// provenAfter is how long after its first packet a peer that knows no
	// signals has to be heard of to be taken for real.
	provenAfter = time.Second
	// handshakeTime is how long an accepted session may go without the peer
	// showing that it gets our packets.
	handshakeTime = 10 * time.Second
)

func newConn(e *Endpoint, key sessionKey, remote, peer net.Addr) *Conn {
	c := &Conn{ep: e, key: key, remote: remote, peer: peer}
	c.canRead.init(c)
	c.canWrite.init(c)
	c.rd.init(&c.mu, &c.canRead)
	c.wd.init(&c.mu, &c.canWrite)
	c.outgoing.init(e)
	c.kcp = New(key.conv, c.collect)
	c.kcp.packetBuffer = c.packetBuffer
	c.kcp.onSignal = c.onSignal
	if e.config.Cipher == nil {
		c.kcp.lend, c.kcp.headroom = c.borrow, c.outgoing.sender.room.head()+headerSize
	}
	e.config.apply(c.kcp)
	now := e.now()
	c.born, c.lastInput, c.lastHeard, c.lastActive = now, now, now, now
	c.linger = e.config.Linger
	c.tell(now)
	if e.config.IdleTimeout > 0 {
		c.schedule(now)
	}
	return c
}

// input feeds packets to the state machine. It is true where answer is to be
// called after the batch, for which it is true once.
func (c *Conn) input(packets []arrival, shard int, now time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blockedOn = nil
	if c.state == stateEnded {
		c.ep.counters.dropEnded.Add(uint64(len(packets)))
		return false
	}
	c.tell(now)
	c.shard = uint16(shard)
	segments := c.kcp.counters.SegmentsReceived
	news := false
	for i := range packets {
		p := &packets[i].opened
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
		c.kcp.sparing, c.kcp.stranger = c.sparing(), c.unproven.Load()
		data := p.data
		if p.kind != plainPacket {
			var ok bool
			if data, ok = c.decode(*p, now); !ok {
				news = news || p.kind != datagramPacket // parity may have recovered something
				continue
			}
		}
		c.took(c.kcp.Input(data), now)
		news = true
	}
	if c.kcp.counters.SegmentsReceived != segments {
		c.lastData = now
	}
	if !news && !c.roused || c.answering {
		return false
	}
	c.answering = true
	return true
}

// sparing returns how sparing with memory the session has to be.
func (c *Conn) sparing() sparing {
	switch {
	case c.unproven.Load() && !c.offered:
		return sparesAlways
	case c.ep.short():
		return sparesMemory
	}
	return sparesNothing
}

// decode takes a packet with an FEC header. It is false where nothing is left
// for the state machine.
func (c *Conn) decode(p opened, now time.Duration) ([]byte, bool) {
	if p.kind == datagramPacket {
		if c.state == stateOpen {
			c.datagramQueue().add(p.data[datagramHeader:])
			c.canRead.Broadcast()
			c.heard(now)
		}
		return nil, false
	}
	if c.decoder == nil {
		c.decoder = fec.NewDecoder()
	}
	data, kind, err := c.decoder.Decode(p.data, clock(now), func(packet []byte) {
		c.took(c.kcp.InputRecovered(packet), now)
	})
	if err != nil {
		c.drops().FEC++
		return nil, false
	}
	return data, kind == fec.KindData
}

// took counts what became of a packet.
func (c *Conn) took(err error, now time.Duration) {
	outside := c.outside
	c.outside = false
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

// answer flushes what a batch of input has caused, and wakes who waits for it.
// It is true if a call was woken since the last time.
func (c *Conn) answer(now time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reply(now)
}

// reply is answer with mu held.
func (c *Conn) reply(now time.Duration) bool {
	c.answering, c.owes = false, false
	if c.state == stateEnded {
		return false
	}
	if c.readable() {
		c.canRead.Broadcast()
	}
	c.pump(now)
	c.flushDue(now)
	c.settle(now)
	if c.room() > 0 || c.kcp.WaitSend() == 0 {
		c.canWrite.Broadcast()
	}
	c.transmit()
	roused := c.roused
	c.roused = false
	return roused
}

// readable reports whether there is news for calls that read.
func (c *Conn) readable() bool {
	return c.kcp.rcvQueued > c.kcp.rcvPartial || c.kcp.sunk || c.life.peerFin
}

// tell tells the state machine the time.
func (c *Conn) tell(now time.Duration) { c.kcp.SetClockMicros(uint64(now.Microseconds())) }

// flush lets the state machine put out what it can.
func (c *Conn) flush(now time.Duration) {
	c.tell(now)
	c.kcp.Flush()
	c.compactAt = now + compactAfter
}

// flushDue lets it put out what has to leave by now.
func (c *Conn) flushDue(now time.Duration) {
	if at, ok := c.kcp.NextFlush(); len(c.kcp.signals) > 0 || ok && !seq(at).after(seq(clock(now))) {
		c.flush(now)
	}
}

// account tells the endpoint how much received data the session holds.
func (c *Conn) account() {
	if n := c.kcp.rcvBytes; n != c.accounted {
		c.ep.buffered.Add(int64(n - c.accounted))
		c.accounted = n
	}
}

// settle notes what the last step has changed, and asks for the next wake-up.
func (c *Conn) settle(now time.Duration) {
	c.account()
	n, d := &c.kcp.counters, c.datagramStats()
	if a := n.SegmentsSent + n.SegmentsReceived + d.Sent + d.Received; a != c.activity {
		c.activity, c.lastActive = a, now
	}
	c.progress(now)
	waiting := c.kcp.WaitSend() > 0 || c.life.waiting()
	if waiting && !c.outstanding {
		c.since = now
	}
	c.outstanding = waiting
	c.schedule(now)
}

// schedule asks for a wake-up at the next time that something has to be done,
// if there is none before that anyway.
func (c *Conn) schedule(now time.Duration) {
	var next time.Duration
	sooner := func(at time.Duration) {
		if next == 0 || at < next {
			next = max(at, 1)
		}
	}
	cfg := &c.ep.config
	if at, ok := c.kcp.NextFlush(); ok {
		// The clock counts whole milliseconds: it shows at when at has begun.
		wait := time.Duration(seq(at).diff(seq(clock(now))))
		sooner(now.Truncate(time.Millisecond) + wait*time.Millisecond)
	}
	if c.outstanding && cfg.PeerTimeout > 0 {
		sooner(max(c.lastHeard, c.since) + cfg.PeerTimeout)
	}
	if cfg.IdleTimeout > 0 && c.state == stateOpen {
		sooner(c.lastActive + cfg.IdleTimeout)
	}
	if c.endAt > 0 {
		sooner(c.endAt)
	}
	if c.unproven.Load() && !c.offered {
		sooner(c.born + handshakeTime)
	}
	if at := c.nextSignal(); at > 0 {
		sooner(at)
	}
	if c.compactAt > 0 {
		sooner(c.compactAt)
	}
	if next > 0 {
		c.wake(next)
	}
}

// wake asks for a wake-up at a time, if there is none before it.
func (c *Conn) wake(at time.Duration) {
	if c.state != stateEnded && (c.wakeAt == 0 || at < c.wakeAt) {
		c.wakeAt = at
		c.ep.wakes.set(c, at)
	}
}

// onWake does what is due. The endpoint's timer calls it.
func (c *Conn) onWake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wakeAt = 0
	if c.state == stateEnded {
		return
	}
	now := c.ep.now()
	if c.state == stateDraining && now >= c.endAt {
		c.end(nil)
		return
	}
	if c.unproven.Load() && !c.offered && now >= c.born+handshakeTime {
		c.forget(ErrReset)
		return
	}
	if lost := c.lost(now); lost != nil {
		c.undelivered = c.kcp.WaitSend() > 0
		c.abort(lost)
		return
	}
	c.tell(now)
	c.pump(now)
	c.flushDue(now)
	if c.compactAt > 0 && now >= c.compactAt {
		c.compact()
	}
	c.settle(now)
	c.transmit()
}

// lost returns an error when the peer has been silent for too long.
func (c *Conn) lost(now time.Duration) error {
	cfg := &c.ep.config
	silence := now - c.lastHeard
	if idle := now - c.lastActive; cfg.IdleTimeout > 0 && idle >= cfg.IdleTimeout && c.state == stateOpen {
		return &PeerLostError{Silence: idle, Idle: true}
	}
	if !c.outstanding {
		return nil
	}
	if cfg.PeerTimeout > 0 && now-max(c.lastHeard, c.since) >= cfg.PeerTimeout {
		return &PeerLostError{Silence: silence}
	}
	if cfg.DeadLink > 0 && c.kcp.silentTransmissions() >= cfg.DeadLink {
		return &PeerLostError{Silence: silence}
	}
	return nil
}

// compact gives spare memory back.
func (c *Conn) compact() {
	c.compactAt = 0
	c.kcp.Compact()
	c.outgoing.compact()
	if c.decoder != nil {
		c.decoder.Compact()
	}
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
func (c *Conn) SetDeadline(t time.Time) error { return c.setDeadlines(t, &c.rd, &c.wd) }

// SetReadDeadline sets the time at which pending and future reads fail with
// os.ErrDeadlineExceeded; the zero time means never.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, &c.rd) }

// SetWriteDeadline sets the time at which pending and future writes fail with
// os.ErrDeadlineExceeded; the zero time means never.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, &c.wd) }

func (c *Conn) setDeadlines(t time.Time, deadlines ...*deadline) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	for _, d := range deadlines {
		d.set(t)
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
