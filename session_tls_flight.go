package kcp

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"time"

	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/packetkeys"
)

// Packets of the TLS handshake (WIRE.md §8.1). They bypass the state machine and
// FEC. In the clear they begin with HELLO and INFO, or with WELCOME and INFO, and
// end with a CRYPTO segment, whose seal covers the packet. Others carry at most one
// CRYPTO segment. Its bytes are repeated until they are acknowledged.

const (
	// flightPacket is the size of the packets of a handshake, in bytes: every
	// path takes it, and a dialling end fills its packets in the clear up to it
	// (RFC 9000 §14.1).
	flightPacket = 1200
	// flightWnd is the window in the segments of a handshake, for receivers
	// that do not speak TLS.
	flightWnd = minRcvWnd
)

// handshakeMessage is the content of a packet of the handshake. Signals with
// code 0 are not there.
type handshakeMessage struct {
	hello, welcome, info, cookie, reset, abort, alert signal

	crypto  bool // there is a CRYPTO segment; in the clear: the packet has opened
	offset  uint32
	una     uint32
	data    []byte
	windows int // plain window updates
}

// parseHandshake reads a packet of the handshake. ok is false if it is not
// well-formed, or has a segment of another conversation.
func parseHandshake(packet []byte, conv uint32) (m handshakeMessage, ok bool) {
	for len(packet) >= headerSize {
		h := decodeHeader(packet)
		payload, fits := h.payload(packet[headerSize:])
		if !fits || h.conv != conv {
			return m, false
		}
		packet = packet[headerSize+len(payload):]
		if isCrypto(&h) {
			if m.crypto || uint64(h.ts) > uint64(len(payload)) {
				return m, false
			}
			m.crypto, m.offset, m.una, m.data = true, uint32(h.sn), uint32(h.una), payload[:h.ts]
			continue
		}
		if h.cmd == cmdWins && h.frg == 0 {
			m.windows++
		}
		if s, is := h.signal(); is {
			m.take(s)
		}
	}
	return m, true
}

// isCrypto reports whether h is the header of a CRYPTO segment.
func isCrypto(h *header) bool { return h.cmd == cmdWins && signalCode(h.frg) == sigCrypto }

// initialAt returns where the sealed content of a packet in the clear begins. It
// reports false if the packet has no CRYPTO segment.
func initialAt(packet []byte) (at int, ok bool) {
	for len(packet)-at >= headerSize {
		h := decodeHeader(packet[at:])
		at += headerSize
		payload, fits := h.payload(packet[at:])
		switch {
		case isCrypto(&h):
			return at, true
		case !fits:
			return at, false
		}
		at += len(payload)
	}
	return at, false
}

// openInitial opens a packet in the clear, in place, and returns it with its
// CRYPTO segment as in other packets. One without that stays as it is.
func openInitial(k *packetkeys.Initial, packet []byte) ([]byte, error) {
	at, ok := initialAt(packet)
	if !ok {
		return packet, nil
	}
	packet, err := k.Open(packet, at)
	if err != nil {
		return nil, err
	}
	h := decodeHeader(packet[at-headerSize:])
	h.len = uint32(len(packet) - at)
	h.encode(packet[at-headerSize:])
	return packet, nil
}

// take takes a signal, the first of each kind.
func (m *handshakeMessage) take(s signal) {
	var to *signal
	switch s.code {
	case sigHello:
		to = &m.hello
	case sigHello | sigAnswer:
		to = &m.welcome
	case sigInfo:
		to = &m.info
	case sigCookie:
		to = &m.cookie
	case sigReset:
		to = &m.reset
	case sigAbort:
		to = &m.abort
	case sigAlert:
		to = &m.alert
	default:
		return
	}
	if to.code == 0 {
		*to = s
	}
}

