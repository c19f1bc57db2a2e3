package kcp

import (
	"encoding/binary"
	"time"

	"github.com/arqnet/kcp/internal/packetkeys"
	"github.com/arqnet/kcp/internal/udp"
)

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
