package protect

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"runtime"
	"sync"

	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/sys/cpu"
)

// Preshared makes the keys of the sessions of an endpoint, whose ends have a secret
// in common: an AEAD's for each direction of each session, and one that hides the
// headers of all packets (header protection, RFC 9001 §5.4). It is immutable, and safe
// for concurrent use. WIRE.md §4.1 has the layout.
type Preshared struct {
	secret []byte
	mask   cipher.Block
}

const (
	// PresharedOverhead is how many bytes a packet has besides its content.
	PresharedOverhead = wordSize + TagSize

	wordSize = 4 // of the number, and what else is in its word
	idSize   = 4 // of the conversation id, which the content then lacks
	// framedAt is where the id is in a content with an FEC header.
	framedAt = 8

	// numberBits is how many bits of a packet number travel. They are the lowest of the
	// word, and then come 2 for the Form, and one for the AEAD.
	numberBits  = 29
	numberMask  = 1<<numberBits - 1
	formShift   = numberBits
	chachaShift = 31
	// keyBits is how many bits of a packet number count the packets under one key.
	// 2^24 packets of 2^16 bytes leave AES-GCM as good as 2^24.5 full records leave it
	// in TLS (RFC 8446 §5.5).
	keyBits = 24
)

// Labels of HKDF (RFC 5869).
const (
	presharedSalt   = "kcp preshared"
	presharedMask   = "kcp preshared header"
	presharedPacket = "kcp preshared packet"
)

