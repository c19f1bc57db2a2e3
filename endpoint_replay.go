package kcp

import "github.com/arqnet/kcp/crypt"

// replayContent is how many bytes of content the replay filter compares besides
// the cipher's header. Only a crypt.NonceCipher is known to have its nonce in
// the header; the nonce of another cipher may stand behind it.
const replayContent = 16

// init sets up p for a cipher. Without authentication there is no replay filter:
// anyone could make packets of recorded ones that it does not recognise.
func (p *protection) init(c crypt.Cipher) {
	p.authentic, p.nonces = crypt.Authenticated(c), numbersPackets(c)
	if !p.authentic {
		return
	}
	head, _ := c.Overhead()
	if p.nonces != nil {
		p.replays.Enable(p.nonces.NonceSize())
	} else {
		p.replays.Enable(head + replayContent)
	}
}

// mark returns the hash by which the replay filter recognises the decrypted
// packet in.
func (p *protection) mark(in *inPacket) uint64 {
	if in.nonce != nil && p.authentic {
		return p.replays.Mark(in.nonce) // Open does not change the nonce
	}
	return in.mark
}
