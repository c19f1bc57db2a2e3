package kcp

import (
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/arqnet/kcp/internal/neterr"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/internal/wire"
)

// write writes batch to a socket. A write error concerns one packet, which then
// counts as lost on the path. It reports whether the system has refused some as too
// large, and marks them.
func (e *Endpoint) write(shard int, batch []udp.Datagram) (refused bool) {
	s := &e.socket.shards[shard]
	for rest := batch; len(rest) > 0; {
		link := s.link.Load()
		n, err := link.Packets.WriteBatch(rest)
		e.Counters.PacketsSent.Add(uint64(n))
		switch {
		case err == nil:
			return refused
		case link != s.link.Load():
			rest = rest[n:] // the socket was handed over meanwhile
		case neterr.Is(err, syscall.EMSGSIZE):
			e.Counters.TooLarge.Add(1)
			rest[n].TooLarge, refused = true, true
			rest = rest[n+1:]
		case !e.writeFailed(err):
			return refused
		default:
			rest = rest[n+1:]
		}
	}
	return refused
}

// socketError is an error of a socket, or of its route, and when it happened, since the
// epoch.
type socketError struct {
	at  time.Duration
	err error
}

// socketErrorSince returns the last error of the socket, if it is not older than since.
func (e *Endpoint) socketErrorSince(since time.Duration) error {
	if last := e.socket.lastError.Load(); last != nil && last.at >= since {
		return last.err
	}
	return nil
}

// socketErrorOf is socketErrorSince for the session with a peer. An error of a socket
// that has other peers too counts if it names that one.
func (e *Endpoint) socketErrorOf(peer net.Addr, since time.Duration) error {
	err := e.socketErrorSince(since)
	var op *net.OpError
	if e.socket.own.Load() == nil && !(errors.As(err, &op) && op.Addr != nil && op.Addr.String() == peer.String()) {
		return nil
	}
	return err
}

// noteSocketError makes err the last error of the socket.
func (e *Endpoint) noteSocketError(err error) {
	e.socket.lastError.Store(&socketError{e.now(), err})
}

// writeFailed handles a write error of a socket. It reports false if the socket
// is closed.
func (e *Endpoint) writeFailed(err error) bool {
	e.Counters.WriteErrors.Add(1)
	if errors.Is(err, net.ErrClosed) {
		return false
	}
	if !neterr.Is(err, syscall.EDESTADDRREQ) { // else the error of connecting it again says why
		e.noteSocketError(err)
	}
	e.refused(err) // the system reports it once, to a read or to a write
	e.troubled(err)
	e.warn("socket write failed", err)
	return true
}

// reply sends three signals at most to an address that is not the peer's of a session,
// which by seals. It reports whether the limit of the rate allows that.
func (e *Endpoint) reply(to session.Source, by protect.Protection, h wire.Header, signals ...wire.Signal) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.table.MayReply(e.now()) {
		e.Counters.DropReplies.Add(1)
		return false
	}
	var content [3 * wire.HeaderSize]byte
	for i, s := range signals {
		s.Encode(h, content[i*wire.HeaderSize:])
	}
	e.queueReplyLocked(to, by, content[:len(signals)*wire.HeaderSize])
	return true
}

// queueReplyLocked queues a packet to the peer of a source, which by seals. It leaves
// from the address that the source has sent to. Endpoint.mu is held.
func (e *Endpoint) queueReplyLocked(to session.Source, by protect.Protection, content []byte) {
	head, tail := by.Overhead()
	p := e.Packet(head + len(content) + tail)
	copy(p.Buf[head:], content)
	e.replies.queued.Store(true)
	e.replies.packets = append(e.replies.packets, p)
	e.replies.sealers = append(e.replies.sealers, by)
	e.replies.datagrams = append(e.replies.datagrams, to.Datagram(p.Buf))
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
	e.Recycle(packets)
}
