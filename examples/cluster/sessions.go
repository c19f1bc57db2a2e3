package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/arqnet/kcp"
)

// session is a KCP session with another node. Two nodes may have several, as both may
// have dialled. Each end sends on the one that it has got to know last, and takes what
// arrives on any. The others end by kcp.Config.IdleTimeout.
type session struct {
	t       *Transport
	conn    *kcp.Conn
	addr    netip.AddrPort // that was dialled, or from which it was accepted
	name    string         // of the other node, as its certificate says
	large   atomic.Int32   // packets on their way out by stream
	inboxes atomic.Int32   // streams of messages that are being received
}

// dial is a dial in the background. Transport.mu guards packets and finished; s and err
// are written before done is closed.
type dial struct {
	addr     netip.AddrPort
	done     chan struct{}
	s        *session // nil: err says why
	err      error
	packets  []queuedPacket // at most maxQueuedPackets
	finished bool
}

// queuedPacket is a packet for the node of that name, "" for any, with the byte in front
// that says what it is.
type queuedPacket struct {
	name string
	b    []byte
}

// find returns the newest session with the node at addr, or the dial that is to become
// one. It begins a dial if there is none, and gives it p, if that is not nil.
func (t *Transport) find(addr netip.AddrPort, name string, p *queuedPacket) (*session, *dial, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, nil, net.ErrClosed
	}
	if addr == t.own {
		return nil, nil, ErrOwnAddress
	}
	s, err := t.newestLocked(addr, name)
	if s != nil || err != nil {
		return s, nil, err
	}
	d := t.dials[addr]
	switch {
	case d == nil && t.dialing >= maxDials:
		t.dropPacket(p)
		return nil, nil, ErrTooManyDials
	case d == nil:
		d = &dial{addr: addr, done: make(chan struct{})}
		t.dials[addr] = d
		t.dialing++
		t.running.Go(func() { t.dial(d) })
	}
	switch {
	case p == nil:
	case d.finished || len(d.packets) >= maxQueuedPackets:
		t.dropPacket(p)
	default:
		d.packets = append(d.packets, *p)
	}
	return nil, d, nil
}

// write sends b as a datagram to the node at addr, or leaves it to a dial. The first
// byte says what it is. A session that turns out to have ended is replaced.
func (t *Transport) write(addr netip.AddrPort, name string, b []byte) error {
	p := queuedPacket{name, b}
	for range maxSessionsPerPath {
		s, _, err := t.find(addr, name, &p)
		if s == nil || err != nil {
			return err
		}
		if err := s.send(b); err == nil {
			return nil
		}
		s.end()
	}
	t.dropPacket(&p)
	return nil
}

// newestLocked returns the newest session with the node at addr that has that name, or
// any name if it is "". It returns an error if only others are there.
func (t *Transport) newestLocked(addr netip.AddrPort, name string) (*session, error) {
	all := t.byAddr[addr]
	for _, s := range slices.Backward(all) {
		if name == "" || s.name == name {
			return s, nil
		}
	}
	if len(all) > 0 {
		return nil, &WrongNameError{addr, name, all[len(all)-1].name}
	}
	return nil, nil
}

// dropPacket counts a packet that is dropped; nil is none.
func (t *Transport) dropPacket(p *queuedPacket) {
	if p != nil {
		t.counters.packetsUnsent.Add(1)
	}
}

// session returns a session with the node at addr, and waits for a dial if there is
// none.
func (t *Transport) session(ctx context.Context, addr netip.AddrPort, name string) (*session, error) {
	s, d, err := t.find(addr, name, nil)
	if s != nil || err != nil {
		return s, err
	}
	select {
	case <-d.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("cluster: dial %v: %w", addr, ctx.Err())
	}
	switch {
	case d.err != nil:
		return nil, d.err
	case name != "" && d.s.name != name:
		return nil, &WrongNameError{addr, name, d.s.name}
	}
	return d.s, nil
}

// open opens a stream of that kind to the node at addr. A session that turns out to have
// ended is replaced.
func (t *Transport) open(ctx context.Context, addr netip.AddrPort, name string, kind byte) (*kcp.Stream, error) {
	var lastErr error
	for range maxSessionsPerPath {
		s, err := t.session(ctx, addr, name)
		if err != nil {
			return nil, err
		}
		st, err := s.open(ctx, kind)
		if err == nil {
			return st, nil
		}
		lastErr = err
		if ctx.Err() != nil {
			break
		}
		s.end()
	}
	return nil, lastErr
}

