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
	"github.com/arqnet/kcp/internal/handshake"
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
	if ok && f.crypto && f.request.code == sigHello { // also if it acknowledges something
		if c, known := e.movingHello(key, d, f, now); known {
			return c
		}
	}
	if !ok || f.crypto && f.hello.code == 0 {
		e.counters.dropUnknown.Add(1)
		if ok && f.request.code == sigHello {
			e.abortUnknown(d, p, f.request)
		}
		return nil // a damaged HELLO may look like another request
	}
	if f.info.sn == handshake.VersionUnsealed && f.info.ts&capTLS != 0 && e.refuseVersion(d, p.conv, f) {
		return nil
	}
	c, evicted := e.admit(key, d, p, f, now)
	if evicted != nil {
		evicted.fail(ErrReset)
	}
	return c
}

// movingHello handles a HELLO of a session that began at another address: the
// address of key gets a cookie, and the session migrates there with the HELLO that
// shows it. known reports whether there is such a session. It is returned if it has
// migrated.
func (e *Endpoint) movingHello(key sessionKey, d *udp.Datagram, f initialPacket, now time.Duration) (c *Conn, known bool) {
	f.hello = f.request
	shown := f.cookie.code != 0 && e.showsCookie(key, f, now)
	for _, c := range e.migrationCandidates(key, plainPacket) {
		if c == nil {
			return nil, false
		}
		mine, moved := c.helloFromNewAddress(f.hello.ts, sourceOf(d), shown, now)
		switch {
		case moved:
			return c, true
		case mine && shown:
			e.counters.dropHandshake.Add(1)
			return nil, true
		case mine:
			e.mu.Lock()
			defer e.mu.Unlock()
			e.askCookieLocked(key, d, f, now)
			return nil, true
		}
	}
	return nil, false
}

// showsCookie is showsCookieLocked. It locks Endpoint.mu.
func (e *Endpoint) showsCookie(key sessionKey, f initialPacket, now time.Duration) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.showsCookieLocked(key, f, now)
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
	data, err := handshake.OpenInitial(k, p.Data)
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
		e.replyLocked(d, header{conv: conv, wnd: minRcvWnd}, signal{sigHello | sigAnswer, e.randomToken(), f.hello.ts},
			e.infoSignal(), signal{sigAlert, handshake.AlertProtocolVersion, f.hello.ts})
	}
	e.mu.Unlock()
	if !listens || f.hello.code == 0 {
		return false
	}
	e.counters.handshakeErrors.Add(1)
	e.reportHandshake(sourceOf(d).netAddr(), &HandshakeError{Err: handshake.UnsealedError()})
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
			if mine, moved := c.handshakeFromNewAddress(d, p, now); moved {
				return c
			} else if mine {
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
// reports false if there was none, or another process had its keys.
func (e *Endpoint) sealedInTimeWait(key sessionKey, d *udp.Datagram, p *inPacket, now time.Duration) bool {
	e.mu.RLock()
	tw, ok := e.timeWaitForLocked(key, initialPacket{}, now)
	e.mu.RUnlock()
	if !ok {
		e.counters.dropUnknown.Add(1)
		return false
	}
	if tw.mute {
		e.counters.dropEnded.Add(1)
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
		if m, ok := handshake.Parse(p.Data, p.conv); !ok || !m.Crypto || p.size < size {
			return
		}
	} else if p.size <= size { // the keys for this packet are not there
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed && e.mayReplyLocked(&e.replies.budget, replyRate) {
		e.putSealedLocked(d, tw.protection, header{conv: p.conv, wnd: minRcvWnd}, signal{sigAbort, tw.token, 0})
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

// call makes the calls that wait, and those that come meanwhile. One of them may end the
// goroutine: another then goes on.
func (q *failedHandshakes) call() {
	done := false
	defer func() {
		if !done {
			go q.call()
		}
	}()
	for {
		q.mu.Lock()
		if len(q.waiting) == 0 {
			q.calling, done = false, true
			q.mu.Unlock()
			return
		}
		next := q.waiting[0]
		q.waiting = slices.Delete(q.waiting, 0, 1)
		q.mu.Unlock()
		next()
	}
}

// Stateless reset (RFC 9000 §10.3, WIRE.md §8.6): the answer to protected packets
// of sessions that the endpoint does not know, as it was restarted.

// resetRate is how many stateless resets are sent a second. They have a limit of
// their own, so that a flood of packets of no session leaves the other replies
// alone.
const resetRate = 10000

// newResetSecret returns the secret of the stateless resets of an endpoint: that
// of its Config, or one that only this endpoint knows.
func (e *Endpoint) newResetSecret() []byte {
	config := &e.config
	if len(config.StatelessResetKey) > 0 || config.TLS == nil {
		return config.StatelessResetKey
	}
	secret := make([]byte, 32)
	_, _ = e.repeat.Read(secret) // cannot fail
	return secret
}

// resetKey returns the key of the stateless resets of a session. It depends on
// the address of the socket too, as several endpoints may have one Config.
func (e *Endpoint) resetKey(key sessionKey) packetkeys.ResetKey {
	text := binary.LittleEndian.AppendUint32(nil, key.Conv)
	text = binary.LittleEndian.AppendUint16(text, key.Addr.Port())
	ip := key.Addr.Addr().As16()
	text = append(append(text, ip[:]...), key.Addr.Addr().Zone()...)
	text = append(append(text, 0), key.Peer...)
	text = append(append(text, 0), e.LocalAddr().String()...)
	return packetkeys.NewResetKey(e.resetSecret, text)
}

// resetClock returns the time in seconds since 1970, modulo 2^32. It does not
// step while the process runs.
func (e *Endpoint) resetClock(now time.Duration) uint32 { return uint32(e.epoch.Add(now).Unix()) }

// resetKeyOf returns what the peer of a session is told about its resets; nil if
// the key may be known to another peer, which has, or has had within TIME-WAIT, a
// session with the same conversation id. c.mu is held.
func (e *Endpoint) resetKeyOf(c *Conn) *resetKey {
	key, now := c.tableEntry().Key(), e.now()
	e.mu.RLock()
	_, before := e.table.timeWaits.AtAnyAddress(key.Conv, now)
	alone := e.table.Alone(c) && !before && !e.table.timeWaits.Forgot(resetKeyWithin, now)
	e.mu.RUnlock()
	if !alone {
		return nil
	}
	return &resetKey{e.resetKey(key), e.resetClock(now)}
}

// resetUnknown answers a protected packet of a session that is neither known nor
// in TIME-WAIT by a stateless reset. That is smaller than the packet, and too
// small to be answered itself (RFC 9000 §10.3.3).
func (e *Endpoint) resetUnknown(key sessionKey, d *udp.Datagram, now time.Duration) {
	if len(d.Buf) <= packetkeys.MaxReset || packetkeys.LevelOf(d.Buf) != packetkeys.Application {
		return
	}
	e.mu.Lock()
	ok := !e.closed && e.mayReplyLocked(&e.replies.resetBudget, resetRate)
	e.mu.Unlock()
	if !ok {
		return
	}
	p := e.packet(packetkeys.MinReset + int(e.random32()%(packetkeys.MaxReset-packetkeys.MinReset+1)))
	reset := e.resetKey(key)
	reset.Reset(e.repeat, p.buf, key.Conv, e.resetClock(now))
	e.counters.resetsSent.Add(1)
	e.mu.Lock()
	e.queueReplyLocked(p, d, e.outside)
	e.mu.Unlock()
}
