package kcp

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/udp"
)

// Endpoint is one socket with any number of sessions on it, dialled and
// accepted, of any number of peers. It has one goroutine of its own, which
// reads the socket. All methods are safe for concurrent use.
type Endpoint struct {
	config Config
	pc     net.PacketConn
	sock   udp.Conn
	owned  bool // opened by this package: closed with the last use
	epoch  time.Time

	packets  sync.Pool // of *packet
	wakes    wakeQueue
	counters endpointCounters
	logAfter atomic.Int64 // since epoch; socket errors are logged once a second

	done       chan struct{} // closed by shut
	readerDone chan struct{}

	replays replayFilter // of the reader

	mu       sync.RWMutex
	sessions map[sessionKey]*Conn
	coded    map[sessionKey]*Conn // by address alone, conv 0: the last to send FEC
	graves   graveyard
	listener *Listener
	closed   bool
}

// sessionKey tells sessions apart. peer stands for the address where it is not
// one of UDP.
type sessionKey struct {
	addr netip.AddrPort
	peer string
	conv uint32
}

func makeKey(addr netip.AddrPort, peer net.Addr, conv uint32) sessionKey {
	key := sessionKey{addr: addr, conv: conv}
	if peer != nil {
		key.peer = peer.Network() + " " + peer.String()
	}
	return key
}

// NewEndpoint makes an endpoint of pc, which may be any net.PacketConn. Nobody
// else may read from it. The endpoint does not close pc: Close leaves it as it
// was, with its read deadline cleared. config may be nil.
func NewEndpoint(pc net.PacketConn, config *Config) (*Endpoint, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	return newEndpoint(pc, config, false), nil
}

func newEndpoint(pc net.PacketConn, config *Config, owned bool) *Endpoint {
	e := &Endpoint{
		config:     config.withDefaults(),
		pc:         pc,
		sock:       udp.New(pc),
		owned:      owned,
		epoch:      time.Now(),
		done:       make(chan struct{}),
		readerDone: make(chan struct{}),
		sessions:   make(map[sessionKey]*Conn),
	}
	e.packets.New = func() any { return &packet{buf: make([]byte, e.config.MTU)} }
	if c := e.config.Cipher; c != nil && crypt.Authenticated(c) {
		head, _ := c.Overhead()
		e.replays.remember(head)
	}
	e.wakes.now = e.now
	e.wakes.wake = (*Conn).onWake
	if owned && e.config.SocketBuffer > 0 {
		// The system grants what it likes, and less is enough to work.
		_ = udp.SetBuffers(pc, e.config.SocketBuffer)
	}
	go e.readLoop()
	return e
}

// now returns the time since the endpoint's epoch, on the monotonic clock.
func (e *Endpoint) now() time.Duration { return time.Since(e.epoch) }

// clock returns a time as the state machines count it.
func clock(now time.Duration) uint32 { return uint32(now.Milliseconds()) }

// LocalAddr returns the address of the socket.
func (e *Endpoint) LocalAddr() net.Addr { return e.pc.LocalAddr() }

// Dial opens a session with the peer at addr. Nothing is sent before the first
// Write, so a peer that is not there shows as a *PeerLostError of Read and
// Write later on. ctx is looked at but not kept.
func (e *Endpoint) Dial(ctx context.Context, addr net.Addr) (*Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, opError("dial", e.LocalAddr(), addr, err)
	}
	ap, peer := udp.Split(addr)
	if peer == nil {
		ap = udp.Unmap(ap)
	}
	c, err := e.open(makeKey(ap, peer, randomConv()), addr, peer)
	if err != nil {
		return nil, opError("dial", e.LocalAddr(), addr, err)
	}
	e.debug("session dialled", c)
	return c, nil
}

// open adds a session of ours; it draws another conv where that of key is taken.
func (e *Endpoint) open(key sessionKey, addr, peer net.Addr) (*Conn, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, net.ErrClosed
	}
	if len(e.sessions) >= e.config.MaxSessions {
		return nil, ErrTooManySessions
	}
	for e.sessions[key] != nil || e.graves.holds(key) {
		key.conv = randomConv()
	}
	c := newConn(e, key, addr, peer)
	e.sessions[key] = c
	return c, nil
}

// randomConv returns a conversation id that nobody can guess.
func randomConv() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // cannot fail
	return binary.LittleEndian.Uint32(b[:])
}

// Listen lets peers open sessions. An endpoint has one listener at a time.
func (e *Endpoint) Listen() (*Listener, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, opError("listen", nil, e.LocalAddr(), net.ErrClosed)
	}
	if e.listener != nil {
		return nil, opError("listen", nil, e.LocalAddr(), ErrListening)
	}
	e.listener = newListener(e)
	return e.listener, nil
}

// Close ends the listener and all sessions at once, without lingering for what
// is undelivered: close the Conns before, if that matters. It waits until the
// endpoint has let go of the net.PacketConn.
func (e *Endpoint) Close() error {
	if !e.shut(net.ErrClosed) {
		return opError("close", nil, e.LocalAddr(), net.ErrClosed)
	}
	<-e.readerDone
	if e.owned {
		return nil
	}
	return errors.Join(e.sock.Release(), e.pc.SetReadDeadline(time.Time{}))
}

