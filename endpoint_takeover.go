package kcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/takeover"
	"github.com/arqnet/kcp/internal/udp"
)

// Socket takeover, at the end that begins. It reads the sockets, and forwards packets of
// sessions that stayed in the processes before it.

// predecessor is a process that has handed its sockets over, and still has sessions.
type predecessor struct {
	ep      *Endpoint
	feeds   []*takeover.Feed // one for each socket; immutable
	notes   *takeover.Pipe   // immutable
	locals  bool             // it understands local addresses of datagrams; immutable
	stopped chan struct{}    // closed when listen has returned; Endpoint.mu

	mu    sync.RWMutex // guards owned
	owned takeover.Owned
}

// TakeOver takes over the sockets of the process at the other end of conn, a Unix stream
// socket, where Listener.HandOver is called. It returns a listener on them, which is one
// of Listen in all other respects. The sessions stay in the other process; their packets
// are forwarded to it.
//
// config must be as in the other process, as far as it decides which session a packet
// belongs to: Cipher, whether TLS is set, whether FEC is, Shards, SharedConvs, and
// whether legacy peers may open sessions. If it differs, the error wraps a *ConfigError
// that says in what, and nothing has changed in the other process. SocketBuffer and
// Control have no effect. With TLS the key of stateless resets is that of the other
// process, unless config sets one.
//
// TakeOver gives up after 4 seconds, or with ctx.Err() when ctx ends. It works on Linux;
// elsewhere the error is errors.ErrUnsupported. It checks that the other process is of
// the same user or of root. Errors come wrapped in a *net.OpError. TakeOver does not
// close conn, and does not use it after it has returned.
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
	var offer takeover.Offer
	if err := await(link, takeover.OfferKind, &offer); err != nil {
		return nil, err
	}
	if err := agrees(&offer, config); err != nil {
		return nil, err
	}
	if err := link.Send(takeover.AgreeKind, nil); err != nil {
		return nil, err
	}
	var state takeover.State
	if err := await(link, takeover.StateKind, &state); err != nil {
		return nil, err
	}
	sockets, predecessors, err := openFiles(link, &offer)
	if err != nil {
		return nil, err
	}
	e := makeEndpoint(config, true, sockets...)
	for _, p := range predecessors {
		p.ep = e
	}
	l, err := e.succeed(link, &state, predecessors)
	if err != nil {
		_ = e.Close()
		for _, p := range predecessors {
			p.close()
		}
		return nil, err
	}
	return l, nil
}

// await waits for a message, and decodes it.
func await(link *takeover.Link, kind takeover.Kind, v any) error {
	_, payload, err := link.Receive(kind)
	if err != nil {
		return err
	}
	return takeover.Decode(payload, v)
}

// agrees compares the predecessor's configuration with config.
func agrees(offer *takeover.Offer, config *Config) error {
	if offer.Sockets < 1 || offer.Predecessors < 0 || offer.Predecessors > 100 {
		return errors.New("malformed message")
	}
	if offer.Version != takeover.Version {
		return fmt.Errorf("the old process hands over by version %d of the exchange, the new one by %d", offer.Version, takeover.Version)
	}
	own := config.withDefaults()
	scheme := protect.NewScheme(own.Cipher, own.TLS != nil, own.Repetition.endpoint().nonces())
	sockets := own.Shards
	if own.Shards <= 1 {
		sockets = 1
	}
	differs := offer.Differs(own.offer(sockets, scheme), func(packet []byte, content string) bool {
		p := protect.Packet{Data: packet}
		return scheme.Outside.Open(&p) == nil && string(p.Data) == content
	})
	if differs != nil {
		return (*ConfigError)(differs)
	}
	return nil
}

// openFiles opens the descriptors that have come with State.
func openFiles(link *takeover.Link, offer *takeover.Offer) (sockets []net.PacketConn, predecessors []*predecessor, err error) {
	files, err := link.TakeFiles(offer.Files())
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err == nil {
			return
		}
		takeover.CloseFiles(files)
		for _, pc := range sockets {
			_ = pc.Close()
		}
		for _, p := range predecessors {
			p.close()
		}
	}()
	next := func() int {
		fd := files[0]
		files = files[1:]
		return fd
	}
	for range offer.Sockets {
		pc, err := takeover.OpenSocket(next())
		if err != nil {
			return sockets, nil, err
		}
		sockets = append(sockets, pc)
	}
	for i := range 1 + offer.Predecessors {
		p := &predecessor{locals: i < len(offer.Locals) && offer.Locals[i]}
		predecessors = append(predecessors, p)
		for range offer.Sockets {
			feed, err := takeover.OpenFeed(next())
			if err != nil {
				return sockets, predecessors, err
			}
			p.feeds = append(p.feeds, feed)
		}
		if p.notes, err = takeover.OpenPipe(next()); err != nil {
			return sockets, predecessors, err
		}
	}
	return sockets, predecessors, nil
}

