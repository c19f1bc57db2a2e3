package protect

import (
	"crypto/cipher"
	"crypto/tls"
	"encoding/binary"
)

// Initial protects the packets that leave before a handshake has a secret, as
// QUIC's Initial packets are protected (RFC 9001 §5.2). Its keys come from what
// every such packet shows. So it keeps out what was damaged on the way, and who
// has not seen a packet of the handshake, but nobody else.
//
// Nonces are random, and in the packet. Methods are safe for concurrent use.
type Initial struct {
	seals, opens cipher.AEAD
}

// InitialOverhead is how many bytes a sealed content has besides.
const InitialOverhead = NonceSize + TagSize

const (
	// initialSecret is the secret of all handshakes of this version: SHA-256 of
	// "github.com/arqnet/kcp version 2". Another version has another one.
	initialSecret = "\xcc\x9f\x51\xd0\xef\x02\x73\xb4\xf6\xb3\x45\x81\xe7\xc7\x16\x17" +
		"\xb6\x18\x9b\xff\xed\x17\xcd\x16\x83\xdd\xe9\x7c\xdb\x94\x1c\x65"

	// Labels of the two directions, as in RFC 9001 §5.2.
	labelDialler  = "kcp client in"
	labelListener = "kcp server in"
)

// NewInitial returns the keys of a handshake for one of its ends. nonce is what
// the dialling end has drawn for it.
func NewInitial(conv, nonce uint32, dialled bool) *Initial {
	shown := binary.LittleEndian.AppendUint32(nil, conv)
	shown = binary.LittleEndian.AppendUint32(shown, nonce)
	k := Initial{seals: initialKey(labelListener, shown), opens: initialKey(labelDialler, shown)}
	if dialled {
		k.seals, k.opens = k.opens, k.seals
	}
	return &k
}

// initialKey derives the key of one direction. It cannot fail, as nothing but
// shown is variable.
func initialKey(label string, shown []byte) cipher.AEAD {
	s, _ := newSuite(tls.TLS_AES_128_GCM_SHA256)
	key, _ := s.expand([]byte(initialSecret), label, shown, s.keySize)
	aead, _ := s.own(key)
	return aead
}

// Seal seals a packet in place from the offset at on. The content lies there, and
// InitialOverhead bytes behind it. What precedes it is additional data.
func (k *Initial) Seal(packet []byte, at int) {
	content := packet[at : len(packet)-InitialOverhead]
	k.seals.Seal(packet[at:at], nil, content, packet[:at])
}

// Open opens, in place, a packet that was sealed from the offset at on, and
// returns it without what Seal has added. One that does not open is destroyed.
func (k *Initial) Open(packet []byte, at int) ([]byte, error) {
	content, err := k.opens.Open(packet[at:at], nil, packet[at:], packet[:at])
	if err != nil {
		return nil, ErrForged
	}
	return packet[:at+len(content)], nil
}
