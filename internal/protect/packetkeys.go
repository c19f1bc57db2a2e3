package protect

import (
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"math"
	"sync"
	"sync/atomic"
)

// Packets are protected with the secrets of a TLS 1.3 handshake, as QUIC does (RFC 9001 §5
// and §6): keys for each direction, nonces made of packet numbers, and key updates that a
// bit in the header announces. The layout of packets and the labels are as in WIRE.md §8.

// Layout of a protected packet: conversation id, type, packet number, sealed
// content, tag. Integers are little-endian. The header is additional data.
const (
	HeaderSize    = 9  // bytes before the content
	TagSize       = 16 // bytes behind the content
	KeyedOverhead = HeaderSize + TagSize
	// NonceSize is how many bytes more a packet with a nonce of its own has. The
	// nonce lies between header and content.
	NonceSize = 12

	typeAt   = 4 // offset of the type byte
	numberAt = 5 // offset of the truncated packet number
)

// Types of packets. No command of a segment and no type of an FEC header has
// such a byte in that place.
const (
	typeHandshake    byte = 0xa1
	typeApplication0 byte = 0xa2 // key phase 0
	typeApplication1 byte = 0xa3 // key phase 1

	// ownNonce is set in the type of a packet with a nonce of its own.
	ownNonce byte = 0x08
)

// Level is the encryption level of a protected packet (RFC 9001 §2.1).
type Level uint8

const (
	Clear       Level = iota // not protected
	Handshake                // under the handshake secrets
	Application              // under the application secrets
)

// LevelOf returns the level of a packet by its type byte. It returns Clear for a
// packet that is too short to have one, or of no known type.
func LevelOf(packet []byte) Level {
	if len(packet) < KeyedOverhead {
		return Clear
	}
	switch packet[typeAt] &^ ownNonce {
	case typeHandshake:
		return Handshake
	case typeApplication0, typeApplication1:
		return Application
	}
	return Clear
}

// Limits of the AEADs (RFC 9001 §6.6).
const (
	// updateAfter is how many packets are sealed with a key before the next one
	// is used: half of what AES-GCM permits for packets of up to 2^16 bytes.
	updateAfter = 1 << 22
	// confidentialityLimit is how many packets may be sealed with a key.
	confidentialityLimit = 1 << 23
	// integrityLimit is how many packets may fail to open, under all keys of a
	// direction together: the limit of ChaCha20-Poly1305, AES-GCM's is
	// 2^52.
	integrityLimit = 1 << 36
	// lastNumber is the highest packet number that is used (RFC 9000 §12.3).
	lastNumber = MaxNumber
)

var (
	// ErrNotReady means that the secret of that direction is not known yet.
	ErrNotReady = errors.New("protect: no key yet")
	// ErrForged means that a packet does not open: it was forged or damaged.
	ErrForged = errors.New("protect: packet fails authentication")
	// ErrExhausted means that the keys must not be used any more (RFC 9001
	// §6.6).
	ErrExhausted = errors.New("protect: the keys are used up")
	// ErrTooFast means that the peer has changed its keys twice, and this end has
	// not followed in between (KEY_UPDATE_ERROR, RFC 9001 §6.2).
	ErrTooFast = errors.New("protect: the peer updates its keys too fast")
)

// PacketKeys seals the packets of one end of a session, and opens the other end's,
// at one encryption level. The zero value has no secrets yet; Init comes before
// all else. All methods are safe for concurrent use.
type PacketKeys struct {
	conv   uint32 // immutable after Init, as are level and own
	level  Level
	own    bool          // nonces are random, and in the packets sealed
	opened atomic.Uint64 // generation of the newest key that has opened a packet
	sealed atomic.Uint64 // generation of the key for sending

	seal sealer
	open opener
}

// sealer is the sending direction of Keys.
type sealer struct {
	mu         sync.Mutex // guards the fields below, and is held while a packet is sealed
	key        key
	next       uint64 // packet number
	generation uint64 // of key; its lowest bit is the key phase
	count      uint32 // packets sealed with key
	update     uint32 // packets until a key update
	limit      uint32 // packets until key is used up
	nonce      [NonceSize]byte
}

// opener is the receiving direction of Keys.
type opener struct {
	mu         sync.Mutex // guards the fields below, and is held while a packet is opened
	key        key        // of the present generation
	other      *key       // of the generation before, or of the one after; see choose. nil: none
	generation uint64     // of key
	first      uint64     // lowest number of a packet that key has opened
	next       uint64     // one more than the highest number of an authentic packet
	forged     uint64     // packets that did not open
	limit      uint64     // of forged
	ahead      bool       // other is of the generation after
	nonce      [NonceSize]byte
	scratch    []byte // a packet behind its nonce, for keys that make nonces of their own
}