// succeed learns what sessions the predecessors have, confirms, and starts the endpoint.
func (e *Endpoint) succeed(link *takeover.Link, state *takeover.State, predecessors []*predecessor) (*Listener, error) {
	e.table.Cookies.Adopt(state.CookieSecret, state.CookieClock-e.now())
	if e.config.TLS != nil && len(e.config.StatelessResetKey) == 0 {
		e.table.ResetSecret = state.ResetSecret
	}
	l, err := e.Listen()
	if err != nil {
		return nil, err
	}
	if err := link.Send(takeover.ReadyKind, nil); err != nil {
		return nil, err
	}
	for {
		kind, notes, err := link.Receive(takeover.NotesKind, takeover.CommitKind)
		if err != nil {
			return nil, err
		}
		if kind == takeover.CommitKind {
			break
		}
		for len(notes) > 0 {
			n, rest, ok := takeover.CutNote(notes)
			if !ok || uint64(n.Of) >= uint64(len(predecessors)) || !predecessors[n.Of].apply(n) {
				return nil, errors.New("malformed message, or too many sessions")
			}
			notes = rest
		}
	}
	link.Wait()
	err = link.Send(takeover.ConfirmKind, nil)
	if err == nil {
		_, _, err = link.Receive(takeover.FinalKind)
	}
	// If the predecessor has died, no other process reads the sockets.
	if err != nil && !(takeover.IsGone(err) && predecessors[0].isDead()) {
		return nil, err
	}
	e.mu.Lock()
	e.takeover.forwards.Store(&predecessors)
	for _, p := range predecessors {
		p.resume()
	}
	e.mu.Unlock()
	e.start()
	return l, nil
}

// isDead reports whether the predecessor's process has ended. If it has only given up,
// abort has written a note. It may wait for Timeout.
func (p *predecessor) isDead() bool {
	stop := time.AfterFunc(takeover.Timeout, p.notes.Interrupt)
	defer stop.Stop()
	_, err := p.notes.Read(make([]byte, 64<<10))
	return err != nil && !isInterrupt(err)
}

// apply takes note of what has become of a session of the predecessor. It reports false
// if it has too many.
func (p *predecessor) apply(n takeover.Note) bool {
	switch n.Kind {
	case takeover.Used:
		p.ep.mu.Lock()
		p.ep.table.Used.Add(n.Conv)
		p.ep.mu.Unlock()
		return true
	case takeover.Ended:
		p.ep.inheritTimeWait(n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch n.Kind {
	case takeover.Owns:
		return p.owned.Add(n.Addr, n.Conv, n.Extended)
	case takeover.Moved:
		p.owned.Move(n.Addr, n.Conv, n.To)
	case takeover.Ended:
		// Only the predecessor has the keys to answer what arrives in TIME-WAIT, also
		// if that began before the takeover.
		if n.End.Mute {
			p.owned.End(n.Addr, n.Conv, n.Extended)
		} else {
			p.owned.Remove(n.Addr, n.Conv)
		}
	}
	return true
}

// inheritTimeWait answers for a session that has ended in another process.
func (e *Endpoint) inheritTimeWait(n takeover.Note) {
	tw := timeWait{Una: n.End.Una, Token: n.End.Token, Own: n.End.Own, Aborted: n.End.Aborted, Dropped: n.End.Dropped, Mute: n.End.Mute, Protection: e.outside}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.rememberLocked(admission.MakeKey(n.Addr, nil, n.Conv), tw, n.Extended)
	}
}

// listen reads what the predecessor tells, until it has ended.
func (p *predecessor) listen(stopped chan struct{}) {
	defer close(stopped)
	message := make([]byte, 64<<10)
	for {
		n, err := p.notes.Read(message)
		if err != nil {
			p.ended(err)
			return
		}
		for b := message[:n]; len(b) > 0; {
			note, rest, ok := takeover.CutNote(b)
			if !ok || !p.apply(note) || note.Kind == takeover.Over {
				p.ended(io.EOF)
				return
			}
			b = rest
		}
	}
}

// ended lets go of a predecessor that has ended, or whose endpoint has. err is what
// Read has returned. A predecessor that is being passed on is kept.
func (p *predecessor) ended(err error) {
	if isInterrupt(err) && !p.ep.stopped() {
		return
	}
	e := p.ep
	e.mu.Lock()
	if all := e.takeover.forwards.Load(); all != nil {
		var others []*predecessor
		for _, other := range *all {
			if other != p {
				others = append(others, other)
			}
		}
		if e.takeover.forwards.Store(&others); len(others) == 0 {
			e.takeover.forwards.Store(nil)
		}
	}
	e.mu.Unlock()
	p.close()
}

// pause makes listen return, and waits until it has.
func (p *predecessor) pause() {
	p.ep.mu.RLock()
	stopped := p.stopped
	p.ep.mu.RUnlock()
	p.notes.Interrupt()
	<-stopped
}

// resume starts listen, unless the endpoint is closed. Endpoint.mu is held.
func (p *predecessor) resume() {
	if p.ep.closed {
		p.close()
		return
	}
	p.notes.Resume()
	p.stopped = make(chan struct{})
	go p.listen(p.stopped)
}

func (p *predecessor) close() {
	for _, feed := range p.feeds {
		feed.Close()
	}
	if p.notes != nil {
		p.notes.Close()
	}
}

// keeps reports whether p has the session of key, or has had it and still runs.
func (p *predecessor) keeps(key sessionKey) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	_, ok := p.owned.At(key.Addr, key.Conv)
	return ok
}