// inputHandshake takes a packet of the handshake, in the clear or under the
// handshake keys, or one that came before its keys. It reports whether that may
// have changed anything.
func (c *Conn) inputHandshake(p *inPacket, now time.Duration) (changed bool) {
	h := c.tlsHandshake()
	if h == nil {
		c.ep.counters.dropHandshake.Add(1)
		return false
	}
	c.live.lastInput = now
	if c.kcp.received(p.size) {
		c.hs.active.Store(true)
	}
	level := handshake.Initial
	var err error
	switch p.kind {
	case sealedPacket:
		c.keepEarly(h, p.Data)
		return false
	case clearPacket:
		if h.initial == nil { // no HELLO has left
			c.ep.counters.dropHandshake.Add(1)
			return false
		}
		if p.Data, err = openInitial(h.initial, p.Data); err != nil {
			c.ep.counters.dropCipher.Add(1) // damaged: the peer repeats it
			return false
		}
	case handshakePacket:
		if err = h.keys.Open(&p.Packet); err == packetkeys.ErrNotReady {
			c.keepEarly(h, p.Data) // it has overtaken ServerHello
			return false
		} else if err != nil {
			c.ep.counters.dropCipher.Add(1)
			return false
		}
		level = handshake.Handshake
		h.streams[handshake.Initial].Discard() // the peer has all of it (RFC 9001 §4.9.1)
		if !c.hs.dialled {
			c.addressValidated() // RFC 9000 §8.1
		}
	}
	m, ok := parseHandshake(p.Data, p.conv)
	if !ok || level == handshake.Initial && !c.takeClear(h, &m, now) {
		c.ep.counters.dropHandshake.Add(1)
		return c.closing.ending != nil
	}
	c.takeCrypto(h, level, &m)
	return true
}

// keepEarly keeps a packet whose keys are not known yet. A server sends nothing
// under the application keys before it has the client's Finished, and a client
// nothing protected before it has ServerHello: what comes before is not kept.
func (c *Conn) keepEarly(h *tlsHandshake, packet []byte) {
	count, room := maxEarly, maxEarlyBytes-h.held
	if c.hs.unvalidated.Load() {
		count, room = maxEarly/4, unvalidatedBytes-h.received()
	}
	kept := bytes.Clone(packet)
	size := cap(kept) + earlyEntry
	if h.tls == nil || c.hs.dialled && packetkeys.LevelOf(packet) == packetkeys.Application ||
		len(h.early) >= count || size > room || c.memoryPressure() == pressureHigh {
		c.ep.counters.dropHandshake.Add(1)
		return
	}
	h.early = append(h.early, kept)
	h.held += size
}

// takeClear takes the signals of a packet in the clear. It reports whether the
// packet is of this handshake.
func (c *Conn) takeClear(h *tlsHandshake, m *handshakeMessage, now time.Duration) bool {
	l := &c.hs
	switch {
	case !m.crypto:
		return l.dialled && l.hello.active && !h.keys.Keys.Opens() && c.takeUnsealed(h, m)
	case !l.dialled && (m.hello.code == 0 || m.hello.ts != l.peerToken):
		return false
	case l.dialled && (m.welcome.code == 0 || m.welcome.ts != l.token || h.greeted && m.welcome.sn != l.peerToken):
		return false
	}
	if l.dialled && !h.greeted {
		h.greeted, l.peerToken = true, m.welcome.sn
	}
	if h.info.code == 0 {
		h.info = m.info
	}
	// Once there are handshake keys, nothing in the clear ends the handshake.
	if m.alert.code != 0 && m.alert.ts == l.token && !h.keys.Keys.Opens() {
		c.alerted(m.alert)
	}
	return true
}

// takeUnsealed is takeClear for a dialled session and a packet without seal: the
// answer of an end that has no such session, or speaks otherwise. It cannot have
// come about by damage, as it echoes the token of our HELLO, or has to come twice.
func (c *Conn) takeUnsealed(h *tlsHandshake, m *handshakeMessage) bool {
	l := &c.hs
	switch {
	case m.cookie.code != 0:
		c.takeOutside(m.cookie)
		return true
	case m.abort == (signal{sigAbort, l.token, 0}):
		c.closing.ending = ErrReset // Dial begins anew
	case m.reset == (signal{sigReset, 0, l.token}):
		if m.info.code != 0 && m.info.ts&capTLS == 0 {
			c.closing.ending = ErrNoTLS
		} else if !l.quiet { // else the peer may come later
			c.closing.ending = ErrRefused
		}
	case m.welcome.code == 0:
		if m.windows > 0 { // a legacy peer takes HELLO for window probes
			c.takePlain(h, m.windows, 0)
		}
	case m.welcome.ts != l.token || m.info.code == 0:
	case m.info.ts&capTLS == 0:
		c.takePlain(h, 1, m.welcome.sn)
	case m.info.sn == versionUnsealed:
		l.peerToken = m.welcome.sn
		c.failTLS(errUnsealed())
	}
	return false
}

// takePlain takes n answers of a peer without TLS. The second one ends the Dial,
// and the session of a peer that has shown its token; 0: it has none.
func (c *Conn) takePlain(h *tlsHandshake, n int, token uint32) {
	if h.plain = min(h.plain+uint8(min(n, legacyAnswers)), legacyAnswers); h.plain < legacyAnswers {
		return
	}
	c.failTLS(&HandshakeError{Err: ErrNoTLS})
	if token != 0 {
		c.hs.peerToken = token
		c.sendAbort()
	}
}

