package kcp

import (
	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/neterr"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/udp"
)

// Limits of the replies outside any session, per second. Cookies have a limit
// of their own, so that a flood of other requests does not keep peers from
// opening sessions.
const (
	replyRate  = 2000
	cookieRate = 10000
)

// replyLocked queues a reply outside any session to the source of d. It has the
// signals, with conv and una of h. The request had at least as many segments,
// so the reply is never larger (anti-amplification limit, RFC 9000 §8.1).
// Endpoint.mu is held.
func (e *Endpoint) replyLocked(d *udp.Datagram, h header, signals ...signal) {
	if e.mayReplyLocked(&e.replies.budget, replyRate) {
		e.putReplyLocked(d, h, signals...)
	}
}

// mayReplyLocked takes a token for one reply from b, and counts a dropped reply
// if there is none. Endpoint.mu is held.
func (e *Endpoint) mayReplyLocked(b *admission.Bucket, rate float64) bool {
	ok := b.Take(e.now(), rate)
	if !ok {
		e.counters.dropReplies.Add(1)
	}
	return ok
}

// putReplyLocked is replyLocked after mayReplyLocked. sendReplies encrypts the
// packet. Endpoint.mu is held.
func (e *Endpoint) putReplyLocked(d *udp.Datagram, h header, signals ...signal) {
	e.putSealedLocked(d, e.outside, h, signals...)
}

// putSealedLocked is putReplyLocked for a session, whose packets by seals.
// Endpoint.mu is held.
func (e *Endpoint) putSealedLocked(d *udp.Datagram, by protect.Protection, h header, signals ...signal) {
	head, tail := by.Overhead()
	p := e.packet(head + len(signals)*headerSize + tail)
	for i, s := range signals {
		s.encode(h, p.buf[head+i*headerSize:])
	}
	e.queueReplyLocked(p, d, by)
}

// queueReplyLocked queues a packet to the source of d, which by seals. It leaves from
// the address that d was sent to.
// Endpoint.mu is held.
func (e *Endpoint) queueReplyLocked(p packet, d *udp.Datagram, by protect.Protection) {
	e.replies.queued.Store(true)
	e.replies.packets = append(e.replies.packets, p)
	e.replies.sealers = append(e.replies.sealers, by)
	e.replies.datagrams = append(e.replies.datagrams, sourceOf(d).datagram(p.buf))
}

// sendReplies encrypts and writes all queued replies. The readers call it after
// each batch, if there are any.
func (e *Endpoint) sendReplies(shard int) {
	e.mu.Lock()
	e.replies.queued.Store(false)
	packets, batch, sealers := e.replies.packets, e.replies.datagrams, e.replies.sealers
	e.replies.packets, e.replies.datagrams, e.replies.sealers = nil, nil, nil
	e.mu.Unlock()
	if len(packets) == 0 {
		return // another reader was faster
	}
	sealed := batch[:0]
	for i, d := range batch {
		if sealers[i].Seal(d.Buf, nil) == nil {
			sealed = append(sealed, d)
		}
	}
	e.write(shard, sealed)
	e.recycle(packets)
}

// refused handles ECONNREFUSED: the system reports that no socket is open at
// the address that this one is connected to. It ends the sessions that wait for
// a first answer, and those that wait only for the answer to CLOSE.
func (e *Endpoint) refused(err error) {
	if !neterr.PortUnreachable(err) {
		return
	}
	e.mu.RLock()
	var waiting []*Conn
	if e.socket.connected {
		waiting = e.table.Sessions()
	}
	e.mu.RUnlock()
	each(waiting, (*Conn).unreachable)
}
