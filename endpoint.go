package kcp

import (
	"bytes"
	"context"
	"errors"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/dialling"
	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/neterr"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/takeover"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/internal/wakeup"
)

// Endpoint carries any number of sessions, dialled and accepted, with any number of
// peers over one socket, or over the sockets of Config.Shards. All methods are safe for
// concurrent use.
type Endpoint struct {
	// Locks are taken in this order: Conn.writing, Conn.mu, Endpoint.mu, Listener.mu.
	// Fields above mu are immutable or need no lock, unless their comments name one.

	shared     session.Shared
	config     Config // immutable
	wakes      wakeup.Queues[*Conn]
	handshakes *fair.Queue // work of TLS, fewer pieces at a time than processors; nil without TLS
	log        endpointLog
	failed     wakeup.CallQueue // calls of Config.HandshakeFailed

	socket   socketState
	feeding  wakeup.Batches[Group] // groups take the events of a batch together, after it
	takeover takeoverState

	opens    dialling.Table[session.Key, *Conn] // calls of Dial whose peers dial too
	pressure pressure

	mu       sync.RWMutex // guards the fields below
	table    sessionTable
	replies  replyQueue
	listener *Listener // nil: not listening
	draining bool      // Shutdown was called: no session begins
	closed   bool
	unused   bool // it has closed itself, and neither Close nor Shutdown was called since
}

// socketState is the sockets and their readers.
type socketState struct {
	shards     []shard        // one socket, or several that share a port; immutable
	owned      bool           // the package opened the sockets, and closes them after the last use; immutable
	connected  bool           // connected to a single peer; Endpoint.mu
	disposable bool           // the system chose the local port, for a single session; set before that session starts
	dials      int            // calls of Dial that may still open a session; Endpoint.mu
	holdUntil  time.Duration  // owned sockets stay open until then, to answer peers of ended sessions; since epoch; Endpoint.mu
	done       chan struct{}  // closed when the endpoint closes
	readers    sync.WaitGroup // the read goroutines
	release    sync.Once      // the first Close releases sockets that are not owned

	own       atomic.Pointer[ownAddress]  // of the socket of a Dial; nil: there is none
	lastError atomic.Pointer[socketError] // nil: none
}

// replyQueue holds the packets that are sent outside any session. Endpoint.mu guards it.
type replyQueue struct {
	queued    atomic.Bool          // packets has some; without Endpoint.mu
	packets   []session.Packet     // written by the next reader that calls sendReplies
	datagrams []udp.Datagram       // parallel to packets
	sealers   []protect.Protection // parallel to packets
}

// NewEndpoint returns an endpoint that uses pc, which may be any net.PacketConn; nil is
// an error that wraps syscall.EINVAL. config is as for Listen. Until Endpoint.Close
// returns, the caller must not read from pc, nor set its read deadline. On Linux UDP_GRO
// and the MTU discovery of the socket are set until then. The endpoint does not close pc.
//
// It ends when pc is closed (net.ErrClosed), and with a *SocketError when ReadFrom has
// returned nothing but errors for 5 seconds, none of them a time-out or of the system.
func NewEndpoint(pc net.PacketConn, config *Config) (*Endpoint, error) {
	u, system := pc.(*net.UDPConn)
	if err := config.validateFor(system); err != nil {
		return nil, err
	}
	if pc == nil || system && u == nil {
		return nil, opError("open", nil, nil, errNoSocket)
	}
	if system {
		if err := udp.Check(u); err != nil {
			return nil, opError("open", u.LocalAddr(), nil, err)
		}
	}
	return newEndpoint(config, false, pc), nil
}

// newEndpoint makes an endpoint, and starts it.
func newEndpoint(config *Config, owned bool, sockets ...net.PacketConn) *Endpoint {
	e := makeEndpoint(config, owned, sockets...)
	if e.config.SocketBuffer > 0 && (owned || config != nil && config.SocketBuffer > 0) {
		for _, pc := range sockets {
			// What the system grants is enough to work.
			if err := udp.SetBuffers(pc, e.config.SocketBuffer); neterr.Refused(err) {
				e.log.refused(&udp.CallError{Call: "SO_RCVBUF and SO_SNDBUF", Err: err, Then: "the buffers of sockets are the system's"})
			}
		}
	}
	e.start()
	return e
}

