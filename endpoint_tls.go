package kcp

import (
	"bytes"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/packetkeys"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/udp"
)

// Packets of endpoints with TLS (WIRE.md §8). The header of a protected packet
// names the conversation, so the session is found first, and opens the packet
// with its keys. What is in the clear opens nothing but a handshake.

// openSealed opens a packet under the application keys of its session. It
// reports false for one that is dropped.
func (e *Endpoint) openSealed(c *Conn, p *inPacket, now time.Duration) bool {
	var kept []byte // as a packet that does not open is destroyed
	if len(p.Data) <= packetkeys.MaxReset {
		kept = bytes.Clone(p.Data) // no packet of segments is so small
	}
	switch err := e.open(c.appKeys(), p); {
	case err == nil:
		return true
	case errors.Is(err, packetkeys.ErrExhausted):
		c.fail(crypt.ErrKeyExhausted)
	case errors.Is(err, packetkeys.ErrTooFast):
		c.fail(ErrKeyUpdate)
	case c.resetBy(kept):
		c.statelessReset(now)
	}
	return false
}

// open opens a packet under the application keys of a session, and classifies it.
// A packet whose keys are not known yet remains a sealedPacket. Other errors are
// counted drops. It needs no lock of a session.
func (e *Endpoint) open(by protect.Protection, p *inPacket) error {
	switch err := by.Open(&p.Packet); {
	case errors.Is(err, packetkeys.ErrNotReady):
		return nil
	case err != nil:
		e.counters.dropCipher.Add(1)
		return err
	}
	conv := p.conv
	p.conv, p.kind = 0, plainPacket
	if !classify(p.Data, p) {
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
	return nil
}

// openUnknown handles a packet in the clear for which there is no session. It
// returns the session that the packet has opened.
func (e *Endpoint) openUnknown(key sessionKey, d *udp.Datagram, p *inPacket, now time.Duration) *Conn {
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
	c, evicted := e.admit(key, d, p, f, now)
	if evicted != nil {
		evicted.fail(ErrReset)
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
	data, err := openInitial(k, p.Data)
	if err != nil {
		e.counters.dropCipher.Add(1)
		return nil
	}
	p.Data, p.kind = data, openedPacket
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
func (e *Endpoint) sealedUnknown(key sessionKey, d *udp.Datagram, p *inPacket, now time.Duration) *Conn {
	candidates := e.migrationCandidates(key, plainPacket)
	for _, c := range candidates {
		if c == nil {
			break
		}
		if p.kind == handshakePacket {
			if c.handshakeFromNewAddress(p, now) {
				return nil
			}
			continue
		}
		q := *p
		q.Data = bytes.Clone(p.Data) // a packet that does not open is destroyed
		if e.open(c.appKeys(), &q) != nil || q.kind == sealedPacket {
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
	if !ok {
		e.counters.dropUnknown.Add(1)
		return false
	}
	if tw.shaking {
		e.counters.dropEnded.Add(1)
		e.abortHandshake(tw, d, p)
		return true
	}
	if e.open(tw.protection, p) != nil || p.kind == sealedPacket {
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
func (e *Endpoint) abortHandshake(tw timeWait, d *udp.Datagram, p *inPacket) {
	head, tail := tw.protection.Overhead()
	size := head + headerSize + tail
	if p.kind == handshakePacket {
		if tw.protection.Open(&p.Packet) != nil {
			e.counters.dropCipher.Add(1)
			return
		}
		if !ofHandshake(p.Data, p.conv) || p.size < size {
			return
		}
	} else if p.size <= size { // the keys for this packet are not there
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed && e.mayReplyLocked(&e.replies.budget, replyRate) {
		e.putSealedLocked(d, tw.protection, header{conv: p.conv, wnd: flightWnd}, signal{sigAbort, tw.token, 0})
	}
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
