package kcp

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/replay"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/internal/wakeq"
)

// Endpoint is one socket, or the several of Config.Shards, with any number of
// sessions on it, dialled and accepted, of any number of peers. Its only
// goroutines of its own read the sockets, one each, where no Read or Write that
// waits does so itself. All methods are safe for concurrent use.
type Endpoint struct {
	config     Config    // does not change
	epoch      time.Time // what times are measured from; does not change
	protection protection
	counters   endpointCounters
	wakes      wakeq.Queue[*Conn]
	packets    sync.Pool    // of *buffer
	logAfter   atomic.Int64 // since epoch; socket errors are logged once a second
	load       endpointLoad
	socket     socketState

	mu       sync.RWMutex // guards what follows
	table    sessionTable
	replies  replyQueue
	listener *Listener // nil: none
	closed   bool
}

// protection is what the cipher does for packets beside encrypting them. It does
// not change, but for what replays remembers.
type protection struct {
	authentic bool              // packets are a peer's, at whatever address
	nonces    crypt.NonceCipher // the cipher, if packets may be numbered; else nil
	replays   replay.Filter
}

// endpointLoad is what all sessions together take. It needs no lock.
type endpointLoad struct {
	halfOpen atomic.Int32 // sessions whose peer's address is not validated
	sessions atomic.Int32
	buffered atomic.Int64 // bytes of memory that sessions hold because of their peers
	pressure pressure
}

// socketState is the sockets and who reads them.
type socketState struct {
	shards     []shard       // one, or several that share a port; does not change
	owned      bool          // opened by this package: closed with the last use; does not change
	connected  bool          // to the one peer it can have; Endpoint.mu
	disposable bool          // the system has drawn the port for one session; set before that begins
	holdUntil  time.Duration // sockets of ours stay open, for peers that may have to be answered; Endpoint.mu
	done       chan struct{} // closed by shut
	readers    sync.WaitGroup
}

// sessionTable is the sessions by whatever a packet may be found by.
type sessionTable struct {
	sessions    map[sessionKey]*Conn
	fecByAddr   map[sessionKey][]*Conn      // by address alone, conv 0: those that are sent FEC
	byConv      map[uint32]*Conn            // the oldest of each conversation id; sameConv leads on
	perNetwork  map[netip.Addr]networkCount // by networkOf; nil if sessions are not limited; the nil-ness does not change
	unvalidated []*Conn                     // half-open sessions, oldest first, and some that no longer are
	timeWaits   timeWaitTable
}

// replyQueue is what is sent outside any session, and how much of it may be.
type replyQueue struct {
	cookies      cookieKey
	budget       bucket
	cookieBudget bucket
	packets      []packet // to be sent by the reader that has caused them
	datagrams    []udp.Datagram
	numbers      []*packetNumbers
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
		config: config.withDefaults(),
		epoch:  time.Now(),
		socket: socketState{owned: owned, done: make(chan struct{})},
		table:  sessionTable{sessions: make(map[sessionKey]*Conn), byConv: make(map[uint32]*Conn)},
	}
	for _, pc := range sockets {
		e.socket.shards = append(e.socket.shards, shard{pc: pc, sock: udp.New(pc), in: readState{shard: len(e.socket.shards)}})
	}
	e.packets.New = func() any { return new(buffer) }
	if c := e.config.Cipher; c != nil && crypt.Authenticated(c) {
		head, _ := c.Overhead()
		e.protection.authentic, e.protection.nonces = true, numbersPackets(c)
		if e.protection.nonces != nil {
			e.protection.replays.Enable(e.protection.nonces.NonceSize())
		} else {
			e.protection.replays.Enable(head + replayContent)
		}
	}
	if e.config.MaxSessionsPerAddress > 0 {
		e.table.perNetwork = make(map[netip.Addr]networkCount)
	}
	e.wakes.Init(e.epoch, (*Conn).wakeIndex, (*Conn).onWake)
	for i := range e.socket.shards {
		if owned && e.config.SocketBuffer > 0 {
			// The system grants what it likes, and less is enough to work.
			_ = udp.SetBuffers(e.socket.shards[i].pc, e.config.SocketBuffer)
		}
		s := &e.socket.shards[i]
		s.batch = make([]udp.Datagram, s.sock.BatchSize())
		if len(sockets) == 1 && callsMayRead(s.pc) {
			s.lead.init()
		}
		e.socket.readers.Go(func() { e.readLoop(s) })
	}
	return e
}

// now returns the time since the endpoint's epoch, on the monotonic clock.
func (e *Endpoint) now() time.Duration { return time.Since(e.epoch) }

// clock returns a time in milliseconds, modulo 2^32.
func clock(now time.Duration) uint32 { return uint32(now.Milliseconds()) }

// LocalAddr returns the address of the socket.
func (e *Endpoint) LocalAddr() net.Addr { return e.socket.shards[0].pc.LocalAddr() }

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
	c, err := e.openSession(makeKey(ap, peer, randomConv()), addr)
	if err != nil {
		return nil, opError("dial", e.LocalAddr(), addr, err)
	}
	e.debug("session dialled", addr, c.Conv())
	if err := c.connect(ctx); err != nil {
		return nil, opError("dial", e.LocalAddr(), addr, err)
	}
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
	e.socket.readers.Wait()
	if e.socket.owned {
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
	conns := slices.Collect(maps.Values(e.table.sessions))
	e.mu.Unlock()

	close(e.socket.done)
	if listener != nil {
		waiting, _ := listener.end()
		for _, c := range waiting {
			c.discard(err)
		}
	}
	for _, c := range conns {
		c.fail(err)
	}
	e.wakes.Stop()
	e.stopReaders()
	return true
}

// shutIfUnusedLocked closes a socket of ours with its last use, or some time later if
// a peer may still have to be answered. mu is held.
func (e *Endpoint) shutIfUnusedLocked() {
	if !e.socket.owned || e.closed || e.listener != nil || len(e.table.sessions) > 0 {
		return
	}
	if hold := e.socket.holdUntil - e.now(); hold > 0 {
		heldSockets.Add(1)
		time.AfterFunc(hold, func() {
			heldSockets.Add(-1)
			e.mu.Lock()
			defer e.mu.Unlock()
			e.shutIfUnusedLocked()
		})
		return
	}
	e.closed = true
	close(e.socket.done)
	e.wakes.Stop()
	e.stopReaders()
}

// dropListener detaches l, and ends the sessions that were to be offered to it.
func (e *Endpoint) dropListener(l *Listener) {
	e.mu.Lock()
	var conns []*Conn
	if e.listener == l {
		e.listener = nil
		conns = slices.Collect(maps.Values(e.table.sessions))
		e.shutIfUnusedLocked()
	}
	e.mu.Unlock()
	for _, c := range conns {
		if !c.wasOffered() {
			c.discard(ErrRefused)
		}
	}
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
