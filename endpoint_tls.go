package kcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/packetkeys"
	"github.com/arqnet/kcp/internal/udp"
)

// Packets of endpoints with TLS (WIRE.md §8). The header of a protected packet
// names the conversation, so the session is found first, and opens the packet
// with its keys. What is in the clear opens nothing but a handshake.

// receiveTLS is receive for an endpoint with TLS.
func (e *Endpoint) receiveTLS(d *udp.Datagram, in *readState, a *routedPacket, now time.Duration) bool {
	p := &a.inPacket
	if len(d.Buf) < headerSize {
		e.counters.dropShort.Add(1)
		return false
	}
	p.data, p.conv = d.Buf, binary.LittleEndian.Uint32(d.Buf)
	p.from, p.size = source{d.Addr, d.Peer}, len(d.Buf)
	level := packetkeys.LevelOf(d.Buf)
	c := e.sessionTLS(in, p, d)
	if c == nil {
		if level == packetkeys.Clear {
			a.conn = e.openUnknown(d, p, now)
		} else {
			a.conn = e.sealedUnknown(d, p, now)
		}
		return a.conn != nil
	}
	a.conn = c
	in.last, in.lastFrom, in.lastConv = c, p.from, p.conv
	switch level {
	case packetkeys.Clear:
		p.kind = clearPacket
	case packetkeys.Handshake:
		p.kind = sealedPacket
	default:
		var kept []byte // as a packet that does not open is destroyed
		if len(d.Buf) <= packetkeys.MaxReset {
			kept = bytes.Clone(d.Buf) // no packet of segments is so small
		}
		switch err := e.open(c.in.numbers.tls, p); {
		case errors.Is(err, packetkeys.ErrExhausted):
			c.fail(crypt.ErrKeyExhausted)
			return false
		case errors.Is(err, packetkeys.ErrTooFast):
			c.fail(ErrKeyUpdate)
			return false
		case err != nil:
			if c.in.numbers.tls.resetBy(kept) {
				c.statelessReset(now)
			}
			return false
		}
	}
	return true
}

// sessionTLS returns the session of a packet by its address and conversation id;
// nil if there is none.
func (e *Endpoint) sessionTLS(in *readState, p *inPacket, d *udp.Datagram) *Conn {
	if in.last != nil && p.conv == in.lastConv && p.from.addr == in.lastFrom.addr && p.from.peer == nil && in.lastFrom.peer == nil {
		return in.last
	}
	key := admission.MakeKey(d.Addr, d.Peer, p.conv)
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.table.Get(key)
}

// open opens a packet under the application keys of s, and classifies it. A
// packet whose keys are not known yet becomes an earlyPacket. Other errors are
// counted drops. It needs no lock of a session.
func (e *Endpoint) open(s *tlsState, p *inPacket) error {
	content, number, err := s.keys.Open(p.data)
	switch {
	case errors.Is(err, packetkeys.ErrNotReady):
		p.kind = earlyPacket
		return nil
	case err != nil:
		e.counters.dropCipher.Add(1)
		return err
	}
	conv := p.conv
	p.conv, p.kind = 0, plainPacket
	if !classify(content, p) {
		e.counters.dropShort.Add(1)
		return packetkeys.ErrForged
	}
	if p.kind == parityPacket {
		p.conv = conv // its header names it
	}
	if p.conv != conv {
		e.counters.dropUnknown.Add(1)
		return packetkeys.ErrForged
	}
	p.mark = number
	return nil
}

// openUnknown handles a packet in the clear for which there is no session. It
// returns the session that the packet has opened.
func (e *Endpoint) openUnknown(d *udp.Datagram, p *inPacket, now time.Duration) *Conn {
	f, ok := parseInitial(p)
	if !ok || f.crypto && f.hello.code == 0 {
		e.counters.dropUnknown.Add(1)
		if ok && f.request.code == sigHello {
			e.abortUnknown(d, p, f.request)
		}
		return nil // a damaged HELLO may look like another request
	}
	if f.info.sn == versionUnsealed && f.info.ts&capTLS != 0 && e.refuseVersion(d, p.conv, f) {
		return nil
	}
	c, evicted := e.admit(admission.MakeKey(d.Addr, d.Peer, p.conv), d, p, f, now)
	if evicted != nil {
		evicted.fail(ErrReset)
	}
	if p.kind != openedPacket {
		p.kind = clearPacket
	}
	return c
}