// NewPreshared returns what makes the keys of a secret, of which 32 bytes at least
// cannot be guessed. It fails if the program may not choose the nonces of AEADs, with
// GODEBUG=fips140=only.
func NewPreshared(secret []byte) (*Preshared, error) {
	if _, err := newGCM(make([]byte, 16)); err != nil {
		return nil, err
	}
	s, err := hkdf.Extract(sha256.New, secret, []byte(presharedSalt))
	if err != nil {
		return nil, err
	}
	key, err := hkdf.Expand(sha256.New, s, presharedMask, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	return &Preshared{s, block}, err
}

// FastGCM reports whether Go computes AES-GCM by instructions of this processor. Without
// them it is slow, and its time depends on the key.
func FastGCM() bool {
	switch runtime.GOARCH {
	case "amd64":
		return cpu.X86.HasAES && cpu.X86.HasPCLMULQDQ && cpu.X86.HasSSE41 && cpu.X86.HasSSSE3
	case "arm64":
		return cpu.ARM64.HasAES && cpu.ARM64.HasPMULL
	case "s390x":
		return cpu.S390X.HasAES && cpu.S390X.HasAESCTR && cpu.S390X.HasGHASH
	}
	return runtime.GOARCH == "ppc64le"
}

// Form says where in the content of a packet the conversation id is. It travels in
// the header in place of there.
type Form uint8

const (
	Leading  Form = iota // the content begins with it
	Framed               // behind an FEC header
	Nameless             // nowhere
)

// formOf returns the form of a content of a conversation.
func formOf(content []byte, conv uint32) Form {
	switch {
	case len(content) >= idSize && binary.LittleEndian.Uint32(content) == conv:
		return Leading
	case len(content) >= framedAt+idSize && binary.LittleEndian.Uint32(content[framedAt:]) == conv:
		return Framed
	}
	return Nameless
}

// PresharedHeader is the header of a packet that has arrived.
type PresharedHeader struct {
	Conv uint32 // 0 if Form is Nameless
	word uint32
	Form Form
}

// Read reads the header of a packet, which it leaves as it is. ok is false for one that
// has none. Who does not know the secret chooses what Read finds by luck alone, unless
// the end of the packet is one that was recorded. scratch is working memory of 16 bytes.
func (s *Preshared) Read(packet, scratch []byte, h *PresharedHeader) (ok bool) {
	if len(packet) < wordSize+TagSize {
		return false
	}
	s.mask.Encrypt(scratch, packet[len(packet)-TagSize:])
	h.word = binary.LittleEndian.Uint32(packet) ^ binary.LittleEndian.Uint32(scratch)
	h.Form, h.Conv = Form(h.word>>formShift&3), 0
	switch {
	case h.Form > Nameless:
		return false
	case h.Form == Nameless:
		return true
	case len(packet) < wordSize+idSize+TagSize:
		return false
	}
	h.Conv = binary.LittleEndian.Uint32(packet[wordSize:]) ^ binary.LittleEndian.Uint32(scratch[wordSize:])
	return true
}

// SessionKeys seals the packets of one end of a session with the keys of a Preshared,
// and opens the other end's. All methods are safe for concurrent use.
type SessionKeys struct {
	from              *Preshared // immutable, as is all up to seal
	conv, ours, peers uint32

	seal struct {
		mu     sync.Mutex // guards the fields below, and is held while a packet is sealed
		key    numberedKey
		next   uint64 // packet number
		chacha bool   // by ChaCha20-Poly1305; otherwise AES-GCM
		packetScratch
	}
	open struct {
		mu     sync.Mutex     // guards the fields below, and is held while a packet is opened
		keys   [2]numberedKey // the latest packet's that has opened, and another one
		next   uint64         // one more than the highest number of an authentic packet
		forged uint64         // packets that did not open
		packetScratch
	}
}

// packetScratch is working memory: what is passed to a cipher must not be on the stack.
type packetScratch struct {
	nonce  [NonceSize]byte
	header [wordSize + idSize]byte
	mask   [aes.BlockSize]byte
}

// numberedKey is the key of some consecutive packets of one direction.
type numberedKey struct {
	aead   cipher.AEAD // nil: there is none
	span   uint64      // the packets: their numbers, without the lowest keyBits bits
	chacha bool
	iv     [NonceSize]byte
}

// Session returns the keys of a session with a conversation id, whose ends have drawn two
// tokens, which must differ.
func (s *Preshared) Session(conv, token, peerToken uint32) *SessionKeys {
	return &SessionKeys{from: s, conv: conv, ours: token, peers: peerToken}
}

// Of reports whether k is of a session with these ids.
func (k *SessionKeys) Of(conv, token, peerToken uint32) bool {
	return k.conv == conv && k.ours == token && k.peers == peerToken
}

// UseChaCha has packets sealed by ChaCha20-Poly1305 from now on, in place of AES-GCM.
func (k *SessionKeys) UseChaCha(yes bool) {
	k.seal.mu.Lock()
	k.seal.chacha = yes
	k.seal.mu.Unlock()
}

// key returns the key of a packet with a number in one direction.
func (s *Preshared) key(conv, sender, receiver uint32, span uint64, chacha bool) (k numberedKey, err error) {
	info := binary.LittleEndian.AppendUint32([]byte(presharedPacket), conv)
	info = binary.LittleEndian.AppendUint32(info, sender)
	info = binary.LittleEndian.AppendUint32(info, receiver)
	info = binary.LittleEndian.AppendUint64(info, span)
	build := newGCM
	if chacha {
		build, info = chacha20poly1305.New, append(info, 1)
	} else {
		info = append(info, 0)
	}
	made, err := hkdf.Expand(sha256.New, s.secret, string(info), chacha20poly1305.KeySize+NonceSize)
	if err != nil {
		return k, err
	}
	k = numberedKey{span: span, chacha: chacha}
	copy(k.iv[:], made[chacha20poly1305.KeySize:])
	k.aead, err = build(made[:chacha20poly1305.KeySize])
	return k, err
}

// is reports whether k is the key of some packets.
func (k *numberedKey) is(span uint64, chacha bool) bool {
	return k.aead != nil && k.span == span && k.chacha == chacha
}

// prepare sets the nonce of a packet, and its header, which is additional data.
func (p *packetScratch) prepare(k *numberedKey, number uint64, form Form, conv uint32) {
	p.nonce = k.iv
	tail := p.nonce[NonceSize-8:]
	binary.BigEndian.PutUint64(tail, binary.BigEndian.Uint64(tail)^number)
	word := uint32(number)&numberMask | uint32(form)<<formShift
	if k.chacha {
		word |= 1 << chachaShift
	}
	binary.LittleEndian.PutUint32(p.header[:], word)
	binary.LittleEndian.PutUint32(p.header[wordSize:], conv)
}

// Seal seals a packet under the next number. Its content is content, or if that is nil
// behind the first PresharedOverhead bytes of the packet.
func (k *SessionKeys) Seal(packet, content []byte) (err error) {
	if content == nil {
		content = packet[PresharedOverhead:]
	}
	s := &k.seal
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next > lastNumber {
		return ErrExhausted
	}
	number := s.next
	if !s.key.is(number>>keyBits, s.chacha) {
		if s.key, err = k.from.key(k.conv, k.ours, k.peers, number>>keyBits, s.chacha); err != nil {
			return err
		}
	}
	s.next++
	form := formOf(content, k.conv)
	s.prepare(&s.key, number, form, k.conv)
	head, plain := wordSize+idSize, content
	switch form {
	case Leading:
		plain = content[idSize:]
	case Framed: // a content in its place moves to the front
		copy(packet[head:], content[:framedAt])
		copy(packet[head+framedAt:], content[framedAt+idSize:])
		plain = packet[head : head+len(content)-idSize]
	case Nameless:
		head = wordSize
	}
	if form != Framed && len(plain) > 0 && &plain[len(plain)-1] == &packet[len(packet)-1] {
		plain = packet[head : head+copy(packet[head:], plain)]
	}
	s.key.aead.Seal(packet[head:head], s.nonce[:], plain, s.header[:])
	k.from.mask.Encrypt(s.mask[:], packet[len(packet)-TagSize:])
	for i := range head {
		packet[i] = s.header[i] ^ s.mask[i]
	}
	return nil
}

// Open opens a packet in place, whose header is h, and returns its content and its
// number. A packet that does not open is destroyed. The caller compares the number with
// those it has seen before. The error is ErrForged, or from some time on ErrExhausted.
func (k *SessionKeys) Open(packet []byte, h *PresharedHeader) (content []byte, number uint64, err error) {
	o := &k.open
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.forged >= integrityLimit {
		return nil, 0, ErrExhausted
	}
	number = ExpandBits(h.word&numberMask, numberBits, o.next)
	key, err := k.keyOf(number, h.word>>chachaShift != 0)
	if err != nil {
		return nil, 0, err
	}
	o.prepare(key, number, h.Form, k.conv)
	head := wordSize + idSize
	if h.Form == Nameless {
		head = wordSize
	}
	sealed := packet[head:]
	plain, err := key.aead.Open(sealed[:0], o.nonce[:], sealed, o.header[:])
	if err != nil || h.Form == Framed && len(plain) < framedAt {
		o.forged++
		return nil, 0, ErrForged
	}
	if key != &o.keys[0] && (number >= o.next || o.keys[0].aead == nil) {
		o.keys[0], o.keys[1] = o.keys[1], o.keys[0]
	}
	o.next = max(o.next, number+1)
	content = packet[wordSize : len(packet)-TagSize]
	switch h.Form {
	case Leading:
		binary.LittleEndian.PutUint32(content, k.conv)
	case Framed:
		copy(content, plain[:framedAt])
		binary.LittleEndian.PutUint32(content[framedAt:], k.conv)
	}
	return content, number, nil
}

// keyOf returns the key of a packet that has arrived. Only the span of the latest packet
// and those beside it are in question: numbers from farther away are forged. What is
// derived for a packet that may be forged leaves the key of the latest one in place.
// k.open.mu is held.
func (k *SessionKeys) keyOf(number uint64, chacha bool) (*numberedKey, error) {
	o := &k.open
	span, latest := number>>keyBits, o.next>>keyBits
	if span > latest+1 || span+1 < latest {
		o.forged++
		return nil, ErrForged
	}
	for i := range o.keys {
		if o.keys[i].is(span, chacha) {
			return &o.keys[i], nil
		}
	}
	made, err := k.from.key(k.conv, k.peers, k.ours, span, chacha)
	if err != nil {
		return nil, err
	}
	o.keys[1] = made
	return &o.keys[1], nil
}

// Next returns the number of the next packet that is sealed.
func (k *SessionKeys) Next() uint64 {
	k.seal.mu.Lock()
	defer k.seal.mu.Unlock()
	return k.seal.next
}

// Skip sets the number of the next packet sealed to next, and the number that is expected
// next to after; 0 leaves it as it is. Tests come to other keys so.
func (k *SessionKeys) Skip(next, after uint64) {
	if next != 0 {
		k.seal.mu.Lock()
		k.seal.next = next
		k.seal.mu.Unlock()
	}
	if after != 0 {
		k.open.mu.Lock()
		k.open.next = after
		k.open.mu.Unlock()
	}
}

// Compact releases what can be derived again when a packet is sealed or opened, which is
// most of the memory of k.
func (k *SessionKeys) Compact() {
	k.seal.mu.Lock()
	k.seal.key.aead = nil
	k.seal.mu.Unlock()
	k.open.mu.Lock()
	k.open.keys = [2]numberedKey{}
	k.open.mu.Unlock()
}
