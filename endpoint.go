package kcp

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/udp"
)

// Endpoint is one socket, or the several of Config.Shards, with any number of
// sessions on it, dialled and accepted, of any number of peers. Its only
// goroutines of its own read the sockets, one each, where no Read or Write that
// waits does so itself. All methods are safe for concurrent use.
type Endpoint struct {
	config    Config
	shards    []shard // the sockets: one, or several that share a port
	owned     bool    // opened by this package: closed with the last use
	connected bool    // to the one peer it can have
	// disposable says that the socket's port was drawn by the system for one
	// session; it is set before that begins.
	disposable bool
	epoch      time.Time

	packets  sync.Pool // of *buffer
	wakes    wakeQueue
	counters endpointCounters
	logAfter atomic.Int64 // since epoch; socket errors are logged once a second

	done    chan struct{} // closed by shut
	readers sync.WaitGroup

	authentic bool // the cipher authenticates: its packets are a peer's, at whatever address
	replays   replayFilter
	nonces    crypt.NonceCipher // the cipher, where its packets may be numbered; else nil

	halfOpen   atomic.Int32 // sessions whose peer is not proven
	population atomic.Int32 // sessions
	buffered   atomic.Int64 // bytes of memory that all sessions hold because of their peers
	pressure   pressure

	mu            sync.RWMutex
	sessions      map[sessionKey]*Conn
	coded         map[sessionKey][]*Conn // by address alone, conv 0: those that are sent FEC
	graves        graveyard
	byConv        map[uint32]*Conn            // the oldest of each conversation id; Conn.sameConv leads on
	perNetwork    map[netip.Addr]networkCount // by networkOf; nil if sessions are not limited
	unproven      []*Conn                     // half-open sessions, oldest first, and some that no longer are
	cookies       cookieKey
	replies       bucket
	cookieBudget  bucket
	outbox        []packet // replies of the reader to nobody's session,
	outboxTo      []udp.Datagram
	outboxNumbers []*packetNumbers
	listener      *Listener
	holdUntil     time.Duration // sockets of ours stay open, for peers that may have to be answered
	closed        bool
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
// else may read from it, or set its read deadline. The endpoint does not close
// pc: Close leaves it as it was, with its read deadline cleared. config may be nil.
func NewEndpoint(pc net.PacketConn, config *Config) (*Endpoint, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	return newEndpoint(config, false, pc), nil
}

// newEndpoint makes an endpoint of one socket or of several that share a port.
func newEndpoint(config *Config, owned bool, sockets ...net.PacketConn) *Endpoint {
	e := &Endpoint{
		config:   config.withDefaults(),
		owned:    owned,
		epoch:    time.Now(),
		done:     make(chan struct{}),
		sessions: make(map[sessionKey]*Conn),
		byConv:   make(map[uint32]*Conn),
	}
	for _, pc := range sockets {
		e.shards = append(e.shards, shard{pc: pc, sock: udp.New(pc), in: arrivals{shard: len(e.shards)}})
	}
	e.packets.New = func() any { return new(buffer) }
	if c := e.config.Cipher; c != nil && crypt.Authenticated(c) {
		head, _ := c.Overhead()
		e.authentic, e.nonces = true, numbersPackets(c)
		if e.nonces != nil {
			e.replays.remember(e.nonces.NonceSize())
		} else {
			e.replays.remember(head + replayContent)
		}
	}
	if e.config.MaxSessionsPerAddress > 0 {
		e.perNetwork = make(map[netip.Addr]networkCount)
	}
	e.wakes.now = e.now
	e.wakes.wake = (*Conn).onWake
	for i := range e.shards {
		if owned && e.config.SocketBuffer > 0 {
			// The system grants what it likes, and less is enough to work.
			_ = udp.SetBuffers(e.shards[i].pc, e.config.SocketBuffer)
		}
		s := &e.shards[i]
		s.batch = make([]udp.Datagram, s.sock.BatchSize())
		if len(sockets) == 1 && canLead(s.pc) {
			s.lead.init()
		}
		e.readers.Go(func() { e.readLoop(s) })
	}
	return e
}

// now returns the time since the endpoint's epoch, on the monotonic clock.
func (e *Endpoint) now() time.Duration { return time.Since(e.epoch) }

// clock returns a time in milliseconds, modulo 2^32.
func clock(now time.Duration) uint32 { return uint32(now.Milliseconds()) }

// LocalAddr returns the address of the socket.
func (e *Endpoint) LocalAddr() net.Addr { return e.shards[0].pc.LocalAddr() }

// Dial opens a session with the peer at addr. It asks the peer to answer, and
// waits until it does, until ctx is done, or for Config.DialTimeout: then the
// error is a *NoAnswerError. Any KCP endpoint answers, if it accepts sessions.
// ErrRefused means that there is nobody who does. With a negative DialTimeout
// Dial does not wait, and a peer that is not there shows as a *PeerLostError of
// Read and Write later on.
func (e *Endpoint) Dial(ctx context.Context, addr net.Addr) (*Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, opError("dial", e.LocalAddr(), addr, err)
	}
	ap, peer := udp.Split(addr)
	if peer == nil {
		ap = udp.Unmap(ap)
	}
	c, err := e.open(makeKey(ap, peer, randomConv()), addr)
	if err != nil {
		return nil, opError("dial", e.LocalAddr(), addr, err)
	}
	e.debug("session dialled", addr, c.Conv())
	if err := c.connect(ctx); err != nil {
		return nil, opError("dial", e.LocalAddr(), addr, err)
	}
	return c, nil
}

