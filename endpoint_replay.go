package kcp

// replayContent is how many bytes behind a cipher's header tell packets apart,
// if it is not known what the header is. Ciphers that draw nonces themselves
// have them there.
const replayContent = 16

// mark returns what the replay filter knows a packet by that the cipher has
// opened.
func (p *protection) mark(in *inPacket) uint64 {
	if in.nonce != nil {
		return p.replays.Mark(in.nonce) // which Open has left as it was
	}
	return in.mark
}