// takeCrypto takes what is under the protection of its packet: the end of the
// session, an alert, and bytes of the handshake.
func (c *Conn) takeCrypto(h *tlsHandshake, level handshake.Level, m *handshakeMessage) {
	if level == handshake.Handshake && m.abort == (signal{sigAbort, c.hs.token, 0}) {
		c.closing.ending = ErrReset
		return
	}
	if level != handshake.Initial && m.alert.code != 0 && m.alert.ts == c.hs.token {
		c.alerted(m.alert)
	}
	if h.alert.code != 0 {
		if h.alert.ts != 0 && c.closing.ending == nil {
			c.sendAlert()
		}
		return
	}
	if !m.crypto || h.done && level != handshake.Application {
		return
	}
	limit, room := maxTLSAhead, maxTLSHeld
	if level == handshake.Initial {
		limit = maxClientHello
	} else if level == handshake.Handshake && uint64(m.offset)+uint64(len(m.data)) > maxPeerFlight {
		c.failTLS(&HandshakeError{Err: fmt.Errorf("more than %d bytes of certificates: %w", maxPeerFlight, tls.AlertError(alertBadCertificate))})
		return
	}
	s := &h.streams[level]
	if c.hs.unvalidated.Load() {
		room = unvalidatedBytes - (h.received() - s.Held())
	}
	s.Acknowledge(m.una)
	if !s.Receive(m.offset, m.data, limit, room) {
		c.ep.counters.dropHandshake.Add(1)
	}
	c.advanceTLS()
}

// alerted ends the handshake because of the peer's alert.
func (c *Conn) alerted(s signal) {
	err := &HandshakeError{Remote: true, Err: tls.AlertError(s.sn)}
	if s.sn == alertChanged {
		err.Err = ErrHandshakeChanged
	} else if s.sn > 255 {
		err.Err = tls.AlertError(alertInternalError)
	}
	c.failTLS(err)
}

// inputTicket takes a packet under the application keys if it is of the
// handshake: it carries the ticket, or acknowledges it. It reports false for any
// other packet.
func (c *Conn) inputTicket(p *inPacket) bool {
	if p.kind != plainPacket {
		return false
	}
	if first := decodeHeader(p.Data); !isCrypto(&first) {
		return false
	}
	m, ok := parseHandshake(p.Data, p.conv)
	if !ok || !m.crypto {
		c.ep.counters.dropHandshake.Add(1)
		return true
	}
	if h := c.tlsHandshake(); h != nil && h.done {
		c.takeCrypto(h, handshake.Application, &m)
	} else if h == nil && len(m.data) > 0 { // again: the acknowledgement was lost
		c.sendCrypto(handshake.Application, &handshake.Stream{}, m.offset+uint32(len(m.data)))
	}
	return true
}

// sendFlight sends the handshake bytes that wait, as far as the
// anti-amplification limit permits, and acknowledges what has arrived.
func (c *Conn) sendFlight() {
	h := c.tlsHandshake()
	if h == nil || h.alert.code != 0 {
		return
	}
	for level := handshake.Initial; level < handshake.Levels; level++ {
		s := &h.streams[level]
		for s.Unsent() {
			if !c.sendCrypto(level, s, s.Received()) {
				return
			}
		}
		if s.Owes() && level != handshake.Initial && !(h.done && level == handshake.Handshake) {
			c.sendCrypto(level, s, s.Received())
		}
	}
}

// repeatFlight sends what is not acknowledged again. A dialling end sends
// something in any case: the other may need it to go on (RFC 9002 §6.2.2.1).
func (c *Conn) repeatFlight(now time.Duration) {
	l, h := &c.hs, c.tlsHandshake()
	if h == nil {
		l.hello.active = false
		return
	}
	l.hello.sent(now)
	l.helloAt = now
	if !l.reached && l.hello.tries <= eagerHellos {
		l.hello.next = min(l.hello.next, now+maxHelloWait)
	}
	if !l.dialled && (!h.unacknowledged() || h.done && l.hello.tries > ticketTries) {
		l.hello.active, h.ticketed = false, h.ticketed || h.done
		return
	}
	for i := range h.streams {
		h.streams[i].Rewind()
	}
	if l.dialled && !h.unacknowledged() {
		level := handshake.Initial
		if h.keys.Keys.Opens() {
			level = handshake.Handshake
		}
		c.sendCrypto(level, &h.streams[level], h.streams[level].Received())
	}
	c.sendFlight()
}

