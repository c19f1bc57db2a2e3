package kcp

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"time"
)

// cookieKey makes and checks cookies, which prove that a peer gets what is sent
// to its address without any state being kept for it.
type cookieKey struct {
	mac  hash.Hash // of a secret; nil before the first use
	text []byte
}

// mint returns the cookie for a hello.
func (k *cookieKey) mint(key sessionKey, token uint32, now time.Duration) signal {
	return k.at(key, token, int64(now/cookieTime))
}

func (k *cookieKey) at(key sessionKey, token uint32, period int64) signal {
	if k.mac == nil {
		var secret [32]byte
		_, _ = rand.Read(secret[:]) // cannot fail
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

// valid reports whether the first packet f shows a cookie of ours.
func (k *cookieKey) valid(key sessionKey, f initialPacket, now time.Duration) bool {
	if f.cookie.code == 0 {
		return false
	}
	period := int64(now / cookieTime)
	return f.cookie == k.at(key, f.hello.ts, period) || f.cookie == k.at(key, f.hello.ts, period-1)
}

// cookieTime is how long a cookie is good for, at least; at most twice as long.
const cookieTime = 10 * time.Second