// makeEndpoint makes an endpoint of one socket, or of several that share a port, which it
// does not read before start. config is valid. owned sockets are closed by the endpoint.
func makeEndpoint(config *Config, owned bool, sockets ...net.PacketConn) *Endpoint {
	e := &Endpoint{
		shared: session.Shared{
			FixedWriteBuffer: config != nil && config.WriteBuffer != 0,
			FixedWindow:      config != nil && config.ReceiveWindow != 0,
			MostStreamBuffer: session.MaxStreamReceive,
			Epoch:            time.Now(),
		},
		config: config.withDefaults(),
		socket: socketState{owned: owned, done: make(chan struct{})},
	}
	e.shared.Config = e.config.ofSessions()
	if config != nil && config.StreamReceiveBuffer != 0 {
		e.shared.MostStreamBuffer = config.StreamReceiveBuffer
	}
	for _, pc := range sockets {
		e.socket.shards = append(e.socket.shards, shard{foreign: !owned, in: readState{shard: len(e.socket.shards)}})
		e.socket.shards[len(e.socket.shards)-1].link.Store(&takeover.Socket{Conn: pc, Packets: udp.New(pc)})
	}
	procs := runtime.GOMAXPROCS(0)
	var turn func() // of the wake-ups; nil: they need none
	if r := e.config.Repetition; r != nil {
		e.shared.Env, procs = r.Environment(), 1
		turn = func() { e.shared.Env.Woken(nil, 0, wakeup.AtWakeUp) }
	}
	e.shared.Protection = protect.NewScheme(e.config.Cipher, e.config.TLS != nil, e.shared.Env.Nonces())
	if e.config.TLS != nil {
		e.handshakes = fair.NewQueue(max(1, runtime.GOMAXPROCS(0)-1), fair.Lease)
	}
	e.shared.Migrates = (e.shared.Protection.Authentic || e.shared.Protection.Derives) && !e.config.SharedConvs
	e.shared.Outside, e.shared.Overhead = e.shared.Protection.Outside, session.OverheadOf(e.config.Cipher, e.config.TLS != nil, e.config.FEC)
	e.initGate()
	if c, ok := sockets[0].(net.Conn); ok && c.RemoteAddr() != nil {
		procs = 1 // one peer, one wake queue
	}
	e.wakes.Init(procs, e.shared.Epoch, (*Conn).wakeIndex, (*Conn).wakeHash, turn, (*Conn).onWake, udp.Delayed)
	for i := range e.socket.shards {
		s := &e.socket.shards[i]
		s.sock().OnRefusal(e.warnRefusal)
		s.batch = make([]udp.Datagram, s.sock().BatchSize())
		s.incast.Init((*session.Session).Sender, takeGrant, func() {
			e.shared.Env.Woken(nil, 0, wakeup.AtIncast)
			e.advanceTurns(s)
		})
		if len(sockets) == 1 && e.shared.Env == nil && udp.IsInterruptible(s.conn()) {
			s.lead.Init()
		}
	}
	return e
}

// start starts the readers.
func (e *Endpoint) start() {
	e.warnRefusals()
	for i := range e.socket.shards {
		s := &e.socket.shards[i]
		e.socket.readers.Go(func() { e.readLoop(s) })
	}
}

// stopped reports whether the endpoint is closed.
func (e *Endpoint) stopped() bool {
	select {
	case <-e.socket.done:
		return true
	default:
		return false
	}
}

// now returns the time since the endpoint's epoch, on the monotonic clock.
func (e *Endpoint) now() time.Duration { return time.Since(e.shared.Epoch) }

// LocalAddr returns the address of the socket. It may change after Dial.
func (e *Endpoint) LocalAddr() net.Addr {
	if own := e.socket.own.Load(); own != nil {
		return own.socket.LocalAddr()
	}
	return e.socket.shards[0].conn().LocalAddr()
}

// Listen lets peers open sessions. It fails with ErrInUse while the endpoint has a
// listener, with net.ErrClosed if it is closed, and with a *ConfigError if TLS has no
// certificate.
func (e *Endpoint) Listen() (*Listener, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.beginsNoMoreLocked() || e.takeover.leaving != nil {
		return nil, opError("listen", nil, e.LocalAddr(), net.ErrClosed)
	}
	if e.listener != nil {
		return nil, opError("listen", nil, e.LocalAddr(), errListening)
	}
	if err := e.config.listenable(); err != nil {
		return nil, err
	}
	e.listener = newListener(e)
	return e.listener, nil
}

// listenable returns a *ConfigError if c does not suffice to accept sessions.
func (c *Config) listenable() error {
	if c == nil {
		return nil
	}
	if t := c.TLS; t != nil && len(t.Certificates) == 0 && t.GetCertificate == nil && t.GetConfigForClient == nil {
		return &ConfigError{"TLS.Certificates", "empty", "must have one to listen, unless GetCertificate or GetConfigForClient is set"}
	}
	return nil
}