// sendCrypto sends one packet with bytes of s, as many as fit, and acknowledges
// those before una. It reports whether the packet may be sent.
func (c *Conn) sendCrypto(level handshake.Level, s *handshake.Stream, una uint32) bool {
	var signals []signal
	if level == handshake.Initial {
		signals = c.clearSignals()
	}
	head, tail := c.flightOverhead(level)
	room := flightPacket - head - tail - (len(signals)+1)*headerSize
	offset, data := s.Peek(room)
	size := len(data)
	if level == handshake.Initial && c.hs.dialled {
		size = room // padded (RFC 9000 §14.1)
	}
	packet, ok := c.flightPacket(level, signals, headerSize+size)
	if !ok {
		return false
	}
	at := packet.buf[head+len(signals)*headerSize:]
	h := c.cryptoHeader(level, size)
	h.sn, h.ts, h.una = seq(offset), seq(len(data)), seq(una)
	h.encode(at)
	clear(at[headerSize : headerSize+size])
	copy(at[headerSize:], data)
	if !c.sendSealed(level, packet) {
		return false
	}
	s.Sent(len(data))
	s.Acknowledged()
	return true
}

// cryptoHeader returns the header of a CRYPTO segment of size bytes.
func (c *Conn) cryptoHeader(level handshake.Level, size int) header {
	if level == handshake.Initial {
		size += packetkeys.InitialOverhead
	}
	return header{conv: c.entry.Conv, cmd: cmdWins, frg: uint8(sigCrypto), wnd: flightWnd, len: uint32(size)}
}

// flightOverhead returns the bytes in front of and behind the content of a
// packet of the handshake.
func (c *Conn) flightOverhead(level handshake.Level) (head, tail int) {
	if level == handshake.Initial {
		return 0, packetkeys.InitialOverhead
	}
	return c.ep.overhead.cipherHead, c.ep.overhead.tail
}

// clearSignals returns the signals at the beginning of a packet in the clear.
func (c *Conn) clearSignals() []signal {
	l := &c.hs
	if !l.dialled {
		return []signal{{sigHello | sigAnswer, l.token, l.peerToken}, c.infoSignal()}
	}
	s := []signal{{sigHello, 0, l.token}, c.infoSignal()}
	if l.cookie.code != 0 {
		s = append(s, l.cookie)
	}
	return s
}

// flightPacket returns a packet with signals and n bytes more. It reports false
// if the anti-amplification limit forbids it.
func (c *Conn) flightPacket(level handshake.Level, signals []signal, n int) (packet, bool) {
	head, tail := c.flightOverhead(level)
	size := head + len(signals)*headerSize + n + tail
	if !c.kcp.spendCredit(size) {
		return packet{}, false
	}
	p := c.ep.packet(size)
	for i, s := range signals {
		s.encode(header{conv: c.entry.Conv, wnd: flightWnd}, p.buf[head+i*headerSize:])
	}
	return p, true
}

// sendSealed seals a packet of the handshake, and queues it for the socket. It
// reports false if there is no key.
func (c *Conn) sendSealed(level handshake.Level, p packet) bool {
	var err error
	switch h := c.tlsHandshake(); {
	case level == handshake.Initial && h != nil:
		if at, ok := initialAt(p.buf); ok {
			h.initial.Seal(p.buf, at)
		}
	case level == handshake.Application:
		err = c.tls.app.Seal(p.buf, nil)
	case level == handshake.Handshake && h == nil:
		err = packetkeys.ErrNotReady
	case level == handshake.Handshake:
		err = h.keys.Seal(p.buf, nil)
	}
	if err != nil {
		c.ep.packets.Put(p.pooled)
		return false
	}
	p.ready = true
	c.outgoing.add(p)
	return true
}

// sendAlert tells the peer that the handshake has failed, under the handshake
// keys if there are any.
func (c *Conn) sendAlert() {
	h := c.tlsHandshake()
	if p, ok := c.flightPacket(handshake.Handshake, []signal{h.alert}, 0); ok && c.sendSealed(handshake.Handshake, p) {
		return
	}
	if h.keys.Keys.Opens() {
		return
	}
	signals := append(c.clearSignals(), h.alert)
	if p, ok := c.flightPacket(handshake.Initial, signals, headerSize); ok {
		crypto := c.cryptoHeader(handshake.Initial, 0)
		crypto.encode(p.buf[len(signals)*headerSize:])
		c.sendSealed(handshake.Initial, p)
	}
}

// sendAbort ends the session at a peer that does not speak TLS.
func (c *Conn) sendAbort() {
	p := c.ep.packet(headerSize)
	signal{sigAbort, c.hs.peerToken, 0}.encode(header{conv: c.entry.Conv, wnd: flightWnd}, p.buf)
	p.ready = true
	c.outgoing.add(p)
}