// open adds a session of ours; it draws another conv where that of key is taken.
func (e *Endpoint) open(key sessionKey, addr net.Addr) (*Conn, error) {
	c := newConn(e, key, addr) // the caller's Config runs code of its own
	c.dialled, c.offered, c.counted = true, true, true
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, net.ErrClosed
	}
	if len(e.sessions) >= e.config.MaxSessions {
		return nil, ErrTooManySessions
	}
	for e.sessions[c.key] != nil || e.graves.holds(c.key) {
		c.key.conv = randomConv()
		c.kcp.conv = c.key.conv
	}
	e.enterLocked(c)
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
	e.readers.Wait()
	if e.owned {
		return nil
	}
	return e.releaseSockets()
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
	conns := slices.Collect(maps.Values(e.sessions))
	e.mu.Unlock()

	close(e.done)
	if listener != nil {
		waiting, _ := listener.end()
		for _, c := range waiting {
			c.discard(err)
		}
	}
	for _, c := range conns {
		c.fail(err)
	}
	e.wakes.stop()
	e.stopReaders()
	return true
}

// shutIfUnused closes a socket of ours with its last use, or some time later if
// a peer may still have to be answered. mu is held.
func (e *Endpoint) shutIfUnused() {
	if !e.owned || e.closed || e.listener != nil || len(e.sessions) > 0 {
		return
	}
	if hold := e.holdUntil - e.now(); hold > 0 {
		heldSockets.Add(1)
		time.AfterFunc(hold, func() {
			heldSockets.Add(-1)
			e.mu.Lock()
			defer e.mu.Unlock()
			e.shutIfUnused()
		})
		return
	}
	e.closed = true
	close(e.done)
	e.wakes.stop()
	e.stopReaders()
}

// remove forgets the session c but for g. Stragglers of it are recognised for a
// while, so that they do not open a new one.
func (e *Endpoint) remove(c *Conn, g grave) {
	e.wakes.remove(c)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sessions[c.key] == c {
		e.exitLocked(c)
		e.graves.bury(c.key, g, e.now())
		if g.token != 0 && e.authentic && e.config.AllowLegacy {
			e.graves.used.add(c.key.conv)
		}
		e.holdUntil = max(e.holdUntil, e.now()+c.holdSocket())
		e.shutIfUnused()
	}
}

// dropListener detaches l, and ends the sessions that were to be offered to it.
func (e *Endpoint) dropListener(l *Listener) {
	e.mu.Lock()
	var conns []*Conn
	if e.listener == l {
		e.listener = nil
		conns = slices.Collect(maps.Values(e.sessions))
		e.shutIfUnused()
	}
	e.mu.Unlock()
	for _, c := range conns {
		if !c.handedOn() {
			c.discard(ErrRefused)
		}
	}
}

