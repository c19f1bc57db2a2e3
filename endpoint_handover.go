package kcp

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/takeover"
	"github.com/arqnet/kcp/internal/udp"
)

// Socket takeover (internal/takeover), at the end that runs already. Its readers pause,
// its sessions are named to the successor, and then the readers read what the successor
// forwards to them in place of the sockets. Answers go straight to the sockets.

// takeoverState is what an endpoint knows of its predecessors and its successor.
type takeoverState struct {
	takeover.Departure

	// Endpoint.mu guards the fields below.
	leaving *Listener     // it was handed over; nil: none was
	hold    time.Duration // in place of drainHold; 0 except in tests
}

// HandOver passes the sockets of the listener's endpoint to the process at the other end
// of conn, a Unix stream socket, which calls TakeOver. The successor opens all new
// sessions; those of this process go on, and it forwards their packets. Sessions that
// wait for Accept can still be accepted. Then Accept returns net.ErrClosed, as Dial does
// at once.
//
// HandOver returns nil once the last session of this process has ended, when the endpoint
// is closed, too. It returns ctx.Err() if ctx ends first: before the successor has
// confirmed, all is as before; after that, the sessions go on until Endpoint.Close.
//
// If the successor dies before it has confirmed, refuses, is of another user, or does not
// answer for 4 seconds, all is as before. The error wraps a *ConfigError if the Config
// differs. If it dies later, this process reads the sockets again, and HandOver may be
// called for another successor.
//
// It works on Linux, with UDP sockets; otherwise the error is errors.ErrUnsupported. It
// is net.ErrClosed if the listener is closed or was handed over. HandOver does not close
// conn.
func (l *Listener) HandOver(ctx context.Context, conn *net.UnixConn) error {
	e := l.ep
	link, err := takeover.NewLink(ctx, conn, "the new process")
	if err == nil {
		err = e.handOver(ctx, l, link)
		link.Close()
	}
	if err != nil {
		return opError("hand over", nil, e.LocalAddr(), err)
	}
	select {
	case <-e.takeover.Drained():
		return nil
	case <-ctx.Done():
		return opError("hand over", nil, e.LocalAddr(), ctx.Err())
	}
}