// abortUnknown answers a HELLO of a handshake that has gone on, as una of its
// CRYPTO shows, and that this end knows nothing of any more: Dial then begins anew.
func (e *Endpoint) abortUnknown(d *udp.Datagram, p *inPacket, hello signal) {
	if e.openFirst(p, initialPacket{hello: hello, crypto: true}) == nil {
		return // damaged: it may well be a first one
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.replyLocked(d, header{conv: p.conv}, signal{sigAbort, hello.ts, 0})
	}
}

// openFirst opens the first packet of a handshake, in place, and returns the keys
// that have opened it: those of the dialling end's token. It returns nil if the
// packet does not open: it was damaged, and will be repeated.
func (e *Endpoint) openFirst(p *inPacket, f initialPacket) *packetkeys.Initial {
	if !f.crypto {
		e.counters.dropHandshake.Add(1)
		return nil
	}
	k := packetkeys.NewInitial(p.conv, f.hello.ts, false)
	data, err := openInitial(k, p.data)
	if err != nil {
		e.counters.dropCipher.Add(1)
		return nil
	}
	p.data, p.kind = data, openedPacket
	return k
}

// refuseVersion answers the HELLO of a peer that does not seal its packets, by
// what such a peer takes for the alert of a handshake. It reports whether it was
// one.
func (e *Endpoint) refuseVersion(d *udp.Datagram, conv uint32, f initialPacket) bool {
	e.mu.Lock()
	listens := !e.closed && e.listener != nil
	if listens && f.hello.code != 0 && len(d.Buf) >= 3*headerSize {
		e.replyLocked(d, header{conv: conv, wnd: flightWnd}, signal{sigHello | sigAnswer, e.randomToken(), f.hello.ts},
			e.infoSignal(), signal{sigAlert, alertProtocolVersion, f.hello.ts})
	}
	e.mu.Unlock()
	if !listens || f.hello.code == 0 {
		return false
	}
	e.counters.handshakeErrors.Add(1)
	e.reportHandshake(source{d.Addr, d.Peer}.netAddr(), errUnsealed())
	return true
}

// sealedUnknown handles a protected packet for which there is no session: its
// peer may be at a new address, or the session in TIME-WAIT. It returns the
// session that has migrated to the packet's address.
func (e *Endpoint) sealedUnknown(d *udp.Datagram, p *inPacket, now time.Duration) *Conn {
	key := admission.MakeKey(d.Addr, d.Peer, p.conv)
	candidates := e.migrationCandidates(key, plainPacket)
	for _, c := range candidates {
		if c == nil {
			break
		}
		if packetkeys.LevelOf(p.data) == packetkeys.Handshake {
			if c.handshakeFromNewAddress(p, now) {
				return nil
			}
			continue
		}
		q := *p
		q.data = bytes.Clone(p.data) // a packet that does not open is destroyed
		if e.open(c.in.numbers.tls, &q) != nil || q.kind == earlyPacket {
			continue
		}
		if _, moved := c.packetFromNewAddress(d, &q, true, now); moved {
			*p = q
			return c
		}
		return nil
	}
	if !e.sealedInTimeWait(key, d, p, now) && candidates[0] == nil {
		e.resetUnknown(key, d, now)
	}
	return nil
}

// sealedInTimeWait answers a protected packet of a session that has ended. It
// reports whether there was one.
func (e *Endpoint) sealedInTimeWait(key sessionKey, d *udp.Datagram, p *inPacket, now time.Duration) bool {
	e.mu.RLock()
	tw, ok := e.timeWaitForLocked(key, initialPacket{}, now)
	e.mu.RUnlock()
	if !ok || tw.numbers == nil || tw.numbers.tls == nil {
		e.counters.dropUnknown.Add(1)
		return ok
	}
	if keys := tw.numbers.tls.ended; keys != nil {
		e.counters.dropEnded.Add(1)
		e.abortHandshake(keys, tw, d, p)
		return true
	}
	if e.open(tw.numbers.tls, p) != nil || p.kind == earlyPacket {
		return true // the keys stay derived, so that the next one costs less
	}
	e.counters.dropEnded.Add(1)
	if f, ok := parseInitial(p); ok {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.replyInTimeWaitLocked(tw, key, d, f, p)
	}
	return true
}