// readLoop reads a socket while no call of a session does.
func (e *Endpoint) readLoop(s *shard) {
	for {
		roused, ok := e.readOnce(s, nil)
		if !ok {
			return
		}
		if roused && s.lead.possible && e.single() && s.lead.yield() {
			if c := s.lead.await(); c != nil {
				c.answer(e.now())
			}
		}
	}
}

// readOnce reads a batch of a socket, feeds all of it to the sessions, and then
// lets each session that got something answer once; that of the call that leads
// does so by itself. roused is true if that has woken a call that waited, ok
// false if the socket is not to be read any more.
func (e *Endpoint) readOnce(s *shard, leader *Conn) (roused, ok bool) {
	n, err := s.sock.ReadBatch(s.batch)
	if err != nil && !e.interrupted(s, err) {
		s.failures++
		return false, e.survives(err, s.failures)
	}
	s.failures = 0
	if err == nil {
		roused = e.take(s.batch[:n], &s.in, leader)
		e.sendReplies(s.in.shard)
	}
	return roused, true
}

// arrivals is what a reader works with on a batch.
type arrivals struct {
	shard   int // which reader it is
	packets []arrival
	touched []*Conn // sessions that have to answer

	// The session of an earlier packet of the batch, and how it was found.
	last     *Conn
	lastFrom origin
	lastConv uint32
}

// goesOn reports whether a packet is of the session that last names.
func (in *arrivals) goesOn(p *opened) bool {
	return in.last != nil && p.kind == plainPacket && p.conv == in.lastConv &&
		p.from.addr == in.lastFrom.addr && p.from.peer == nil && in.lastFrom.peer == nil
}

// arrival is a packet that has found its session.
type arrival struct {
	conn *Conn
	opened
}

// take feeds a batch to the sessions, those packets of one session together
// that come together, and lets each answer once.
func (e *Endpoint) take(batch []udp.Datagram, in *arrivals, leader *Conn) (roused bool) {
	now := e.now()
	bytes := 0
	for i := range batch {
		d := &batch[i]
		bytes += len(d.Buf)
		in.packets = append(in.packets, arrival{})
		if last := len(in.packets) - 1; !e.receive(d, in, &in.packets[last], now) {
			in.packets[last] = arrival{}
			in.packets = in.packets[:last]
		}
	}
	e.counters.packetsReceived.Add(uint64(len(batch)))
	e.counters.bytesReceived.Add(uint64(bytes))
	for rest := in.packets; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].conn == rest[0].conn {
			n++
		}
		if c := rest[0].conn; c.input(rest[:n], in.shard, now) {
			in.touched = append(in.touched, c)
		}
		rest = rest[n:]
	}
	for _, c := range in.touched {
		if c != leader {
			roused = c.answer(now) || roused
		}
	}
	e.relieve(now)
	clear(in.packets)
	clear(in.touched)
	in.packets, in.touched, in.last = in.packets[:0], in.touched[:0], nil
	return roused
}

// manyFailures is how many errors in a row make a socket suspect.
const manyFailures = 8

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
	e.refused(err)
	e.warn("socket read failed", err)
	if failures < manyFailures {
		return true
	}
	pause := time.NewTimer(min(time.Millisecond<<min(failures-manyFailures, 8), 100*time.Millisecond))
	defer pause.Stop()
	select {
	case <-pause.C:
		return true
	case <-e.done:
		return false
	}
}

// receive takes one datagram through the pipeline to a, and finds its session.
// It reports false for what is dropped, which it counts.
func (e *Endpoint) receive(d *udp.Datagram, in *arrivals, a *arrival, now time.Duration) bool {
	data, mark := d.Buf, uint64(0)
	if cipher := e.config.Cipher; cipher != nil {
		if e.authentic && e.nonces == nil {
			mark = e.replays.mark(data) // of what Open overwrites
		}
		var err error
		if data, err = cipher.Open(data); err != nil {
			if errors.Is(err, crypt.ErrShort) {
				e.counters.dropShort.Add(1)
			} else {
				e.counters.dropCipher.Add(1)
			}
			return false
		}
	}
	if !classify(data, &a.opened) {
		e.counters.dropShort.Add(1)
		return false
	}
	a.from, a.size, a.mark = origin{d.Addr, d.Peer}, len(d.Buf), mark
	if e.nonces != nil {
		a.nonce = d.Buf[:min(e.nonces.NonceSize(), len(d.Buf))]
	}
	if in.goesOn(&a.opened) {
		a.conn = in.last
		return true
	}
	a.conn = e.demultiplex(d, &a.opened, now)
	if a.conn != nil && a.kind == plainPacket {
		in.last, in.lastFrom, in.lastConv = a.conn, a.from, a.conv
	}
	return a.conn != nil
}