// handOver runs the predecessor's part of the exchange, and begins what follows it: the
// readers read the pipes, and a goroutine tells the successor of sessions that end. If it
// fails, all is as before.
func (e *Endpoint) handOver(ctx context.Context, l *Listener, link *takeover.Link) error {
	leaver := leaver{e, l}
	h, err := leaver.beginHandover()
	if err == nil {
		err = h.Exchange(ctx, link)
	}
	if err != nil {
		tellRefusal(link, err)
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.listener, e.takeover.leaving = nil, l
	if h.Proceed() {
		go e.takeover.Drain(&drainer{leaver, e.table.Sessions()})
	}
	return nil
}

// tellRefusal tells the other end that err has ended the exchange here. If the other end
// itself has refused, err wraps the *ConfigError that is the reason from now on.
func tellRefusal(link *takeover.Link, err error) {
	var refused *takeover.RefusedError
	if !errors.As(err, &refused) {
		var differs *ConfigError
		errors.As(err, &differs)
		link.Refuse(err, (*takeover.Difference)(differs))
	} else if refused.Differs != nil {
		refused.Cause = (*ConfigError)(refused.Differs)
	}
}

// leaver is an endpoint that hands a listener over, as package takeover needs it.
type leaver struct {
	*Endpoint
	of *Listener
}

// beginHandover reserves the endpoint for one handover.
func (e leaver) beginHandover() (*takeover.Handover, error) {
	for i := range e.socket.shards {
		switch e.socket.shards[i].conn().(type) {
		case *net.UDPConn, *udp.Detached:
		default:
			return nil, errors.ErrUnsupported
		}
	}
	e.takeover.AwaitResumed()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.draining || !e.mayLeaveLocked() {
		return nil, net.ErrClosed
	}
	if h := e.takeover.Begin(e); h != nil {
		return h, nil
	}
	return nil, net.ErrClosed
}

// mayLeaveLocked reports whether the listener is open, or was handed over. Endpoint.mu is
// held.
func (e leaver) mayLeaveLocked() bool {
	return !e.closed && (e.listener == e.of || e.takeover.leaving == e.of)
}

func (e leaver) Sockets() (all []syscall.Conn) {
	for i := range e.socket.shards {
		all = append(all, e.socket.shards[i].conn().(syscall.Conn))
	}
	return all
}

func (e leaver) Offer() *takeover.Offer {
	return e.config.offer(len(e.socket.shards), e.shared.Protection)
}

// offer returns what must be the same in both processes. c has the defaults filled in.
func (c *Config) offer(sockets int, scheme *protect.Scheme) *takeover.Offer {
	o := &takeover.Offer{
		Version: takeover.Version, Sockets: sockets, TLS: c.TLS != nil, Cipher: c.Cipher != nil,
		FEC: c.FEC != FEC{}, SharedConvs: c.SharedConvs, LegacyPeers: !refusesLegacy(c, scheme),
		LegacySetting: [...]string{"LegacyDefault", "LegacyAllow", "LegacyRefuse"}[c.LegacyPeers],
	}
	if o.Cipher {
		o.ProbeWith(scheme.Outside)
	}
	return o
}

func (e leaver) State() *takeover.State {
	e.mu.Lock()
	defer e.mu.Unlock()
	return takeover.StateOf(&e.table.Gate, e.now())
}

func (e leaver) Interrupt() {
	for i := range e.socket.shards {
		e.socket.shards[i].lead.Stop()
		e.socket.shards[i].interrupt()
	}
}

// Resume lets calls read again.
func (e leaver) Resume() {
	for i := range e.socket.shards {
		e.socket.shards[i].lead.Start()
	}
}

func (e leaver) Closed() <-chan struct{} { return e.socket.done }

// Leave lets no session begin here any more. It returns the notes of all sessions, here
// and in processes before this one, and of TIME-WAIT.
func (e leaver) Leave(h *takeover.Handover) (notes []takeover.Note, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.mayLeaveLocked() {
		return nil, net.ErrClosed
	}
	return takeover.Notes(&e.table.Gate, h.Leave(), e.mute(), e.now()), nil
}

// mute reports whether another process has no keys of sessions of this one.
func (e *Endpoint) mute() bool { return e.shared.Protection.Authentic || e.shared.Protection.Derives }

// wantsPause returns the handover that the reader of s has to pause for, or nil.
func (e *Endpoint) wantsPause(s *shard) *takeover.Handover {
	if h := e.takeover.Gate.Load(); h != s.parked {
		return h
	}
	return nil
}

// park keeps a reader waiting until it is decided who reads the socket.
func (e *Endpoint) park(s *shard, h *takeover.Handover) {
	s.parked = h
	if in := h.Park(s.in.shard); in != nil {
		e.relink(s, s.link.Load().Detached(in, !s.foreign))
		s.lead.Start()
	}
}

// resumes makes a reader read its socket again after the successor has gone. It reports
// false if no successor reads it, or the endpoint is closed.
func (e *Endpoint) resumes(s *shard) bool {
	if s.link.Load().Inbox == nil || e.stopped() {
		return false
	}
	s.parked.Lose()
	link, err := s.link.Load().Attached()
	if err != nil {
		e.shut(&SocketError{err})
		return false
	}
	e.relink(s, link)
	s.parked.Free()
	return true
}

// relink gives a shard another way to its socket.
func (e *Endpoint) relink(s *shard, link *takeover.Socket) {
	if old := s.link.Swap(link); old.Conn != link.Conn {
		_ = old.Conn.Close()
	}
	_ = link.SetReadDeadline(time.Time{}) // the interrupt's has passed
	if e.stopped() {                      // perhaps it has not seen link
		e.stopReaders()
	}
}

// drainHold is how long at most an endpoint whose sessions have keys of their own answers
// in TIME-WAIT after the last one has ended. Its successor answers for others.
const drainHold = 800 * time.Millisecond

// drainer is an endpoint that was handed over, and closes with its last session.
type drainer struct {
	leaver
	opening []*Conn // were not offered to Accept yet, and may be
}

func (e *drainer) Opening() bool {
	e.opening = slices.DeleteFunc(e.opening, func(c *Conn) bool { s := c.lookAt(); return s.Offered || s.Ended })
	return len(e.opening) > 0
}

func (e *drainer) Refuse() { e.of.leave() }
func (e *drainer) Shut()   { e.shut(net.ErrClosed) }

// Emptied reports whether no session is left, and for how long the endpoint must answer
// for the last ones.
func (e *drainer) Emptied() (hold time.Duration, ok bool) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.table.Len() > 0 {
		return 0, false
	}
	if e.mute() || !e.takeover.IsAway() {
		hold = cmp.Or(e.takeover.hold, min(max(0, e.socket.holdUntil-e.now()), drainHold))
	}
	return hold, true
}

