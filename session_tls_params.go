package kcp

import (
	"crypto/tls"
	"encoding/binary"
)

// tlsParams are the transport parameters of TLS (WIRE.md §8.2), which bind what
// the ends have said in the clear to the handshake: a change on the way makes it
// fail.
type tlsParams struct {
	conv         uint32
	dialler      uint32 // token of the dialling end
	listener     uint32 // token of the listening end; 0 in the dialling end's
	version      uint32 // of the sender's INFO
	capabilities uint32 // the same
	flags        uint32
}

const (
	// tlsParamsSize is the size of the parameters, in bytes. Later versions may
	// append others.
	tlsParamsSize = 24

	// paramTickets in flags: a client takes tickets, a server sends them.
	paramTickets = 1
)

// encode returns p as it travels.
func (p tlsParams) encode() []byte {
	b := make([]byte, 0, tlsParamsSize)
	for _, v := range []uint32{p.conv, p.dialler, p.listener, p.version, p.capabilities, p.flags} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// decodeTLSParams is the reverse of encode. ok is false if b is too short.
func decodeTLSParams(b []byte) (p tlsParams, ok bool) {
	if len(b) < tlsParamsSize {
		return p, false
	}
	for i, v := range []*uint32{&p.conv, &p.dialler, &p.listener, &p.version, &p.capabilities, &p.flags} {
		*v = binary.LittleEndian.Uint32(b[4*i:])
	}
	return p, true
}

// tlsParams returns this end's parameters. A listening end knows both tokens by
// then.
func (c *Conn) tlsParams() tlsParams {
	info := c.infoSignal()
	p := tlsParams{conv: c.entry.Conv, dialler: c.hs.token, version: info.sn, capabilities: info.ts}
	if !c.hs.dialled {
		p.dialler, p.listener = c.hs.peerToken, c.hs.token
	}
	if takesTickets(c.ep.config.TLS, c.hs.dialled) {
		p.flags |= paramTickets
	}
	return p
}

// takesTickets reports whether an end takes tickets, or sends them if it
// listens.
func takesTickets(config *tls.Config, dialled bool) bool {
	return !config.SessionTicketsDisabled && (!dialled || config.ClientSessionCache != nil)
}

// checkParams compares the peer's parameters with what has arrived in the clear.
func (c *Conn) checkParams(b []byte) error {
	p, ok := decodeTLSParams(b)
	if !ok {
		return ErrHandshakeChanged
	}
	l, h := &c.hs, c.tlsHandshake()
	want := tlsParams{conv: c.entry.Conv, dialler: l.peerToken, version: h.info.sn, capabilities: h.info.ts, flags: p.flags}
	if l.dialled {
		want.dialler, want.listener = l.token, l.peerToken
	}
	if p != want {
		return ErrHandshakeChanged
	}
	h.tickets = p.flags&paramTickets != 0 && takesTickets(c.ep.config.TLS, l.dialled)
	return nil
}