// Close ends the listener and all sessions at once: calls of them return net.ErrClosed,
// and extended peers get ErrReset. Shutdown waits for delivery instead. Close waits until
// the net.PacketConn is no longer used, or returns ErrInUse if a ReadFrom does not return
// within a second after its deadline. On a closed endpoint it returns net.ErrClosed.
func (e *Endpoint) Close() error {
	var err error
	ended := e.shut(net.ErrClosed) || e.takeUnused()
	if !e.socket.owned {
		e.socket.release.Do(func() { err = e.releaseSockets() })
	} else if ended && !inHandler() {
		e.socket.readers.Wait()
	}
	e.shared.Env.Settle()
	if !ended {
		return opError("close", nil, e.LocalAddr(), net.ErrClosed)
	}
	return err
}

// takeUnused reports, once, whether the endpoint has closed itself.
func (e *Endpoint) takeUnused() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	unused := e.unused
	e.unused = false
	return unused
}

// shut ends the listener and all sessions, whose pending calls return err. It
// reports false if the endpoint was closed already.
func (e *Endpoint) shut(err error) bool {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return false
	}
	e.closed = true
	lingerers.Remove(e)
	e.table.forget()
	listener := e.acceptorLocked()
	conns := e.table.Sessions()
	e.mu.Unlock()

	close(e.socket.done)
	var waits []*Conn // for Accept
	if listener != nil {
		waits, _ = listener.end(err)
	}
	defer func() { // even if code of the application's panics
		awaitWrites(conns)
		e.wakes.Stop()
		e.stopReaders()
	}()
	defer each(conns, func(c *Conn) { c.endFor(session.CauseFailed, err) })
	each(waits, func(c *Conn) { c.endFor(session.CauseDiscarded, err) })
	return true
}

// awaitWrites waits until what conns, which have ended, had to send has left: another
// goroutine may be writing it. It gives up after closeWait.
func awaitWrites(conns []*Conn) {
	limit := time.NewTimer(closeWait)
	defer limit.Stop()
	for _, c := range conns {
		select {
		case <-c.Done():
		case <-limit.C:
			return
		}
	}
}

// shutIfUnusedLocked closes owned sockets after their last use. While a peer of an ended
// session may still need an answer, it closes them later (see holdSocket of
// session.Session). After a handover drain closes the endpoint. Endpoint.mu is held.
func (e *Endpoint) shutIfUnusedLocked() {
	if !e.socket.owned || e.closed || e.takeover.leaving != nil || e.listener != nil || e.table.Len() > 0 || e.socket.dials > 0 {
		return
	}
	if hold := e.socket.holdUntil - e.now(); hold > 0 {
		e.linger()
		time.AfterFunc(hold, func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.shutIfUnusedLocked()
		})
		return
	}
	e.closed, e.unused = true, true
	lingerers.Remove(e)
	e.table.forget()
	close(e.socket.done)
	e.wakes.Stop()
	e.stopReaders()
}

// dropListener detaches l, and ends the sessions that were not offered to it yet.
func (e *Endpoint) dropListener(l *Listener) {
	e.mu.Lock()
	var conns []*Conn
	if e.acceptorLocked() == l {
		e.listener = nil
		conns = e.table.Sessions()
		e.shutIfUnusedLocked()
	}
	e.mu.Unlock()
	each(conns, func(c *Conn) {
		if !c.lookAt().Offered && !e.opens.Expects(c) {
			c.endFor(session.CauseDiscarded, ErrRefused)
		}
	})
}

// inHandler reports whether the calling goroutine is in a handler, and may be the one
// that reads the socket.
func inHandler() bool { return wakeup.Within((*Group).dispatch, (*Conn).handleDatagram) }

