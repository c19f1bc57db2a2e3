package kcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/takeover"
	"github.com/arqnet/kcp/internal/udp"
)

// Socket takeover, at the end that runs already. Its readers pause, its sessions are
// named to the successor, and then the readers read what the successor forwards to them
// in place of the sockets. Answers go straight to the sockets.

// takeoverState is what an endpoint knows of its predecessors and its successor.
type takeoverState struct {
	forwards atomic.Pointer[[]*predecessor] // whose packets are forwarded; nil: no one's; Endpoint.mu to change it
	gate     atomic.Pointer[handover]       // the readers pause at it; nil: they read their sockets

	// Endpoint.mu guards the fields below.
	leaving *Listener       // it was handed over; nil: none was
	passing *handover       // from HandOver to its failure, or to the successor's end; nil: none
	left    bool            // passing has come so far that no session may begin here
	notes   []takeover.Note // for the successor
	wake    chan struct{}   // capacity 1: drain has something to do; nil: nothing was handed over
	drained chan struct{}   // closed when drain has ended
	hold    time.Duration   // in place of drainHold; 0 except in tests
}

// handover is one call of HandOver.
type handover struct {
	ep       *Endpoint
	listener *Listener
	pipes    []*takeover.Pipe // this end's, one for each socket; immutable once readers pause
	notes    *takeover.Pipe   // this end's; immutable once readers pause
	retained []*predecessor   // passed on to the successor, and used again if it dies

	running   atomic.Int32  // readers that have not paused yet
	parked    chan struct{} // closed when all have
	decided   chan struct{} // closed when the readers may go on
	committed bool          // whether to read the pipes then; written before decided is closed

	lost  sync.Once
	freed atomic.Int32  // readers that read their sockets again after lost
	gone  chan struct{} // closed by lost
	over  chan struct{} // closed when all of them do
}

// HandOver passes the sockets of the listener's endpoint to the process at the other end
// of conn, a Unix stream socket, which calls TakeOver. The sessions stay in this process,
// and go on. The successor reads the sockets, opens all new sessions, and forwards the
// packets of those that stayed.
//
// Sessions that wait for Accept can still be accepted, as can those that peers are about
// to open. Then Accept returns net.ErrClosed. Dial returns it at once.
//
// HandOver returns nil once the last session of this process has ended, when the endpoint
// is closed, too. It returns ctx.Err() if ctx ends first: before the successor has
// confirmed, all is as before; after that, the sessions go on until Endpoint.Close.
//
// If the successor dies before it has confirmed, refuses, is of another user, or does
// not answer for 4 seconds, HandOver returns an error, and all is as before. If it dies
// later, this process reads the sockets again for its own sessions, answers new ones as
// after Listener.Close, and HandOver may be called for another successor. If it refuses
// because its Config differs, the error wraps a *ConfigError with the successor's value.
//
// HandOver works on Linux, with UDP sockets; otherwise the error is
// errors.ErrUnsupported. It is net.ErrClosed if the listener is closed or was handed over
// to a process that still runs. All come wrapped in a *net.OpError. HandOver does not
// close conn, and uses it until the successor has confirmed.
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
	case <-e.takeover.drained:
		return nil
	case <-ctx.Done():
		return opError("hand over", nil, e.LocalAddr(), ctx.Err())
	}
}

// beginHandover reserves the endpoint for one handover.
func (e *Endpoint) beginHandover(l *Listener) (*handover, error) {
	if e.repeat != nil {
		return nil, errors.ErrUnsupported
	}
	for i := range e.socket.shards {
		switch e.socket.shards[i].conn().(type) {
		case *net.UDPConn, *udp.Detached:
		default:
			return nil, errors.ErrUnsupported
		}
	}
	e.awaitResumed()
	e.mu.Lock()
	defer e.mu.Unlock()
	t := &e.takeover
	if e.closed || e.draining || t.passing != nil || e.listener != l && t.leaving != l {
		return nil, net.ErrClosed
	}
	h := &handover{ep: e, listener: l, parked: make(chan struct{}), decided: make(chan struct{}), gone: make(chan struct{}), over: make(chan struct{})}
	h.running.Store(int32(len(e.socket.shards)))
	t.passing = h
	return h, nil
}

