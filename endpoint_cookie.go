package kcp

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"time"
)

// cookieKey makes and checks cookies. A cookie validates that a peer receives
// what is sent to its address (RFC 9000 §8.1), and the endpoint keeps no state
// for it. Endpoint.mu guards it.
type cookieKey struct {
	random *repetition // immutable
	mac    hash.Hash   // HMAC with a random secret; nil before the first use
	text   []byte      // scratch space for the MAC
}

// mint returns the cookie for the HELLO with the given token.
func (k *cookieKey) mint(key sessionKey, token uint32, now time.Duration) signal {
	return k.at(key, token, int64(now/cookieTime))
}

// at returns the cookie for a key and a token in a period of time: a MAC of all
// three.
func (k *cookieKey) at(key sessionKey, token uint32, period int64) signal {
	if k.mac == nil {
		var secret [32]byte
		_, _ = k.random.Read(secret[:]) // cannot fail
		k.mac = hmac.New(sha256.New, secret[:])
	}
	text := binary.LittleEndian.AppendUint64(k.text[:0], uint64(period))
	text = binary.LittleEndian.AppendUint32(text, key.conv)
	text = binary.LittleEndian.AppendUint32(text, token)
	text = binary.LittleEndian.AppendUint16(text, key.addr.Port())
	ip := key.addr.Addr().As16()
	text = append(append(append(text, ip[:]...), key.addr.Addr().Zone()...), key.peer...)
	k.mac.Reset()
	k.mac.Write(text)
	k.text = k.mac.Sum(text[:0])
	tag := k.text
	return signal{sigCookie, binary.LittleEndian.Uint32(tag), binary.LittleEndian.Uint32(tag[4:])}
}

// valid reports whether the first packet f contains a cookie that this endpoint
// has minted for key, in this period or the one before.
func (k *cookieKey) valid(key sessionKey, f initialPacket, now time.Duration) bool {
	if f.cookie.code == 0 {
		return false
	}
	period := int64(now / cookieTime)
	return f.cookie == k.at(key, f.hello.ts, period) || f.cookie == k.at(key, f.hello.ts, period-1)
}

// cookieTime is the least time for which a cookie is valid. The most is twice
// that.
const cookieTime = 10 * time.Second
