package kcp

import (
	"errors"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/arqnet/kcp/internal/udp"
)

// Limits of replies to those who have no session, a second. Cookies have a share
// of their own: nobody who floods with questions keeps others from opening
// sessions.
const (
	replyRate  = 2000
	cookieRate = 10000
)

// replyLocked sends signals to where d came from, outside any session, with what h
// says of conv and una. What provoked it had at least as many segments, so the
// reply is never larger. Endpoint.mu is held.
func (e *Endpoint) replyLocked(d *udp.Datagram, h header, signals ...signal) {
	if e.mayReplyLocked(&e.replies.budget, replyRate) {
		e.putReplyLocked(d, h, signals...)
	}
}

// mayReplyLocked takes one of the replies that are allowed. Endpoint.mu is held.
func (e *Endpoint) mayReplyLocked(b *bucket, rate float64) bool {
	ok := b.take(e.now(), rate)
	if !ok {
		e.counters.dropReplies.Add(1)
	}
	return ok
}

// putReplyLocked is reply for one that is allowed. It is sealed when it is sent.
func (e *Endpoint) putReplyLocked(d *udp.Datagram, h header, signals ...signal) {
	e.putNumberedLocked(d, nil, h, signals...)
}

// putNumberedLocked is putReplyLocked in the name of a session that numbers its packets. mu
// is held.
func (e *Endpoint) putNumberedLocked(d *udp.Datagram, n *packetNumbers, h header, signals ...signal) {
	o := e.config.overhead()
	p := e.packet(o.cipherHead + len(signals)*headerSize + o.tail)
	for i, s := range signals {
		s.encode(h, p.buf[o.cipherHead+i*headerSize:])
	}
	e.replies.packets = append(e.replies.packets, p)
	e.replies.numbers = append(e.replies.numbers, n)
	e.replies.datagrams = append(e.replies.datagrams, udp.Datagram{Buf: p.buf, Addr: d.Addr, Peer: d.Peer})
}

// sendReplies writes what reply has put out. The readers call it.
func (e *Endpoint) sendReplies(shard int) {
	e.mu.RLock()
	none := len(e.replies.packets) == 0
	e.mu.RUnlock()
	if none {
		return
	}
	e.mu.Lock()
	packets, batch, numbers := e.replies.packets, e.replies.datagrams, e.replies.numbers
	e.replies.packets, e.replies.datagrams, e.replies.numbers = nil, nil, nil
	e.mu.Unlock()
	sealed := batch[:0]
	for i, d := range batch {
		if e.seal(d.Buf, numbers[i]) == nil {
			sealed = append(sealed, d)
		}
	}
	e.send(shard, packets, sealed)
}

// bucket is a token bucket, which holds what a tenth of a second brings. The
// zero value is full.
type bucket struct {
	used float64
	last time.Duration
}

// take takes one of rate tokens a second.
func (b *bucket) take(now time.Duration, rate float64) bool {
	b.used = max(0, b.used-(now-b.last).Seconds()*rate)
	b.last = now
	if b.used >= rate/10 {
		return false
	}
	b.used++
	return true
}

// refused ends the sessions that wait for a first answer, or for nothing but the
// last one, after the system has reported that nobody listens where the socket
// is connected to.
func (e *Endpoint) refused(err error) {
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return
	}
	e.mu.RLock()
	var waiting []*Conn
	if e.socket.connected {
		waiting = slices.Collect(maps.Values(e.table.sessions))
	}
	e.mu.RUnlock()
	for _, c := range waiting {
		c.mu.Lock()
		switch {
		case !c.hs.reached && c.hs.hello.active:
			c.end(ErrRefused)
		case c.closing.state == stateLingering && c.kcp.WaitSend() == 0:
			c.end(nil)
		}
		c.mu.Unlock()
	}
}