// shut ends everything; err is what pending calls return. It is false if that
// was done before.
func (e *Endpoint) shut(err error) bool {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return false
	}
	e.closed = true
	listener := e.listener
	conns := make([]*Conn, 0, len(e.sessions))
	for _, c := range e.sessions {
		conns = append(conns, c)
	}
	e.mu.Unlock()

	close(e.done)
	if listener != nil {
		listener.end()
	}
	for _, c := range conns {
		c.fail(err)
	}
	e.wakes.stop()
	if e.owned {
		_ = e.pc.Close()
	} else {
		_ = e.pc.SetReadDeadline(time.Unix(1, 0)) // wakes the reader
	}
	return true
}

// shutIfUnused closes a socket of ours with its last use. mu is held.
func (e *Endpoint) shutIfUnused() {
	if e.owned && !e.closed && e.listener == nil && len(e.sessions) == 0 {
		e.closed = true
		close(e.done)
		e.wakes.stop()
		_ = e.pc.Close()
	}
}

// remove forgets the session c. Stragglers of it are dropped for a while, so
// that they do not open a new one.
func (e *Endpoint) remove(c *Conn) {
	e.wakes.remove(c)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sessions[c.key] == c {
		delete(e.sessions, c.key)
		if c.coded {
			key := c.key
			key.conv = 0
			delete(e.coded, key)
		}
		e.graves.bury(c.key, e.now())
		e.shutIfUnused()
	}
}

// dropListener detaches l.
func (e *Endpoint) dropListener(l *Listener) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.listener == l {
		e.listener = nil
		e.shutIfUnused()
	}
}

// readLoop reads batches, feeds all of a batch to the sessions, and then lets
// each session that got something answer once.
func (e *Endpoint) readLoop() {
	defer close(e.readerDone)
	batch := make([]udp.Datagram, e.sock.BatchSize())
	var touched []*Conn
	for failures := 0; ; {
		n, err := e.sock.ReadBatch(batch)
		if err != nil {
			failures++
			if !e.survives(err, failures) {
				return
			}
			continue
		}
		failures = 0
		now := e.now()
		for i := range batch[:n] {
			d := &batch[i]
			e.counters.packetsReceived.Add(1)
			e.counters.bytesReceived.Add(uint64(len(d.Buf)))
			if c := e.receive(d, now); c != nil {
				touched = append(touched, c)
			}
		}
		for _, c := range touched {
			c.answer(now)
		}
		clear(touched)
		touched = touched[:0]
	}
}

// survives deals with a read error. Most concern one packet, such as an ICMP
// answer to something sent before, and the socket goes on working; only a
// closed socket is final. Errors in a row are met with growing patience.
func (e *Endpoint) survives(err error, failures int) bool {
	select {
	case <-e.done:
		return false
	default:
	}
	if errors.Is(err, net.ErrClosed) {
		e.shut(opError("read", nil, e.LocalAddr(), err))
		return false
	}
	e.counters.readErrors.Add(1)
	e.warn("socket read failed", err)
	if failures < 8 {
		return true
	}
	pause := time.NewTimer(min(time.Millisecond<<min(failures-8, 8), 100*time.Millisecond))
	defer pause.Stop()
	select {
	case <-pause.C:
		return true
	case <-e.done:
		return false
	}
}

// receive takes one datagram through the pipeline to its session, and returns
// the session if that has to answer. What is dropped is counted.
func (e *Endpoint) receive(d *udp.Datagram, now time.Duration) *Conn {
	data := d.Buf
	if cipher := e.config.Cipher; cipher != nil {
		var err error
		if data, err = cipher.Open(data); err != nil {
			if errors.Is(err, crypt.ErrShort) {
				e.counters.dropShort.Add(1)
			} else {
				e.counters.dropCipher.Add(1)
			}
			return nil
		}
		if e.replays.seen(d.Buf) {
			e.counters.dropReplay.Add(1)
			return nil
		}
	}
	p, ok := classify(data)
	if !ok {
		e.counters.dropShort.Add(1)
		return nil
	}
	c := e.demultiplex(d, p)
	if c == nil || !c.input(p, now) {
		return nil
	}
	return c
}

// demultiplex finds the session of a packet, or opens one where the listener
// wants it. It returns nil for what is dropped, which it counts.
func (e *Endpoint) demultiplex(d *udp.Datagram, p opened) *Conn {
	key := makeKey(d.Addr, d.Peer, p.conv)
	e.mu.RLock()
	c := e.sessions[key]
	if p.kind == parityPacket {
		c = e.coded[key]
	}
	e.mu.RUnlock()
	if c == nil {
		var opened bool
		if c, opened = e.admit(key, d, p); opened {
			e.debug("session opened", c)
		}
	}
	if c != nil && p.kind == fecPacket && !c.coded {
		e.setCoded(c)
	}
	return c
}