// Shutdown ends the endpoint in order: it stops accepting and dialling, closes all
// sessions as Conn.Close does, all at the same time, and waits until their peers have all
// that was written. Then it closes the endpoint. Calls of the sessions return
// net.ErrClosed, and peers that dial get ErrRefused.
//
// When ctx is done, the sessions that have not ended are aborted. A *ShutdownError says
// how many, and how many peers were gone, or accepted nothing for Config.Linger, or 5
// seconds if that is negative. The error is net.ErrClosed if the endpoint is closed, or
// being shut down. All come wrapped in a *net.OpError.
//
// It waits up to 6 seconds longer if the peer of an ended session may still need an
// answer; the end of ctx cuts that short without an error. In a handler of Group.Handle
// it does nothing, and fails with syscall.EDEADLK.
func (e *Endpoint) Shutdown(ctx context.Context) error {
	if inHandler() {
		return opError("shutdown", nil, e.LocalAddr(), errInHandler)
	}
	if e.takeUnused() {
		e.socket.readers.Wait()
		return nil
	}
	e.mu.Lock()
	if e.closed || e.draining {
		e.mu.Unlock()
		return opError("shutdown", nil, e.LocalAddr(), net.ErrClosed)
	}
	e.draining = true
	listener := e.acceptorLocked()
	e.mu.Unlock()
	unwound := true
	defer func() {
		if unwound { // by code of the application's
			_ = e.Close()
		}
	}()
	if listener != nil {
		_ = listener.Close() // the application may have closed it
	}
	conns := slices.Collect(e.Sessions())
	each(conns, func(c *Conn) { c.endFor(session.CauseShutdown, nil) })
	failed := ShutdownError{}
	for _, c := range conns {
		switch c.waitClosed(ctx) {
		case session.ShutCut:
			failed.Cut++
			failed.Cause = ctx.Err()
		case session.ShutUndelivered:
			failed.Undelivered++
		}
	}
	if e.holdForPeers(ctx) {
		_ = e.Close() // closed already, if the last session has closed it
		if e.socket.owned {
			e.socket.readers.Wait()
		}
	}
	unwound = false
	if failed != (ShutdownError{}) {
		return opError("shutdown", nil, e.LocalAddr(), &failed)
	}
	return nil
}

// holdForPeers waits while peers of ended sessions may need an answer. It
// reports false if the socket goes on to answer in the background.
func (e *Endpoint) holdForPeers(ctx context.Context) bool {
	e.mu.RLock()
	hold, background := e.socket.holdUntil-e.now(), e.socket.owned && e.socket.disposable && e.table.Len() == 0
	closed := e.closed
	e.mu.RUnlock()
	if hold <= 0 || closed {
		return true
	}
	if background {
		return false
	}
	timer := time.NewTimer(min(hold, closing.MaxHold))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-e.socket.done:
	case <-ctx.Done():
	}
	return true
}

// Packets of endpoints with TLS (WIRE.md §8). The header of a protected packet
// names the conversation, so the session is found first, and opens the packet
// with its keys. What is in the clear opens nothing but a handshake.

// openSealed opens a packet under the application keys of its session. It
// reports false for one that is dropped.
func (e *Endpoint) openSealed(c *Conn, p *session.InPacket, now time.Duration) bool {
	var kept []byte // as a packet that does not open is destroyed
	if e.config.TLS != nil && len(p.Data) <= protect.MaxReset {
		kept = bytes.Clone(p.Data) // no packet of segments is so small
	}
	switch err := e.shared.Open(c.session.PacketKeys(), p); {
	case err == nil:
		if p.Kind == session.FECPacket && e.config.TLS == nil && !e.table.Bound(c) {
			e.bindFEC(c)
		}
		return true
	case errors.Is(err, protect.ErrExhausted):
		c.endFor(session.CauseFailed, crypt.ErrKeyExhausted)
	case errors.Is(err, protect.ErrTooFast):
		c.endFor(session.CauseFailed, errKeyUpdate)
	case c.session.ResetBy(kept):
		c.endFor(session.CauseReset, nil)
	}
	return false
}

// maxFailures is how many failed handshakes wait for Config.HandshakeFailed.
const maxFailures = 16

// reportHandshake passes the error of a handshake that a peer has begun to the
// application.
func (e *Endpoint) reportHandshake(remote net.Addr, err *HandshakeError) {
	e.warnHandshake(remote, err)
	if failed := e.config.HandshakeFailed; failed != nil {
		e.failed.Add(maxFailures, func() { failed(remote, err) })
	}
}

// resetKeyOf returns what the peer of a session is told about its resets; nil if
// the key may be known to another peer, which has, or had within TIME-WAIT, a
// session with the same conversation id. c.mu is held.
func (e *Endpoint) resetKeyOf(c *Conn) *protect.ToldKey {
	key, now := c.session.Place().Key(), e.now()
	e.mu.RLock()
	_, before := e.table.TimeWaits.AtAnyAddress(key.Conv, now)
	alone := e.table.Alone(c) && !before && !e.table.TimeWaits.Forgot(session.ResetKeyWithin, now)
	e.mu.RUnlock()
	if !alone {
		return nil
	}
	return &protect.ToldKey{ResetKey: key.ResetKey(e.table.ResetSecret, e.LocalAddr().String()), Since: uint32(e.shared.Epoch.Add(now).Unix())}
}