// appendOwned appends notes of all sessions of p, which is the given number to the
// successor.
func (p *predecessor) appendOwned(notes []takeover.Note, of uint32) []takeover.Note {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for s := range p.owned.All {
		notes = append(notes, takeover.Note{Kind: takeover.Owns, Of: of, Addr: s.Addr, Conv: s.Conv, Extended: s.Extended})
		if s.Ended {
			notes = append(notes, takeover.Note{Kind: takeover.Ended, Of: of, Addr: s.Addr, Conv: s.Conv, End: takeover.End{Mute: true}})
		}
	}
	return notes
}

// forwarding is what the reader of a socket has for one predecessor.
type forwarding struct {
	to  *predecessor
	box takeover.Outbox
}

// forward passes a packet on to the process before this one that has its session. It
// reports false if there is none. A packet that opens a session is new, unless it comes
// from the very address of that session.
func (e *Endpoint) forward(key sessionKey, d *udp.Datagram, p *inPacket, in *readState) (found bool) {
	all := e.takeover.forwards.Load()
	if all == nil || key.Peer != "" {
		return false
	}
	for _, to := range *all {
		if to.hasAt(key, p) {
			e.forwardTo(to, d, in)
			return true
		}
	}
	// Its peer may have another address now. Only the process can tell which has the
	// key: peers choose the ids, so several may have a session of this one.
	for _, to := range *all {
		if to.hasConv(key, p) {
			e.forwardTo(to, d, in)
			found = true
		}
	}
	return found && !e.hasConv(key.Conv)
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

// forwardTo leaves a packet to be written to a process before this one.
func (e *Endpoint) forwardTo(to *predecessor, d *udp.Datagram, in *readState) {
	whole := *d
	if e.config.Cipher != nil {
		whole.Buf = in.whole
	}
	if !to.locals {
		whole.Local = udp.Local{}
	}
	e.counters.forwarded.Add(1)
	e.counters.dropForward.Add(uint64(in.forwardingTo(to).box.Put(to.feeds[in.shard], &whole)))
}

// hasAt reports whether a packet comes from the address of its session, and p has that.
// What opens a session there after the end of another is new.
func (p *predecessor) hasAt(key sessionKey, packet *inPacket) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if packet.kind == parityPacket {
		return p.owned.Addr(key.Addr)
	}
	s, ok := p.owned.At(key.Addr, key.Conv)
	return ok && !(s.Ended && opensAfter(s, packet))
}

// opensAfter reports whether a packet opens a session after the end of s. An extended
// peer of s may still repeat the first segment of that.
func opensAfter(s takeover.Session, packet *inPacket) bool {
	switch packet.kind {
	case clearPacket:
		return true
	case handshakePacket, sealedPacket:
		return false
	}
	f, ok := admission.Parse(packet.kind, packet.Data, packet.conv)
	return ok && (f.Hello.Code != 0 || f.Push && !s.Extended)
}

// hasConv reports whether p has a session that a packet from another address may belong
// to.
func (p *predecessor) hasConv(key sessionKey, packet *inPacket) bool {
	p.mu.RLock()
	conv, extended := p.owned.Conv(key.Conv)
	p.mu.RUnlock()
	switch {
	case !conv || p.ep.config.SharedConvs || packet.kind == clearPacket || packet.kind == parityPacket:
		return false
	case packet.kind == handshakePacket || packet.kind == sealedPacket:
		return true
	}
	f, ok := admission.Parse(packet.kind, packet.Data, packet.conv)
	return ok && f.Hello.Code == 0 && (!f.Push || extended)
}

// forwardingTo returns what the reader has for a predecessor.
func (in *readState) forwardingTo(to *predecessor) *forwarding {
	for i := range in.forwards {
		if in.forwards[i].to == to {
			return &in.forwards[i]
		}
	}
	in.forwards = append(in.forwards, forwarding{to: to})
	return &in.forwards[len(in.forwards)-1]
}

// flushForwards writes what the batch has left for predecessors.
func (e *Endpoint) flushForwards(in *readState) {
	for i := range in.forwards {
		f := &in.forwards[i]
		e.counters.dropForward.Add(uint64(f.box.Flush(f.to.feeds[in.shard])))
	}
	if e.takeover.forwards.Load() == nil {
		in.forwards, in.whole = nil, nil
	}
}

// predecessorSessions returns the number of sessions of predecessors.
func (e *Endpoint) predecessorSessions() (n int) {
	if all := e.takeover.forwards.Load(); all != nil {
		for _, p := range *all {
			p.mu.RLock()
			n += p.owned.Len()
			p.mu.RUnlock()
		}
	}
	return n
}
