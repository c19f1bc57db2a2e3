package kcp

import (
	"bytes"
	"errors"
	"net"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/session"
)

// Packets of endpoints with TLS (WIRE.md §8). The header of a protected packet
// names the conversation, so the session is found first, and opens the packet
// with its keys. What is in the clear opens nothing but a handshake.

// openSealed opens a packet under the application keys of its session. It
// reports false for one that is dropped.
func (e *Endpoint) openSealed(c *Conn, p *session.InPacket, now time.Duration) bool {
	var kept []byte // as a packet that does not open is destroyed
	if e.config.TLS != nil && len(p.Data) <= protect.MaxReset {
		kept = bytes.Clone(p.Data) // no packet of segments is so small
	}
	switch err := e.Open(c.session.PacketKeys(), p); {
	case err == nil:
		if p.Kind == session.FecPacket && e.config.TLS == nil && !e.table.Bound(c) {
			e.bindFEC(c)
		}
		return true
	case errors.Is(err, protect.ErrExhausted):
		c.endFor(session.CauseFailed, crypt.ErrKeyExhausted)
	case errors.Is(err, protect.ErrTooFast):
		c.endFor(session.CauseFailed, errKeyUpdate)
	case c.session.ResetBy(kept):
		c.endFor(session.CauseReset, nil)
	}
	return false
}

// maxFailures is how many failed handshakes wait for Config.HandshakeFailed.
const maxFailures = 16

// reportHandshake passes the error of a handshake that a peer has begun to the
// application.
func (e *Endpoint) reportHandshake(remote net.Addr, err *HandshakeError) {
	e.warnHandshake(remote, err)
	if failed := e.config.HandshakeFailed; failed != nil {
		e.failed.Add(maxFailures, func() { failed(remote, err) })
	}
}

// resetKeyOf returns what the peer of a session is told about its resets; nil if
// the key may be known to another peer, which has, or had within TIME-WAIT, a
// session with the same conversation id. c.mu is held.
func (e *Endpoint) resetKeyOf(c *Conn) *protect.ToldKey {
	key, now := c.session.Place().Key(), e.now()
	e.mu.RLock()
	_, before := e.table.TimeWaits.AtAnyAddress(key.Conv, now)
	alone := e.table.Alone(c) && !before && !e.table.TimeWaits.Forgot(session.ResetKeyWithin, now)
	e.mu.RUnlock()
	if !alone {
		return nil
	}
	return &protect.ToldKey{ResetKey: key.ResetKey(e.table.ResetSecret, e.LocalAddr().String()), Since: uint32(e.Epoch.Add(now).Unix())}
}