// awaitResumed waits, for a while, until all readers have noticed that the successor has
// gone, if one has.
func (e *Endpoint) awaitResumed() {
	e.mu.RLock()
	h := e.takeover.passing
	e.mu.RUnlock()
	if h == nil {
		return
	}
	limit := time.NewTimer(takeover.PauseTimeout)
	defer limit.Stop()
	select {
	case <-h.gone:
		select {
		case <-h.over:
		case <-limit.C:
		}
	default:
	}
}

// handOver runs the predecessor's part of the exchange. If it fails, all is as before.
func (e *Endpoint) handOver(ctx context.Context, l *Listener, link *takeover.Link) error {
	h, err := e.beginHandover(l)
	if err == nil {
		if err = h.exchange(ctx, link); err != nil {
			h.abort()
		}
	}
	if err == nil {
		h.proceed()
		return nil
	}
	tellRefusal(link, err)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return err
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

// exchange passes everything on, until the successor reads.
func (h *handover) exchange(ctx context.Context, link *takeover.Link) error {
	if err := h.agree(link); err != nil {
		return err
	}
	if err := h.pause(ctx); err != nil {
		return err
	}
	return h.commit(link)
}

// offer returns what must be the same in both processes. c has the defaults filled in.
func (c *Config) offer(sockets int, scheme *protect.Scheme) *takeover.Offer {
	o := &takeover.Offer{
		Version: takeover.Version, Sockets: sockets, TLS: c.TLS != nil, Cipher: c.Cipher != nil,
		FEC: c.FEC != FEC{}, SharedConvs: c.SharedConvs, LegacyPeers: !refusesLegacy(c, scheme),
		LegacySetting: [...]string{"LegacyDefault", "LegacyAllow", "LegacyRefuse"}[c.LegacyPeers],
	}
	if o.Cipher {
		head, tail := scheme.Outside.Overhead()
		o.Probe = make([]byte, head+len(takeover.ProbeText)+tail)
		copy(o.Probe[head:], takeover.ProbeText)
		if scheme.Outside.Seal(o.Probe, nil) != nil {
			o.Probe = nil
		}
	}
	return o
}

// agree offers the sockets, and passes them, the pipes and the secrets.
func (h *handover) agree(link *takeover.Link) error {
	e := h.ep
	h.retain()
	offer := e.config.offer(len(e.socket.shards), e.protection)
	offer.Predecessors = len(h.retained)
	offer.Locals = []bool{true}
	for _, p := range h.retained {
		offer.Locals = append(offer.Locals, p.locals)
	}
	if n := offer.Files(); n > takeover.MaxFiles {
		return fmt.Errorf("%d descriptors to pass, more than %d: too many shards and predecessors", n, takeover.MaxFiles)
	}
	if err := link.Send(takeover.OfferKind, takeover.Encode(offer)); err != nil {
		return err
	}
	if _, _, err := link.Receive(takeover.AgreeKind); err != nil {
		return err
	}
	files, err := h.descriptors()
	defer takeover.CloseFiles(files)
	if err != nil {
		return err
	}
	e.mu.Lock()
	state := &takeover.State{CookieSecret: e.table.Cookies.Secret(), CookieClock: e.table.Cookies.Clock(e.now()), ResetSecret: e.table.ResetSecret}
	e.mu.Unlock()
	if err := link.Send(takeover.StateKind, takeover.Encode(state), files...); err != nil {
		return err
	}
	_, _, err = link.Receive(takeover.ReadyKind)
	return err
}

// retain pauses the predecessors, so that none of them ends during the exchange.
func (h *handover) retain() {
	forwards := &h.ep.takeover.forwards
	if all := forwards.Load(); all != nil {
		for _, p := range *all {
			p.pause()
		}
	}
	if all := forwards.Load(); all != nil { // some may have ended before they paused
		h.retained = *all
	}
}

// descriptors returns what goes with State: the sockets, then the pipes.
func (h *handover) descriptors() (files []int, err error) {
	add := func(fd int, err error) error {
		if err == nil {
			files = append(files, fd)
		}
		return err
	}
	shards := h.ep.socket.shards
	for i := range shards {
		if err := add(takeover.Duplicate(shards[i].conn().(syscall.Conn))); err != nil {
			return files, err
		}
	}
	pipe := func() (*takeover.Pipe, error) {
		p, fd, err := takeover.NewPipe()
		return p, add(fd, err)
	}
	for range shards {
		p, err := pipe()
		if err != nil {
			return files, err
		}
		h.pipes = append(h.pipes, p)
	}
	if h.notes, err = pipe(); err != nil {
		return files, err
	}
	for _, p := range h.retained {
		for _, feed := range p.feeds {
			if err := add(feed.Duplicate()); err != nil {
				return files, err
			}
		}
		if err := add(p.notes.Duplicate()); err != nil {
			return files, err
		}
	}
	return files, nil
}

// pause makes the readers pause, and waits until they have.
func (h *handover) pause(ctx context.Context) error {
	e := h.ep
	e.takeover.gate.Store(h)
	for i := range e.socket.shards {
		s := &e.socket.shards[i]
		s.lead.Stop()
		s.interrupt()
	}
	limit := time.NewTimer(takeover.PauseTimeout)
	defer limit.Stop()
	select {
	case <-h.parked:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-limit.C:
		return errors.New("a reader of the sockets does not pause")
	case <-e.socket.done:
		return net.ErrClosed
	}
}

// wantsPause returns the handover that the reader of s has to pause for, or nil.
func (e *Endpoint) wantsPause(s *shard) *handover {
	if h := e.takeover.gate.Load(); h != s.parked {
		return h
	}
	return nil
}

// park keeps a reader waiting until it is decided who reads the socket.
func (h *handover) park(s *shard) {
	s.parked = h
	if h.running.Add(-1) == 0 {
		close(h.parked)
	}
	select {
	case <-h.decided:
		if h.committed {
			h.ep.detach(s, takeover.NewInbox(h.pipes[s.in.shard]))
			s.lead.Start()
		}
	case <-h.ep.socket.done:
	}
}

// commit names all sessions to the successor, and waits until it has confirmed. From
// then on the successor reads.
func (h *handover) commit(link *takeover.Link) error {
	notes, err := h.leave()
	if err != nil {
		return err
	}
	link.Limit(takeover.PauseTimeout + time.Duration(len(notes))*noteTime)
	for len(notes) > 0 {
		var message []byte
		message, notes = encodeNotes(notes)
		if err := link.Send(takeover.NotesKind, message); err != nil {
			return err
		}
	}
	if err := link.Send(takeover.CommitKind, nil); err != nil {
		return err
	}
	if _, _, err := link.Receive(takeover.ConfirmKind); err != nil {
		return err
	}
	return link.Send(takeover.FinalKind, nil)
}

// noteTime is how much longer the exchange may take for each note.
const noteTime = 10 * time.Microsecond

// encodeNotes encodes as many notes as go into a message.
func encodeNotes(notes []takeover.Note) (message []byte, rest []takeover.Note) {
	for len(notes) > 0 && len(message) < 16<<10 {
		message = notes[0].Append(message)
		notes = notes[1:]
	}
	return message, notes
}

// leave lets no session begin here any more. It returns the notes of all sessions, here
// and in processes before this one, and of TIME-WAIT.
func (h *handover) leave() (notes []takeover.Note, err error) {
	e := h.ep
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.listener != h.listener && e.takeover.leaving != h.listener {
		return nil, net.ErrClosed
	}
	t := &e.takeover
	t.left, t.notes = true, nil
	t.forwards.Store(nil)
	for _, c := range e.table.Sessions() {
		entry := c.tableEntry()
		notes = append(notes, takeover.Note{Kind: takeover.Owns, Addr: entry.Addr, Conv: entry.Conv, Extended: c.extended()})
	}
	for i, p := range h.retained {
		notes = p.appendOwned(notes, uint32(i+1))
	}
	for key, tw := range e.table.TimeWaits.All(e.now()) {
		n := e.endNote(key, tw)
		n.Of = h.keeperOf(key, tw)
		notes = append(notes, n)
	}
	for conv := range e.table.Used.All {
		notes = append(notes, takeover.Note{Kind: takeover.Used, Conv: conv})
	}
	return notes, nil
}

// keeperOf returns which process has the keys of a session that has ended, as Note.Of.
func (h *handover) keeperOf(key sessionKey, tw timeWait) uint32 {
	for i, p := range h.retained {
		if tw.Mute && p.keeps(key) {
			return uint32(i + 1)
		}
	}
	return 0
}

// endNote returns the note of a session that has ended.
func (e *Endpoint) endNote(key sessionKey, tw timeWait) takeover.Note {
	return takeover.Note{Kind: takeover.Ended, Addr: key.Addr, Conv: key.Conv, Extended: tw.Token != 0, End: takeover.End{
		Una: tw.Una, Token: tw.Token, Own: tw.Own, Aborted: tw.Aborted, Dropped: tw.Dropped,
		// The successor has no keys of the session.
		Mute: e.config.TLS != nil || e.protection.Authentic,
	}}
}

// abort undoes all that the exchange has done so far.
func (h *handover) abort() {
	e := h.ep
	if h.notes != nil {
		h.notes.TryWrite(over.Append(nil)) // not to be taken for dead
	}
	h.closePipes()
	e.takeover.gate.CompareAndSwap(h, nil)
	e.resumeTurns()
	close(h.decided)
	e.mu.Lock()
	defer e.mu.Unlock()
	h.reclaimLocked()
	e.takeover.passing = nil
}

// reclaimLocked lets sessions begin here again, and forwards to the predecessors that
// were passed on. Endpoint.mu is held.
func (h *handover) reclaimLocked() {
	t := &h.ep.takeover
	t.left, t.notes = false, nil
	if len(h.retained) == 0 {
		return
	}
	t.forwards.Store(&h.retained)
	for _, p := range h.retained {
		p.resume()
	}
}

// resumeTurns lets calls read again.
func (e *Endpoint) resumeTurns() {
	for i := range e.socket.shards {
		e.socket.shards[i].lead.Start()
	}
}

func (h *handover) closePipes() {
	for _, p := range h.pipes {
		p.Close()
	}
	if h.notes != nil {
		h.notes.Close()
	}
}

// proceed begins what follows the exchange: the readers read the pipes, and a goroutine
// tells the successor of sessions that end.
func (h *handover) proceed() {
	e := h.ep
	e.mu.Lock()
	t := &e.takeover
	e.listener, t.leaving = nil, h.listener
	start := t.wake == nil
	if start {
		t.wake, t.drained = make(chan struct{}, 1), make(chan struct{})
	}
	e.mu.Unlock()
	h.committed = true
	close(h.decided)
	if start {
		go e.drain(h.listener)
	} else {
		e.wakeDrain()
	}
}

// resumes makes a reader read its socket again after the successor has gone. It reports
// false if no successor reads it, or the endpoint is closed.
func (e *Endpoint) resumes(s *shard) bool {
	if s.link.Load().inbox == nil || e.stopped() {
		return false
	}
	h := s.parked
	h.lost.Do(func() {
		close(h.gone)
		h.closePipes() // so that the other readers notice
		e.mu.Lock()
		h.reclaimLocked()
		e.mu.Unlock()
	})
	if !e.attach(s) {
		return false
	}
	if int(h.freed.Add(1)) == len(e.socket.shards) { // another handover may begin
		e.mu.Lock()
		e.takeover.gate.Store(nil)
		e.takeover.passing = nil
		e.mu.Unlock()
		close(h.over)
	}
	return true
}

// detach makes the reader read in. It takes the socket out of the netpoller, which would
// wake this process for each packet that the successor reads. A socket that the caller
// has, too, stays in it.
func (e *Endpoint) detach(s *shard, in *takeover.Inbox) {
	link := *s.link.Load()
	link.inbox = in
	if !s.foreign {
		if pc, sock := udp.Detach(link.sock); pc != nil {
			link.pc, link.sock = pc, sock
		}
	}
	e.relink(s, &link)
}

// attach undoes detach. It reports false if the system does not let it, which ends the
// endpoint.
func (e *Endpoint) attach(s *shard) bool {
	link := *s.link.Load()
	link.inbox = nil
	if d, ok := link.pc.(*udp.Detached); ok {
		fd, err := takeover.Duplicate(d)
		var pc *net.UDPConn
		if err == nil {
			pc, err = takeover.OpenSocket(fd)
		}
		if err != nil {
			e.shut(&SocketError{err})
			return false
		}
		link.pc, link.sock = pc, udp.New(pc)
	}
	e.relink(s, &link)
	return true
}

// relink gives a shard another way to its socket.
func (e *Endpoint) relink(s *shard, link *socketLink) {
	if old := s.link.Swap(link); old.pc != link.pc {
		_ = old.pc.Close()
	}
	_ = link.setReadDeadline(time.Time{}) // that of the interrupt has passed
	if e.stopped() {                      // perhaps it has not seen link
		e.stopReaders()
	}
}