// demultiplex finds the session of a packet, or opens one where the listener
// wants it. It returns nil for what is dropped, which it counts.
func (e *Endpoint) demultiplex(d *udp.Datagram, p *opened, now time.Duration) *Conn {
	key := makeKey(d.Addr, d.Peer, p.conv)
	e.mu.RLock()
	c := e.sessions[key]
	if p.kind == parityPacket {
		if all := e.coded[key]; len(all) == 1 {
			c = all[0]
		}
	}
	coded := c != nil && c.coded
	e.mu.RUnlock()
	if c == nil {
		c = e.stranger(key, d, p, now)
	}
	if c != nil && p.kind == fecPacket && !coded {
		e.setCoded(c)
	}
	return c
}

// setCoded notes that the peer sends FEC in c. Parity names no conversation, so
// it is used only while its address has one such session. With that of another
// session, recovery would make packets that never were, and some look real:
// what all packets of a session have in common may come out of it unchanged.
func (e *Endpoint) setCoded(c *Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.coded || e.sessions[c.key] != c {
		return
	}
	if e.coded == nil {
		e.coded = make(map[sessionKey][]*Conn)
	}
	key := c.key
	key.conv = 0
	e.coded[key] = append(e.coded[key], c)
	c.coded = true
}

// send writes packets to a socket and takes their buffers back. An error
// concerns one packet, which is as good as lost on the way.
func (e *Endpoint) send(shard int, packets []packet, batch []udp.Datagram) {
	bytes := 0
	for i := range packets {
		bytes += len(packets[i].buf)
	}
	for rest := batch; len(rest) > 0; {
		n, err := e.shards[shard].sock.WriteBatch(rest)
		e.counters.packetsSent.Add(uint64(n))
		if err == nil {
			break
		}
		if !e.writeFailed(err) {
			break
		}
		rest = rest[n+1:]
	}
	e.counters.bytesSent.Add(uint64(bytes))
	for i := range packets {
		if b := packets[i].pooled; b != nil {
			e.packets.Put(b)
			packets[i] = packet{}
		}
	}
}

// writeFailed takes note of an error of writing to a socket. It is false where
// that has been closed.
func (e *Endpoint) writeFailed(err error) bool {
	e.counters.writeErrors.Add(1)
	if errors.Is(err, net.ErrClosed) {
		return false
	}
	e.refused(err) // whichever call comes first is told
	e.warn("socket write failed", err)
	return true
}

// packet returns a packet with n bytes of space.
func (e *Endpoint) packet(n int) packet {
	b := e.packets.Get().(*buffer)
	if cap(b.b) < n {
		b.b = make([]byte, max(n, e.config.MTU))
	}
	return packet{buf: b.b[:n], pooled: b}
}

// sendProbe writes a probe of the path MTU to a socket. It is true where the
// system knows that it is too large.
func (e *Endpoint) sendProbe(shard int, d *udp.Datagram) (tooLarge bool) {
	err := e.shards[shard].sock.WriteProbe(d)
	switch {
	case err == nil:
		e.counters.packetsSent.Add(1)
		e.counters.bytesSent.Add(uint64(len(d.Buf)))
	case errors.Is(err, syscall.EMSGSIZE):
		return true
	default:
		e.writeFailed(err)
	}
	return false
}

func (e *Endpoint) debug(msg string, remote net.Addr, conv uint32) {
	if e.config.Logger != nil {
		e.config.Logger.Debug("kcp: "+msg, "remote", remote.String(), "conv", conv)
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
