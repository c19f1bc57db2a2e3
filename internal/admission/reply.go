package admission

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"io"
	"net/netip"
	"time"
)

// Cookies makes and checks cookies. A cookie validates that a peer receives what
// is sent to its address (RFC 9000 §8.1), and the endpoint keeps no state for it.
type Cookies struct {
	Random io.Reader     // of the secret; it must not fail
	secret [32]byte      // random
	mac    hash.Hash     // HMAC with secret; nil before the first use
	text   []byte        // scratch space for the MAC
	ahead  time.Duration // what Adopt adds to times
}

// Secret returns the secret of the cookies, for Adopt.
func (c *Cookies) Secret() []byte {
	c.init()
	return c.secret[:]
}

// Clock returns the time of the cookies now, for Adopt.
func (c *Cookies) Clock(now time.Duration) time.Duration { return now + c.ahead }

// Adopt makes the cookies the same as another endpoint's, whose Clock is ahead of the
// time here. More than a century either way counts as that: no time comes around.
func (c *Cookies) Adopt(secret []byte, ahead time.Duration) {
	const most = 100 * 365 * 24 * time.Hour
	copy(c.secret[:], secret)
	c.mac, c.ahead = hmac.New(sha256.New, c.secret[:]), min(max(ahead, -most), most)
}

// init draws the secret before the first use.
func (c *Cookies) init() {
	if c.mac == nil {
		_, _ = io.ReadFull(c.Random, c.secret[:])
		c.mac = hmac.New(sha256.New, c.secret[:])
	}
}

// Cookie is a MAC of a key, a token and a period of time.
type Cookie [2]uint32

// CookieTime is the least time for which a cookie is valid. The most is twice
// that.
const CookieTime = 10 * time.Second

// Mint returns the cookie for a key and a token now.
func (c *Cookies) Mint(key Key, token uint32, now time.Duration) Cookie {
	return c.at(key, netip.Addr{}, token, int64(c.Clock(now)/CookieTime))
}

// Valid reports whether Mint has returned cookie for key and token, in this period
// or the one before.
func (c *Cookies) Valid(cookie Cookie, key Key, token uint32, now time.Duration) bool {
	period := int64(c.Clock(now) / CookieTime)
	return cookie == c.at(key, netip.Addr{}, token, period) || cookie == c.at(key, netip.Addr{}, token, period-1)
}

// shown reports whether a HELLO with a token comes with the cookie of its address.
func (c *Cookies) shown(p *First, token uint32, now time.Duration) bool {
	return c.Valid(Cookie{p.Cookie.SN, p.Cookie.TS}, p.Key, token, now)
}

// Challenge returns a cookie that Valid never takes, for path validation (RFC 9000
// §8.2). The path is from local, if that is valid, to the address of key. The challenge
// is the same for as long as a cookie is.
func (c *Cookies) Challenge(key Key, local netip.Addr, token uint32, at time.Duration) Cookie {
	return c.at(key, local, token, ^int64(at/CookieTime))
}

// at returns the cookie of a period.
func (c *Cookies) at(key Key, local netip.Addr, token uint32, period int64) Cookie {
	c.init()
	text := binary.LittleEndian.AppendUint64(c.text[:0], uint64(period))
	text = binary.LittleEndian.AppendUint32(text, key.Conv)
	text = binary.LittleEndian.AppendUint32(text, token)
	text = binary.LittleEndian.AppendUint16(text, key.Addr.Port())
	ip := key.Addr.Addr().As16()
	text = append(append(append(text, ip[:]...), key.Addr.Addr().Zone()...), key.Peer...)
	if local.IsValid() {
		ip := local.As16()
		text = append(append(text, ip[:]...), local.Zone()...)
	}
	c.mac.Reset()
	c.mac.Write(text)
	c.text = c.mac.Sum(text[:0])
	return Cookie{binary.LittleEndian.Uint32(c.text), binary.LittleEndian.Uint32(c.text[4:])}
}

// Bucket is a token bucket. Its capacity is the tokens of a tenth of a second.
// The zero value is full.
type Bucket struct {
	used float64       // tokens that are missing
	last time.Duration // of the last Take
}

// Take takes a token, of which there are rate a second. It reports false if none
// is left.
func (b *Bucket) Take(now time.Duration, rate float64) bool {
	b.used = max(0, b.used-(now-b.last).Seconds()*rate)
	b.last = now
	if b.used >= rate/10 {
		return false
	}
	b.used++
	return true
}