// Socket takeover, at the end that begins (internal/takeover). It reads the sockets, and
// forwards packets of sessions that stayed in the processes before it.

// TakeOver takes over the sockets of the process at the other end of conn, a Unix stream
// socket, where Listener.HandOver is called, and returns a listener on them. The sessions
// stay in the other process, which gets their packets.
//
// config must be as in the other process in Cipher, Shards, SharedConvs, whether TLS and
// FEC are set, and whether legacy peers may open sessions. If it differs, the error wraps
// a *ConfigError, and nothing has changed there. SocketBuffer and Control have no effect.
//
// TakeOver gives up after 4 seconds, or with ctx.Err(). It works on Linux, between
// processes of the same user or root; elsewhere the error is errors.ErrUnsupported. It
// does not close conn.
func TakeOver(ctx context.Context, conn *net.UnixConn, config *Config) (*Listener, error) {
	if err := config.validateFor(true); err != nil {
		return nil, err
	}
	if err := config.listenable(); err != nil {
		return nil, opError("take over", nil, nil, err)
	}
	link, err := takeover.NewLink(ctx, conn, "the old process")
	if err != nil {
		return nil, opError("take over", nil, nil, err)
	}
	defer link.Close()
	l, err := takeOver(link, config)
	if err != nil {
		tellRefusal(link, err)
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, opError("take over", nil, nil, err)
	}
	return l, nil
}

// takeOver runs the successor's part of the exchange.
func takeOver(link *takeover.Link, config *Config) (*Listener, error) {
	a, err := takeover.Arrive(link, config.agrees)
	if err != nil {
		return nil, err
	}
	e := makeEndpoint(config, true, a.Sockets...)
	takeover.Adopt(&e.table.Gate, &a.State, e.config.TLS != nil && len(e.config.StatelessResetKey) == 0, e.now())
	l, err := e.Listen()
	if err == nil {
		err = a.Learn(e.inherit)
	}
	if err != nil {
		_ = e.Close()
		a.Close()
		return nil, err
	}
	e.takeover.Before.Start(a.Before)
	e.start()
	return l, nil
}

// agrees compares the predecessor's configuration with c.
func (c *Config) agrees(offer *takeover.Offer) error {
	own := c.withDefaults()
	scheme := protect.NewScheme(own.Cipher, own.TLS != nil, nil)
	if differs := offer.DiffersWith(own.offer(max(own.Shards, 1), scheme), scheme.Outside); differs != nil {
		return (*ConfigError)(differs)
	}
	return nil
}

// inherit takes over what is left of a session that has ended in another process. It
// answers for it in TIME-WAIT.
func (e *Endpoint) inherit(n takeover.Note) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case n.Kind == takeover.Used:
		e.table.Used.Add(n.Conv)
	case !e.closed:
		key, ended := n.Remember(e.shared.Outside)
		e.rememberLocked(key, ended, n.Extended)
	}
}

// forward passes a packet on to the process before this one that has its session. It
// reports false if there is none.
func (e *Endpoint) forward(key session.Key, d *udp.Datagram, p *session.InPacket, in *readState) bool {
	if key.Peer != "" {
		return false
	}
	packet := takeover.PacketOf(key, p.Kind, p.Data, e.config.SharedConvs)
	switch in.forwarder().Forward(&e.takeover.Before, d, packet) {
	case takeover.Theirs:
		return true
	case takeover.Perhaps:
		return !e.hasConv(key.Conv)
	}
	return false
}

// forwarder returns what the reader has for predecessors.
func (in *readState) forwarder() *takeover.Forwarder {
	if in.forwards == nil {
		in.forwards = takeover.NewForwarder(in.shard)
	}
	return in.forwards
}

// hasConv reports whether a session of this process has a conversation id.
func (e *Endpoint) hasConv(conv uint32) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for range e.table.OfConv(conv) {
		return true
	}
	return false
}