// Init prepares k for packets of a conversation, at the level Handshake or
// Application. own says that packets are sealed with random nonces of their own;
// see OwnNonces. Packets of either kind are opened.
func (k *PacketKeys) Init(conv uint32, level Level, own bool) {
	k.conv, k.level, k.own = conv, level, own
	k.seal.update, k.seal.limit = updateAfter, confidentialityLimit
	k.open.limit = integrityLimit
}

// SetSealSecret sets the secret of the packets sent. suite is a cipher suite of
// TLS 1.3. It must be called once at most.
func (k *PacketKeys) SetSealSecret(suite uint16, secret []byte) error {
	key, err := newKey(suite, secret, k.own)
	if err != nil {
		return err
	}
	k.seal.mu.Lock()
	defer k.seal.mu.Unlock()
	k.seal.key = key
	return nil
}

// SetOpenSecret sets the secret of the packets received, as SetSealSecret does
// for those sent.
func (k *PacketKeys) SetOpenSecret(suite uint16, secret []byte) error {
	key, err := newKey(suite, secret, k.own)
	if err != nil {
		return err
	}
	k.open.mu.Lock()
	defer k.open.mu.Unlock()
	k.open.key, k.open.first = key, math.MaxUint64
	return nil
}

// Opens reports whether packets of the peer can be opened.
func (k *PacketKeys) Opens() bool {
	k.open.mu.Lock()
	defer k.open.mu.Unlock()
	return k.open.key.secret != nil
}

// Seals reports whether packets can be sealed.
func (k *PacketKeys) Seals() bool {
	k.seal.mu.Lock()
	defer k.seal.mu.Unlock()
	return k.seal.key.secret != nil
}

// Compact releases what can be derived again when a packet is sealed or opened,
// which is most of the memory of k.
func (k *PacketKeys) Compact() {
	k.seal.mu.Lock()
	k.seal.key.aead = nil
	k.seal.mu.Unlock()
	k.open.mu.Lock()
	k.open.key.aead, k.open.scratch = nil, nil
	if k.open.other != nil {
		k.open.other.aead = nil
	}
	k.open.mu.Unlock()
}

// SetUpdateAfter sets how many packets are sealed with a key before the next one is
// used; 0 stands for none, so that each is under a new key, if the peer follows.
// Tests shorten it.
func (k *PacketKeys) SetUpdateAfter(packets uint32) {
	k.seal.mu.Lock()
	defer k.seal.mu.Unlock()
	k.seal.update = packets
}

// Update changes the keys for sending at once. A peer refuses what is sealed after
// a second call if it has not sealed anything in between.
func (k *PacketKeys) Update() error {
	k.seal.mu.Lock()
	defer k.seal.mu.Unlock()
	if k.seal.key.secret == nil {
		return ErrNotReady
	}
	return k.advanceLocked()
}

// advanceLocked changes the keys for sending. k.seal.mu is held.
func (k *PacketKeys) advanceLocked() error {
	if err := k.seal.advance(); err != nil {
		return err
	}
	k.sealed.Store(k.seal.generation)
	return nil
}

// Seal seals a packet in place under the next packet number. Its content lies
// between HeaderSize bytes in front and TagSize bytes behind, which Seal sets;
// with nonces of their own, NonceSize bytes more lie behind.
// Packets leave under a new key when the peer's do (RFC 9001 §6.1), or when
// enough were sealed with the present one.
func (k *PacketKeys) Seal(packet []byte) error {
	return k.SealFrom(packet, k.Content(packet))
}

// Content returns the place of the content in a packet to be sealed.
func (k *PacketKeys) Content(packet []byte) []byte {
	tail := TagSize
	if k.own {
		tail += NonceSize
	}
	return packet[HeaderSize : len(packet)-tail]
}

// SealFrom is Seal for a content that is not in the packet, and stays as it is.
func (k *PacketKeys) SealFrom(packet, content []byte) error {
	s := &k.seal
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.key.secret == nil {
		return ErrNotReady
	}
	opened := k.opened.Load()
	if opened > s.generation || opened == s.generation && s.count >= s.update {
		if err := k.advanceLocked(); err != nil {
			return err
		}
	}
	if s.count >= s.limit || s.next > lastNumber {
		return ErrExhausted
	}
	number := s.next
	s.next, s.count = s.next+1, s.count+1
	binary.LittleEndian.PutUint32(packet, k.conv)
	packet[typeAt] = k.typeByte(s.generation)
	binary.LittleEndian.PutUint32(packet[numberAt:], uint32(number))
	if err := s.key.prepare(); err != nil {
		return err
	}
	if k.own {
		packet[typeAt] |= ownNonce
		s.key.aead.Seal(packet[HeaderSize:HeaderSize], nil, content, packet[:HeaderSize])
		return nil
	}
	s.key.nonce(&s.nonce, number)
	s.key.aead.Seal(packet[HeaderSize:HeaderSize], s.nonce[:], content, packet[:HeaderSize])
	return nil
}

// advance replaces the key by the next one (key update, RFC 9001 §6).
func (s *sealer) advance() error {
	next, err := s.key.following()
	if err != nil {
		return err
	}
	s.key, s.count, s.generation = next, 0, s.generation+1
	return nil
}

