package handshake

import (
	"crypto/tls"
	"encoding/binary"
)

// Params are the transport parameters of TLS (WIRE.md §8.2), which bind what the
// ends have said in the clear to the handshake: a change on the way makes it fail.
type Params struct {
	Conv         uint32
	Dialler      uint32 // token of the dialling end
	Listener     uint32 // token of the listening end; 0 in the dialling end's
	Version      uint32 // of the sender's INFO
	Capabilities uint32 // the same
	Flags        uint32
}

const (
	// paramsSize is the size of the parameters, in bytes. Later versions may
	// append others.
	paramsSize = 24

	// paramTickets in Flags: a client takes tickets, a server sends them.
	paramTickets = 1
)

// fields returns the parameters in the order in which they travel.
func (p *Params) fields() [6]*uint32 {
	return [...]*uint32{&p.Conv, &p.Dialler, &p.Listener, &p.Version, &p.Capabilities, &p.Flags}
}

// Encode returns p as it travels.
func (p Params) Encode() []byte {
	b := make([]byte, 0, paramsSize)
	for _, v := range p.fields() {
		b = binary.LittleEndian.AppendUint32(b, *v)
	}
	return b
}

// DecodeParams is the reverse of Encode. ok is false if b is too short.
func DecodeParams(b []byte) (p Params, ok bool) {
	if len(b) < paramsSize {
		return p, false
	}
	for i, v := range p.fields() {
		*v = binary.LittleEndian.Uint32(b[4*i:])
	}
	return p, true
}

// takesTickets reports whether an end takes tickets, or sends them if it
// listens.
func takesTickets(config *tls.Config, dialled bool) bool {
	return !config.SessionTicketsDisabled && (!dialled || config.ClientSessionCache != nil)
}
