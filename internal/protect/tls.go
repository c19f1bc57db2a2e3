package protect

import (
	"github.com/arqnet/kcp/crypt"
)

// TLS is the protection of a session with the secrets of a TLS handshake (WIRE.md
// §8.3) at one encryption level.
type TLS struct {
	Keys   PacketKeys
	window Window // of the peer's numbers
	head   uint8  // bytes of Overhead; immutable, as is tail
	tail   uint8
}

// newTLS returns the protection of a conversation at a level, without secrets.
// own is as in protect.PacketKeys.
func newTLS(conv uint32, level Level, own bool) *TLS {
	head, tail := tlsOverhead(own)
	t := &TLS{head: uint8(head), tail: uint8(tail)}
	t.Keys.Init(conv, level, own)
	return t
}

// tlsOverhead returns the bytes around the content of packets. own is as in
// protect.PacketKeys.
func tlsOverhead(own bool) (head, tail int) {
	if own {
		return HeaderSize, TagSize + NonceSize
	}
	return HeaderSize, TagSize
}

func (t *TLS) Overhead() (head, tail int) { return int(t.head), int(t.tail) }

// Seal returns crypt.ErrKeyExhausted for keys that must not be used any more.
func (t *TLS) Seal(packet, content []byte) error {
	if content == nil {
		content = t.Keys.Content(packet)
	}
	err := t.Keys.SealFrom(packet, content)
	if err == ErrExhausted {
		return crypt.ErrKeyExhausted
	}
	return err
}

func (t *TLS) Open(p *Packet) error {
	content, number, err := t.Keys.Open(p.Data)
	if err == nil {
		p.Data, p.mark, p.opened = content, number, true
	}
	return err
}

// Fresh takes nothing that was not opened under the keys of the session.
func (t *TLS) Fresh(p *Packet, take bool) Verdict {
	if p.opened && (take && t.window.Take(p.mark) || !take && t.window.IsNew(p.mark)) {
		return New
	}
	return Replayed
}

// Number returns the number of an opened packet. Others have none.
func (t *TLS) Number(p *Packet) (number uint64, ok bool) { return p.mark, p.opened }

func (t *TLS) IsLatest(number uint64) bool { return t.window.IsLatest(number) }
func (t *TLS) Sender() Protection          { return t }
func (t *TLS) Authentic() bool             { return true }
func (t *TLS) Compact()                    { t.Keys.Compact() }