// dial dials, and keeps the entry of a dial that has failed for a while, so that the
// next one does not begin at once.
func (t *Transport) dial(d *dial) {
	ctx, cancel := context.WithTimeout(t.ctx, dialTimeout)
	defer cancel()
	conn, err := t.endpoint.Dial(ctx, net.UDPAddrFromAddrPort(d.addr))
	if err == nil {
		t.counters.dialled.Add(1)
		_, err = t.register(conn, d.addr)
	}
	if err != nil {
		t.counters.dialsFailed.Add(1)
		t.finish(d, nil, err)
		pause(t.ctx, dialPause)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dialing--
	if t.dials[d.addr] == d {
		delete(t.dials, d.addr)
	}
}

// finish tells those who wait for d how it has ended, and sends its packets on s. Only
// its first call has an effect: it is made when a session is there, from either end.
func (t *Transport) finish(d *dial, s *session, err error) {
	t.mu.Lock()
	if d.finished {
		t.mu.Unlock()
		return
	}
	d.finished, d.s, d.err = true, s, err
	if s != nil && t.dials[d.addr] == d {
		delete(t.dials, d.addr)
	}
	packets := d.packets
	d.packets = nil
	t.mu.Unlock()
	close(d.done)
	for i := range packets {
		p := &packets[i]
		if s == nil || p.name != "" && p.name != s.name || s.send(p.b) != nil {
			t.dropPacket(p)
		}
	}
}

// accept takes the sessions that other nodes dial, until the listener is closed.
func (t *Transport) accept() {
	for {
		conn, err := t.listener.AcceptKCP(t.ctx)
		if err != nil {
			return
		}
		remote, ok := conn.RemoteAddr().(*net.UDPAddr)
		if !ok {
			_ = conn.Abort()
			continue
		}
		t.counters.accepted.Add(1)
		if _, err := t.register(conn, unmap(remote.AddrPort())); err != nil {
			t.counters.refused.Add(1)
		}
	}
}

// register begins to use a session, dialled or accepted. If its node has too many, the
// oldest one ends.
func (t *Transport) register(conn *kcp.Conn, addr netip.AddrPort) (*session, error) {
	name, err := peerName(conn)
	if err != nil {
		_ = conn.Abort()
		return nil, err
	}
	s := &session{t: t, conn: conn, addr: addr, name: name}
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		_ = conn.Abort()
		return nil, net.ErrClosed
	}
	var old []*session
	if same := t.byAddr[addr]; len(same) >= maxSessionsPerPath {
		old = append(old, same[0])
	} else if same := t.byName[name]; len(same) >= maxSessionsPerNode {
		old = append(old, same[0])
	}
	t.byAddr[addr] = append(t.byAddr[addr], s)
	t.byName[name] = append(t.byName[name], s)
	d := t.dials[addr]
	t.running.Go(s.receive)
	t.running.Go(s.accept)
	t.mu.Unlock()
	for _, o := range old {
		t.counters.replaced.Add(1)
		o.end()
	}
	if d != nil {
		t.finish(d, s, nil)
	}
	return s, nil
}

// peerName returns the name in the certificate of the peer, which TLS has verified.
func peerName(conn *kcp.Conn) (string, error) {
	state := conn.ConnectionState().TLS
	if state == nil || len(state.PeerCertificates) == 0 {
		return "", errors.New("cluster: session without a certificate of the peer")
	}
	return nameIn(state.PeerCertificates[0])
}

// end stops using a session, and closes it in the background: what was written is still
// delivered. It may be called again.
func (s *session) end() {
	t := s.t
	t.mu.Lock()
	remove(t.byAddr, s.addr, s)
	remove(t.byName, s.name, s)
	t.mu.Unlock()
	_ = s.conn.SetLinger(-1) // fails if it is closed already
	_ = s.conn.Close()       // its error says what is known: that the session has ended
}

// remove takes s out of a list of table, and drops a list that is empty then.
func remove[K comparable](table map[K][]*session, key K, s *session) {
	list := table[key]
	i := slices.Index(list, s)
	if i < 0 {
		return
	}
	if list = slices.Delete(list, i, i+1); len(list) == 0 {
		delete(table, key)
		return
	}
	table[key] = list
}
