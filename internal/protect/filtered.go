package protect

import (
	"crypto/sha256"
	"io"

	"github.com/arqnet/kcp/crypt"
)

// replayContent is how many bytes of content the replay filter compares besides
// the cipher's header. Only a crypt.NonceCipher is known to have its nonce in
// the header; the nonce of another cipher may stand behind it.
const replayContent = 16

// filtered is the protection of a cipher for packets without number, which a
// filter compares with the latest ones. It is immutable, except for what the
// filter remembers. All sessions of an endpoint share one.
type filtered struct {
	cipher    crypt.Cipher
	from      crypt.SealerFrom  // the cipher, if it seals what is not in the packet; else nil
	nonces    crypt.NonceCipher // the cipher, if packets can be numbered; else nil
	random    io.Reader         // of nonces; nil: the cipher draws them
	authentic bool              // the cipher authenticates
	replays   Filter
}

// newFiltered returns the protection of a cipher. Without authentication there is
// no replay filter: anyone could make packets of recorded ones that it does not
// recognise.
func newFiltered(c crypt.Cipher, random io.Reader) *filtered {
	f := &filtered{cipher: c, nonces: numbersPackets(c), random: random, authentic: crypt.Authenticated(c)}
	f.from, _ = c.(crypt.SealerFrom)
	if !f.authentic {
		return f
	}
	head, _ := c.Overhead()
	if f.nonces != nil {
		f.replays.Enable(f.nonces.NonceSize())
	} else {
		f.replays.Enable(head + replayContent)
	}
	return f
}

// numbersPackets returns c as a cipher whose nonces carry packet numbers, or
// nil if its nonce has no suitable size.
func numbersPackets(c crypt.Cipher) crypt.NonceCipher {
	n, ok := c.(crypt.NonceCipher)
	switch {
	case !ok:
		return nil
	case n.NonceSize() < minNonce || n.NonceSize() > sha256.Size:
		return nil
	}
	return n
}

func (f *filtered) Overhead() (head, tail int) { return f.cipher.Overhead() }

// nonceOf returns the nonce of a packet.
func (f *filtered) nonceOf(packet []byte) []byte {
	return packet[:min(f.nonces.NonceSize(), len(packet))]
}

// Seal seals a packet with a random nonce.
func (f *filtered) Seal(packet, content []byte) (err error) {
	if content != nil && f.from == nil {
		head, _ := f.cipher.Overhead()
		copy(packet[head:], content)
		content = nil
	}
	chosen := f.random != nil && f.nonces != nil
	if chosen {
		_, _ = f.random.Read(f.nonceOf(packet)) // cannot fail
	}
	switch {
	case chosen:
		err = f.sealNonce(packet, content)
	case content != nil:
		err = f.from.SealFrom(packet, content)
	default:
		err = f.cipher.Seal(packet)
	}
	f.replays.Sent(packet)
	return err
}

// sealNonce seals a packet whose nonce is set.
func (f *filtered) sealNonce(packet, content []byte) error {
	if content != nil {
		return f.from.SealNonceFrom(packet, content)
	}
	return f.nonces.SealNonce(packet)
}

func (f *filtered) Open(p *Packet) (err error) {
	packet := p.Data
	if f.authentic && f.nonces == nil {
		p.mark = f.replays.Mark(packet) // before Open overwrites it
	}
	if p.Data, err = f.cipher.Open(packet); err != nil {
		return err
	}
	if f.nonces != nil {
		p.nonce = f.nonceOf(packet) // Open does not change it
	}
	return nil
}

func (f *filtered) Fresh(p *Packet, take bool) Verdict {
	mark := p.mark
	if p.nonce != nil && f.authentic {
		mark = f.replays.Mark(p.nonce)
	}
	if take && f.replays.Take(mark) || !take && f.replays.IsNew(mark) {
		return New
	}
	return Replayed
}

func (*filtered) Number(*Packet) (number uint64, ok bool) { return 0, false }
func (*filtered) IsLatest(uint64) bool                    { return false }
func (f *filtered) Sender() Protection                    { return f }
func (f *filtered) Authentic() bool                       { return f.authentic }
func (*filtered) Compact()                                {}