// setCoded makes c the session that parity from its address belongs to. Parity
// names no conversation, so of several only the latest has its benefit.
func (e *Endpoint) setCoded(c *Conn) {
	key := c.key
	key.conv = 0
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sessions[c.key] != c {
		return
	}
	if old := e.coded[key]; old != nil {
		old.coded = false
	}
	if e.coded == nil {
		e.coded = make(map[sessionKey]*Conn)
	}
	e.coded[key] = c
	c.coded = true
}

// admit opens a session for the first packet of a conversation.
func (e *Endpoint) admit(key sessionKey, d *udp.Datagram, p opened) (c *Conn, opened bool) {
	opening := opensSession(p, seq(e.config.ReceiveWindow))
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.sessions[key]; c != nil {
		return c, false
	}
	l := e.listener
	switch {
	case !opening || l == nil || e.closed:
		e.counters.dropUnknown.Add(1)
		return nil, false
	case e.graves.holdsAt(key, e.now()):
		e.counters.dropEnded.Add(1)
		return nil, false
	case len(e.sessions) >= e.config.MaxSessions:
		e.counters.dropSessions.Add(1)
		return nil, false
	}
	remote := d.Peer
	if remote == nil {
		remote = net.UDPAddrFromAddrPort(d.Addr)
	}
	c = newConn(e, key, remote, d.Peer)
	if !l.offer(c) {
		e.counters.dropBacklog.Add(1)
		return nil, false
	}
	e.sessions[key] = c
	return c, true
}

// opensSession reports whether a packet can be the first of a conversation: it
// is well-formed to its end, has data from the beginning of the window, and
// acknowledges nothing, since nothing was ever sent to it.
func opensSession(p opened, window seq) bool {
	packet := p.data
	switch p.kind {
	case fecPacket:
		packet = packet[fec.HeaderSize:]
	case parityPacket, datagramPacket:
		return false
	}
	found := false
	for len(packet) >= headerSize {
		h := decodeHeader(packet)
		payload, ok := h.payload(packet[headerSize:])
		if !ok || h.conv != p.conv || !knownCmd(h.cmd) || h.una != 0 || h.cmd == cmdAck {
			return false
		}
		found = found || (h.cmd == cmdPush && h.sn < window)
		packet = packet[headerSize+len(payload):]
	}
	return found
}

// send writes packets to the socket and takes them back. An error concerns one
// packet, which is as good as lost on the way.
func (e *Endpoint) send(packets []*packet, batch []udp.Datagram) {
	var bytes uint64
	for _, p := range packets {
		bytes += uint64(len(p.buf))
	}
	for rest := batch; len(rest) > 0; {
		n, err := e.sock.WriteBatch(rest)
		e.counters.packetsSent.Add(uint64(n))
		if err == nil {
			break
		}
		e.counters.writeErrors.Add(1)
		if errors.Is(err, net.ErrClosed) {
			break
		}
		e.warn("socket write failed", err)
		rest = rest[n+1:]
	}
	e.counters.bytesSent.Add(bytes)
	for i, p := range packets {
		p.datagram = false
		e.packets.Put(p)
		packets[i] = nil
	}
}

// packet returns a packet with n bytes of space.
func (e *Endpoint) packet(n int) *packet {
	p := e.packets.Get().(*packet)
	if cap(p.buf) < n {
		p.buf = make([]byte, n)
	}
	p.buf = p.buf[:n]
	return p
}

func (e *Endpoint) debug(msg string, c *Conn) {
	if e.config.Logger != nil {
		e.config.Logger.Debug("kcp: "+msg, "remote", c.remote.String(), "conv", c.key.conv)
	}
}

func (e *Endpoint) warn(msg string, err error) {
	if e.config.Logger == nil {
		return
	}
	now, after := int64(e.now()), e.logAfter.Load()
	if now >= after && e.logAfter.CompareAndSwap(after, now+int64(time.Second)) {
		e.config.Logger.Warn("kcp: "+msg, "local", e.LocalAddr().String(), "err", err)
	}
}

// graveTime is how long stragglers of an ended session are recognised, and
// maxGraves how many ended sessions are remembered.
const (
	graveTime = 60 * time.Second
	maxGraves = 8192
)

// graveyard remembers ended sessions for a while, in bounded memory.
type graveyard struct {
	until map[sessionKey]time.Duration
	order []sessionKey // oldest first
}

func (g *graveyard) bury(key sessionKey, now time.Duration) {
	if g.until == nil {
		g.until = make(map[sessionKey]time.Duration)
	}
	for len(g.order) > 0 && (len(g.order) >= maxGraves || g.until[g.order[0]] <= now) {
		delete(g.until, g.order[0])
		g.order = g.order[1:]
	}
	if _, again := g.until[key]; !again {
		g.order = append(g.order, key)
	}
	g.until[key] = now + graveTime
}

func (g *graveyard) holds(key sessionKey) bool {
	_, ok := g.until[key]
	return ok
}

func (g *graveyard) holdsAt(key sessionKey, now time.Duration) bool {
	until, ok := g.until[key]
	return ok && now < until
}
