package kcp

import (
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/packetmac"
	"github.com/arqnet/kcp/internal/replay"
)

// Packet numbers under ciphers that do not authenticate. Anyone on the path could
// change a number in a nonce: no check covers the nonces of these ciphers. So a
// message authentication code over number and content goes with it, under a key
// that the tokens of the session make, which the cipher has hidden. WIRE.md §4.1
// specifies it, and says what remains open.

// macLabel separates these keys from other uses of SHA-256.
const macLabel = "kcp packet authenticator"

// packetMACs are the keys of a session; immutable.
type packetMACs struct {
	ours, theirs *packetmac.Key
}

// newPacketMACs returns the keys of a session; nil if the cipher authenticates,
// or the program may not use the algorithm.
func (e *Endpoint) newPacketMACs(conv, token, peerToken uint32) *packetMACs {
	if e.protection.authentic {
		return nil
	}
	ours, theirs := derive(macLabel, conv, token, peerToken), derive(macLabel, conv, peerToken, token)
	m := new(packetMACs)
	var err error
	if m.ours, err = packetmac.New(ours[:]); err != nil {
		return nil
	}
	if m.theirs, err = packetmac.New(theirs[:]); err != nil {
		return nil
	}
	return m
}

// marksPackets reports whether the nonces of c have room for an authenticated
// number.
func marksPackets(c crypt.NonceCipher) bool {
	return !crypt.Authenticated(c) && c.NonceSize() == packetmac.NonceSize
}

// markPacket puts the number of a packet, and its code, into the nonce.
func (e *Endpoint) markPacket(m *packetMACs, packet, nonce []byte, number uint64) {
	head, tail := e.config.Cipher.Overhead()
	m.ours.Mark(nonce, packet[head:len(packet)-tail], number)
}

// numberOf returns the number in the peer's packet. ok reports whether the packet
// is of this session and of the peer's direction.
func (n *packetNumbers) numberOf(p *inPacket) (number uint64, ok bool) {
	if n.macs == nil {
		return n.theirs().number(p.nonce)
	}
	number = n.window.Expand(packetmac.Low(p.nonce))
	return number, n.macs.theirs.Check(p.nonce, p.data, number)
}

// reflected reports whether this end has sent the packet with a number.
func (n *packetNumbers) reflected(p *inPacket) bool {
	if n.macs == nil {
		_, back := n.ours().number(p.nonce)
		return back
	}
	return n.macs.ours.Check(p.nonce, p.data, replay.Expand(packetmac.Low(p.nonce), n.next.Load()))
}