// typeByte returns the type byte of packets of a key generation.
func (k *PacketKeys) typeByte(generation uint64) byte {
	switch {
	case k.level == Handshake:
		return typeHandshake
	case generation%2 == 0:
		return typeApplication0
	}
	return typeApplication1
}

// Open opens a packet in place, and returns its content and its number. The
// content of a packet that does not open is destroyed. The caller compares the
// number with those it has seen before: Open takes a packet as often as it
// comes.
//
// The error is ErrNotReady without a secret, ErrForged for what does not open,
// and ErrExhausted from then on when too much did not open. It is ErrTooFast for a
// packet under keys that the peer must not use yet.
func (k *PacketKeys) Open(packet []byte) (content []byte, number uint64, err error) {
	o := &k.open
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.key.secret == nil:
		return nil, 0, ErrNotReady
	case o.forged >= o.limit:
		return nil, 0, ErrExhausted
	case len(packet) < KeyedOverhead || LevelOf(packet) != k.level:
		return nil, 0, ErrForged
	}
	number = Expand(binary.LittleEndian.Uint32(packet[numberAt:]), o.next)
	used, generation, err := o.choose(packet[typeAt]&^ownNonce, number)
	if err == nil {
		err = used.prepare()
	}
	if err != nil {
		return nil, 0, err
	}
	if content, err = o.openWith(used, packet, number); err != nil {
		if o.forged++; o.forged >= o.limit {
			return nil, 0, ErrExhausted
		}
		return nil, 0, ErrForged
	}
	if generation > o.generation && k.sealed.Load() < o.generation {
		return nil, 0, ErrTooFast
	}
	o.next = max(o.next, number+1)
	if generation > o.generation {
		before := o.key
		o.key, o.other, o.ahead = *o.other, &before, false
		o.generation, o.first = generation, number
		k.opened.Store(generation)
	} else if generation == o.generation {
		o.first = min(o.first, number)
	}
	return content, number, nil
}

// openWith opens a packet with a key.
func (o *opener) openWith(k *key, packet []byte, number uint64) ([]byte, error) {
	header, sealed := packet[:HeaderSize], packet[HeaderSize:]
	own := packet[typeAt]&ownNonce != 0
	switch {
	case own && len(sealed) < NonceSize+TagSize:
		return nil, ErrForged
	case own && k.own:
		return k.aead.Open(sealed[:0], nil, sealed, header)
	case own:
		nonce, sealed := sealed[:NonceSize], sealed[NonceSize:]
		return k.aead.Open(sealed[:0], nonce, sealed, header)
	}
	k.nonce(&o.nonce, number)
	if k.own { // such an AEAD takes a nonce in front
		o.scratch = append(append(o.scratch[:0], o.nonce[:]...), sealed...)
		return k.aead.Open(sealed[:0], nil, o.scratch, header)
	}
	return k.aead.Open(sealed[:0], o.nonce[:], sealed, header)
}

// choose returns the key of a packet, by its key phase and number (RFC 9001
// §6.3 and §6.5). In the other phase, a packet with a number below all of the
// present generation is of the generation before; any other is the first of the
// next. Only one of the two keys is held: the one that was needed last.
func (o *opener) choose(kind byte, number uint64) (*key, uint64, error) {
	if kind == typeHandshake || kind-typeApplication0 == byte(o.generation%2) {
		return &o.key, o.generation, nil
	}
	wanted, ahead := o.generation+1, true
	if number < o.first && o.generation > 0 {
		wanted, ahead = o.generation-1, false
	}
	if o.other != nil && o.ahead == ahead {
		return o.other, wanted, nil
	}
	if !ahead {
		return nil, 0, ErrForged // that key is gone
	}
	next, err := o.key.following()
	if err != nil {
		return nil, 0, err
	}
	o.other, o.ahead = &next, true
	return o.other, wanted, nil
}

// Generations returns how many key updates each direction has seen.
func (k *PacketKeys) Generations() (sent, received uint64) {
	k.seal.mu.Lock()
	defer k.seal.mu.Unlock()
	return k.seal.generation, k.opened.Load()
}

// key is the keys of one direction and generation.
type key struct {
	secret []byte      // nil: not known yet
	aead   cipher.AEAD // nil: to be derived
	iv     [NonceSize]byte
	suite  uint16
	own    bool // aead draws nonces, and puts them in front of what it seals
}

// prepare derives what Compact has released.
func (k *key) prepare() (err error) {
	if k.aead == nil {
		*k, err = derive(k.suite, k.secret, k.own)
	}
	return err
}

// nonce sets b to the nonce of a packet: the iv, with the number XORed into its
// end (RFC 9001 §5.3).
func (k *key) nonce(b *[NonceSize]byte, number uint64) {
	*b = k.iv
	tail := b[NonceSize-8:]
	binary.BigEndian.PutUint64(tail, binary.BigEndian.Uint64(tail)^number)
}
