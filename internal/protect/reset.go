package protect

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"io"
)

// Stateless reset (RFC 9000 §10.3, WIRE.md §8.6). An endpoint that has no state
// of a session proves that it once had: it derives a key from what any packet of
// the session shows and from a secret of its own, and tells that key to its peer
// while there is a session.
//
// The conversation id is the client's choice, and travels in the clear. So anyone
// on the path could have an endpoint make a reset before the session begins, and
// send it later. That is why a reset says when it was made: it is good only if
// that was after the key was told.

const (
	// MinReset and MaxReset are the sizes of a stateless reset, in bytes. A
	// packet of segments is larger than MaxReset, so that a reset may be smaller
	// than what it answers, and is never answered itself.
	MinReset = HeaderSize + 16 + TagSize
	MaxReset = KeyedOverhead + 23
	// ResetKeySize is the size of the part of a ResetKey that is a key, in bytes.
	ResetKeySize = 16

	// labelReset separates this use of a secret from others.
	labelReset = "kcp stateless reset"
)

// ResetKey makes the stateless resets of a session for one of its ends, and
// recognises them.
type ResetKey struct {
	Key  [ResetKeySize]byte // of HMAC-SHA256
	Mask uint32             // hides when a reset was made, and need not be kept secret
}

// NewResetKey derives the key of a session from a secret. session is whatever
// tells the session from others.
func NewResetKey(secret, session []byte) (k ResetKey) {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(labelReset))
	h.Write(session)
	sum := h.Sum(make([]byte, 0, sha256.Size))
	copy(k.Key[:], sum)
	k.Mask = binary.LittleEndian.Uint32(sum[ResetKeySize:])
	return k
}

// Reset fills packet, of MinReset to MaxReset bytes, with a stateless reset of
// the conversation that is made at a time in seconds. It looks like a packet
// under the application keys. random must not fail.
func (k *ResetKey) Reset(random io.Reader, packet []byte, conv, now uint32) {
	_, _ = io.ReadFull(random, packet[typeAt:]) // cannot fail
	binary.LittleEndian.PutUint32(packet, conv)
	packet[typeAt] = typeApplication0 | packet[typeAt]&1
	binary.LittleEndian.PutUint32(packet[numberAt:], now^k.Mask)
	body, tag := packet[:len(packet)-TagSize], packet[len(packet)-TagSize:]
	copy(tag, k.tag(body))
}

// Opens reports whether packet is a reset that was made with k after a time in
// seconds. It compares in constant time.
func (k *ResetKey) Opens(packet []byte, after uint32) bool {
	if len(packet) < MinReset || len(packet) > MaxReset || LevelOf(packet) != Application {
		return false
	}
	body, tag := packet[:len(packet)-TagSize], packet[len(packet)-TagSize:]
	if subtle.ConstantTimeCompare(k.tag(body), tag) == 0 {
		return false
	}
	made := binary.LittleEndian.Uint32(packet[numberAt:]) ^ k.Mask
	return int32(made-after) > 0
}

// tag returns the last bytes of a reset that begins with body.
func (k *ResetKey) tag(body []byte) []byte {
	h := hmac.New(sha256.New, k.Key[:])
	h.Write(body)
	return h.Sum(make([]byte, 0, sha256.Size))[:TagSize]
}