// abortHandshake answers a protected packet of a session that has ended within
// its handshake by ABORT, under the handshake keys: nothing else would end the
// session at a peer that has them. The answer is no larger than the packet, and is
// not answered itself.
func (e *Endpoint) abortHandshake(keys *packetkeys.Keys, tw timeWait, d *udp.Datagram, p *inPacket) {
	o := e.config.overhead()
	size := o.cipherHead + headerSize + o.tail
	if packetkeys.LevelOf(p.data) == packetkeys.Handshake {
		content, _, err := keys.Open(p.data)
		if err != nil {
			e.counters.dropCipher.Add(1)
			return
		}
		if m, ok := parseHandshake(content, p.conv); !ok || !m.crypto || p.size < size {
			return
		}
	} else if p.size <= size { // the keys for this packet are not there
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || !e.mayReplyLocked(&e.replies.budget, replyRate) {
		return
	}
	answer := e.packet(size)
	signal{sigAbort, tw.token, 0}.encode(header{conv: p.conv, wnd: flightWnd}, answer.buf[o.cipherHead:])
	if keys.Seal(answer.buf) != nil {
		e.packets.Put(answer.pooled)
		return
	}
	e.queueReplyLocked(answer, d, nil)
}

// handshakeFromNewAddress locks c.mu and takes a packet under the handshake keys
// from an address that is not the peer's. What it says counts from anywhere. The
// session stays where it is until TLS is done, and migrates then. It reports
// whether the packet belongs to this session.
func (c *Conn) handshakeFromNewAddress(p *inPacket, now time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.tlsHandshake()
	if h == nil || c.hs.dialled || c.closing.state == stateEnded {
		return false
	}
	if _, _, err := h.keys.Open(bytes.Clone(p.data)); err != nil {
		return false
	}
	p.kind = sealedPacket
	c.setClock(now)
	if c.inputPacket(p, now) {
		c.respondLocked(now)
	}
	return true
}

// refuseTLSLocked answers a HELLO of a peer that speaks TLS where this end does
// not, or the reverse. It reports whether it was one. Endpoint.mu is held.
func (e *Endpoint) refuseTLSLocked(d *udp.Datagram, conv uint32, f initialPacket) bool {
	if f.hello.code == 0 || (f.info.ts&capTLS != 0) == (e.config.TLS != nil) {
		return false
	}
	e.counters.dropHandshake.Add(1)
	if f.crypto && f.info.ts&capTLS == 0 {
		return true // damaged: only peers with TLS send CRYPTO
	}
	reset := signal{sigReset, f.hello.sn, f.hello.ts}
	if f.info.code == 0 { // the reply is no larger than the packet
		e.replyLocked(d, header{conv: conv}, reset)
	} else {
		e.replyLocked(d, header{conv: conv}, e.infoSignal(), reset)
	}
	return true
}

// failedHandshakes are the failed handshakes that Config.HandshakeFailed was not
// called with yet.
type failedHandshakes struct {
	mu      sync.Mutex // guards the fields below; locked last
	waiting []func()   // at most maxFailures calls
	calling bool       // a goroutine makes them
}

// maxFailures is how many failed handshakes wait for Config.HandshakeFailed.
const maxFailures = 16

// reportHandshake passes the error of a handshake that a peer has begun to the
// application.
func (e *Endpoint) reportHandshake(remote net.Addr, err *HandshakeError) {
	e.warnHandshake(remote, err)
	failed, q := e.config.HandshakeFailed, &e.failed
	if failed == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) >= maxFailures {
		return
	}
	q.waiting = append(q.waiting, func() { failed(remote, err) })
	if !q.calling {
		q.calling = true
		go q.call()
	}
}

// call makes the calls that wait, and those that come meanwhile.
func (q *failedHandshakes) call() {
	for {
		q.mu.Lock()
		if len(q.waiting) == 0 {
			q.calling = false
			q.mu.Unlock()
			return
		}
		next := q.waiting[0]
		q.waiting = slices.Delete(q.waiting, 0, 1)
		q.mu.Unlock()
		next()
	}
}
