package protect

import (
	"bytes"

	"github.com/arqnet/kcp/crypt"
)

// KeysOf of sessions under a cipher that does not authenticate, as kcp-go's do not. Two
// ends of this package derive keys from the cipher, and change over to an AEAD under
// them. WIRE.md §4.1 specifies that.

// keySource is the nonce and the content of the packet that keys are derived from. No
// such packet is ever sent.
const (
	keySource     = "kcp preshared v1"
	keySourceSize = 64
)

// newPreshared derives a secret from a cipher: what it makes of a constant packet, which
// only who has its key can know. It returns nil for a cipher that authenticates, one that
// hides nothing, one whose nonces cannot be chosen, and one that makes something else of
// the same packet the next time.
func newPreshared(f *filtered) *Preshared {
	if f.authentic || f.nonces == nil {
		return nil
	}
	head, tail := f.cipher.Overhead()
	if head < len(keySource) || head+tail != PresharedOverhead {
		return nil
	}
	var made [2][]byte
	for i := range made {
		made[i] = make([]byte, head+keySourceSize+tail)
		copy(made[i], keySource)
		if f.nonces.SealNonce(made[i]) != nil {
			return nil
		}
	}
	if !bytes.Equal(made[0], made[1]) {
		return nil
	}
	s, err := NewPreshared(made[0])
	if err != nil {
		return nil
	}
	return s
}

// Capabilities that an end announces in INFO (WIRE.md §5).
const (
	CapKeys   = 1 << 8 // it derives keys
	CapChaCha = 1 << 9 // it prefers ChaCha20-Poly1305 for them
)

// key is Number for a cipher that does not authenticate.
func (s *Scheme) key(p Protection, conv, token, peerToken, capabilities uint32, sends bool) Protection {
	if s.preshared == nil {
		return p
	}
	k, _ := p.(*Keyed)
	if k == nil || !k.keys.Of(conv, token, peerToken) {
		k = &Keyed{filtered: s.cipher, keys: s.preshared.Session(conv, token, peerToken)}
	}
	k.keys.UseChaCha((capabilities|s.Capabilities)&CapChaCha != 0)
	k.sends = k.sends || sends && capabilities&CapKeys != 0
	return k
}

// capabilities returns Scheme.Capabilities of an end that derives keys.
func capabilities() uint32 {
	if FastGCM() {
		return CapKeys
	}
	return CapKeys | CapChaCha
}

// ReadHeader reports whether a packet may be one under the keys of a session, and reads
// its header. Its source says which session if the header does not name a conversation.
// scratch is working memory.
func (s *Scheme) ReadHeader(p *Packet, scratch *[]byte) (conv uint32, named, ok bool) {
	if p.headed = false; s.preshared != nil {
		if len(*scratch) < TagSize {
			*scratch = make([]byte, TagSize)
		}
		p.headed = s.preshared.Read(p.Data, *scratch, &p.header)
	}
	return p.Header()
}

// Keyed is the protection of a session whose ends change over to an AEAD, whose keys are
// derived from the cipher. Packets before that are protected as the cipher does it.
//
// Open may be called at any time from any goroutine. It opens packets under the keys of
// the session only, whose header Scheme.ReadHeader has read.
type Keyed struct {
	*filtered
	keys *SessionKeys

	sends  bool   // our packets leave under the keys: the peer is known to have them
	heard  bool   // a packet of the peer has come under them
	window Window // of the peer's numbers
}

// Seal seals a packet under the keys of the session.
func (k *Keyed) Seal(packet, content []byte) error {
	err := k.keys.Seal(packet, content)
	if err == ErrExhausted {
		return crypt.ErrKeyExhausted
	}
	return err
}

func (k *Keyed) Open(p *Packet) error {
	content, number, err := k.keys.Open(p.Data, &p.header)
	if err == nil {
		p.Data, p.mark, p.nonce, p.by = content, number, nil, k.keys
	}
	return err
}

// Fresh refuses packets under the cipher once the peer has changed over.
func (k *Keyed) Fresh(p *Packet, take bool) Verdict {
	switch {
	case p.by == k.keys && !take && k.window.IsNew(p.mark):
		return New
	case p.by != nil && (p.by != k.keys || !take || !k.window.Take(p.mark)):
		return Replayed
	case p.by != nil:
		k.heard, k.sends = true, true
		return New
	case k.heard:
		return Foreign
	}
	return k.filtered.Fresh(p, take)
}

// Number returns the number of a packet under the keys of the session.
func (k *Keyed) Number(p *Packet) (number uint64, ok bool) { return p.mark, p.by == k.keys }

func (k *Keyed) IsLatest(number uint64) bool { return k.window.IsLatest(number) }
func (k *Keyed) Compact()                    { k.keys.Compact() }

// Sender returns k only if the peer is known to have the keys.
func (k *Keyed) Sender() Protection {
	if k.sends {
		return k
	}
	return k.filtered
}

// Authentic reports whether a packet of the peer has come under the keys.
func (k *Keyed) Authentic() bool { return k.heard }

// UnderKeys reports whether packets of the session that p protects leave under keys that
// are derived from the cipher. The caller guards p, as for Fresh.
func UnderKeys(p Protection) bool {
	k, ok := p.(*Keyed)
	return ok && k.sends
}

// Progress returns the number of the next packet sent, and whether the packets of this
// end and of the peer are under the keys. The caller guards k, as for Fresh.
func (k *Keyed) Progress() (next uint64, sends, heard bool) { return k.keys.Next(), k.sends, k.heard }

// Skip sets the number of the next packet sent to next, and the number that is expected
// next to after; 0 leaves it as it is. Tests come to the end of the numbers so.
func (k *Keyed) Skip(next, after uint64) { k.keys.Skip(next, after) }
