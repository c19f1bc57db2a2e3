// Package admission finds the sessions of an endpoint by everything that a packet
// may identify them by, and judges the packets of senders without a session: what they
// open, and what they are answered. It has the table of sessions, TIME-WAIT, cookies,
// stateless resets, and limits of all of these.
//
// All of it is pure: the caller passes the time, and its lock guards what it
// calls. Times are since an origin of the caller's.
package admission

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/packetkeys"
)

// Kind is the kind of a packet that arrives (WIRE.md §4).
type Kind uint8

const (
	Plain    Kind = iota // segments, without an FEC header
	FEC                  // segments behind an FEC header
	Parity               // names no conversation: its address identifies the session
	Datagram             // unreliable, past the state machine

	// With TLS, before the session has opened them.
	Clear     // of the handshake, in the clear
	Opened    // the same, opened
	Handshake // under the handshake keys
	Sealed    // under the application keys, which may not be known yet
)

// Alone reports whether the conversation of such a packet is all that its session is
// found by. With an FEC header it has to be entered in the tables too.
func (k Kind) Alone() bool { return k == Plain || k >= Clear }

// Classify determines the kind and the conversation of a packet; Parity without TLS
// names none. tls says that it is a packet with TLS that was not opened: its header
// tells both. Classify reports false if data is too short, or shorter or longer than
// its header says.
func Classify(data []byte, tls bool) (kind Kind, conv uint32, ok bool) {
	switch {
	case tls || !fec.IsFEC(data):
		if len(data) < segmentSize {
			return Plain, 0, false
		}
		if tls {
			kind = [...]Kind{
				packetkeys.Clear: Clear, packetkeys.Handshake: Handshake, packetkeys.Application: Sealed,
			}[packetkeys.LevelOf(data)]
		}
		return kind, binary.LittleEndian.Uint32(data), true
	case binary.LittleEndian.Uint16(data[4:]) == fec.TypeParity:
		return Parity, 0, len(data) > fec.HeaderSize
	case binary.LittleEndian.Uint16(data[4:]) == fec.TypeOOB:
		if len(data) < fec.HeaderSize+4 || int(binary.LittleEndian.Uint16(data[6:])) != len(data)-6 {
			return Datagram, 0, false
		}
		kind = Datagram
	default:
		if len(data) < fec.HeaderSize+segmentSize {
			return FEC, 0, false
		}
		kind = FEC
	}
	return kind, binary.LittleEndian.Uint32(data[fec.HeaderSize:]), true
}

// Key identifies a session: its peer's address and its conversation id. Peer
// takes the place of Addr if the address is not a UDP address, and is empty
// otherwise.
type Key struct {
	Addr netip.AddrPort
	Peer string
	Conv uint32
}

// MakeKey returns the key of a session; peer is nil if the address is addr.
func MakeKey(addr netip.AddrPort, peer net.Addr, conv uint32) Key {
	key := Key{Addr: addr, Conv: conv}
	if peer != nil {
		key.Peer = peer.Network() + " " + peer.String()
	}
	return key
}

// address returns the key of the address alone.
func (k Key) address() Key {
	k.Conv = 0
	return k
}

// ResetKey returns the key of the stateless resets of the session, from a secret. It
// depends on the address of the socket too, local, as several endpoints may have one
// secret.
func (k Key) ResetKey(secret []byte, local string) packetkeys.ResetKey {
	text := binary.LittleEndian.AppendUint32(nil, k.Conv)
	text = binary.LittleEndian.AppendUint16(text, k.Addr.Port())
	ip := k.Addr.Addr().As16()
	text = append(append(text, ip[:]...), k.Addr.Addr().Zone()...)
	text = append(append(text, 0), k.Peer...)
	text = append(append(text, 0), local...)
	return packetkeys.NewResetKey(secret, text)
}

// Network returns the network that limits count the session for: the IPv4
// address, or the /64 of the IPv6 address, since each subscriber has as many
// addresses as that.
func (k Key) Network() netip.Addr {
	addr := k.Addr.Addr().Unmap()
	if !addr.Is6() {
		return addr
	}
	prefix, err := addr.WithZone("").Prefix(64)
	if err != nil {
		return addr
	}
	return prefix.Addr()
}
