package kcp

// replayContent is how many bytes of content the replay filter compares besides
// the cipher's header. Only a crypt.NonceCipher is known to have its nonce in
// the header; the nonce of another cipher may stand behind it.
const replayContent = 16

// mark returns the hash by which the replay filter recognises the decrypted
// packet in.
func (p *protection) mark(in *inPacket) uint64 {
	if in.nonce != nil {
		return p.replays.Mark(in.nonce) // Open does not change the nonce
	}
	return in.mark
}
