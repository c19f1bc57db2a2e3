package fuzz_test

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"hash"
	"strings"
	"sync"

	"golang.org/x/crypto/chacha20poly1305"
)

// TLS, known to an attacker that has the secrets of the sessions: packets under
// them (WIRE.md §8, written down here a second time), and what is forged in them.

// Levels of protected packets, and their types.
const (
	levelHandshake   = 0
	levelApplication = 1
	levels           = 2

	typeHandshake   = 0xa1
	typeApplication = 0xa2 // in key phase 0

	tlsHeader   = 9
	tlsOverhead = tlsHeader + 16
)

// Signals of TLS.
const (
	sigCrypto   = 12
	sigAlert    = 13
	sigResetKey = 14
)

// keyLog is told the secrets of all sessions by the ends that have dialled
// (tls.Config.KeyLogWriter).
type keyLog struct {
	mu       sync.Mutex
	sessions map[string]*secrets // by the random number of the client
	unused   []*secrets          // of sessions that were not seen yet
}

// secrets are those of a session, by level and end. 0 has dialled.
type secrets [levels][2][]byte

// Write takes one line.
func (k *keyLog) Write(line []byte) (int, error) {
	fields := strings.Fields(string(line))
	places := map[string][2]int{
		"CLIENT_HANDSHAKE_TRAFFIC_SECRET": {levelHandshake, 0},
		"SERVER_HANDSHAKE_TRAFFIC_SECRET": {levelHandshake, 1},
		"CLIENT_TRAFFIC_SECRET_0":         {levelApplication, 0},
		"SERVER_TRAFFIC_SECRET_0":         {levelApplication, 1},
	}
	place, ok := places[fields[0]]
	if !ok {
		return len(line), nil
	}
	secret, err := hex.DecodeString(fields[2])
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.sessions[fields[1]]
	if s == nil {
		s = new(secrets)
		k.sessions[fields[1]] = s
		k.unused = append(k.unused, s)
	}
	s[place[0]][place[1]] = secret
	return len(line), err
}

// secret returns that of a level and an end of s; nil if it is not known yet.
func (k *keyLog) secret(s *secrets, level, end int) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	return s[level][end]
}

// protection is that of the packets of one end at one level.
type protection struct {
	generations []*packetKey // by how many key updates came before
	newest      int          // generation that was seen
	next        uint64       // behind the highest packet number, seen or used
}

// packetKey protects packets under one secret.
type packetKey struct {
	secret []byte
	hash   func() hash.Hash
	chacha bool
	aead   cipher.AEAD
	iv     []byte
}

// newPacketKey derives the keys of a secret. chacha stands for the other of the
// cipher suites with a secret of 32 bytes.
func newPacketKey(secret []byte, chacha bool) *packetKey {
	k := &packetKey{secret: secret, hash: sha256.New, chacha: chacha}
	size := 16
	if chacha {
		size = 32
	}
	if len(secret) == 48 {
		k.hash, size = sha512.New384, 32
	}
	key := k.expand("kcp key", size)
	k.iv = k.expand("kcp iv", 12)
	if chacha {
		k.aead, _ = chacha20poly1305.New(key)
		return k
	}
	block, _ := aes.NewCipher(key)
	k.aead, _ = cipher.NewGCM(block)
	return k
}

// expand is HKDF-Expand-Label.
func (k *packetKey) expand(label string, n int) []byte {
	label = "tls13 " + label
	info := append([]byte{byte(n >> 8), byte(n), byte(len(label))}, label...)
	b, err := hkdf.Expand(k.hash, k.secret, string(append(info, 0)), n)
	if err != nil {
		panic(err)
	}
	return b
}

// nonce returns that of a packet number.
func (k *packetKey) nonce(number uint64) []byte {
	n := append([]byte(nil), k.iv...)
	for i := range 8 {
		n[11-i] ^= byte(number >> (8 * i))
	}
	return n
}

// generation returns the keys after so many key updates.
func (p *protection) generation(n int) *packetKey {
	for len(p.generations) <= n {
		last := p.generations[len(p.generations)-1]
		p.generations = append(p.generations, newPacketKey(last.expand("kcp ku", last.hash().Size()), last.chacha))
	}
	return p.generations[n]
}

// open returns the content of a packet; nil if it does not open.
func (p *protection) open(packet []byte) []byte {
	number := p.next&^(1<<32-1) | uint64(le.Uint32(packet[5:]))
	if ahead(uint32(number), uint32(p.next)) > 0 && number < p.next {
		number += 1 << 32
	}
	for g := max(p.newest-16, 0); g <= p.newest+1; g++ { // the end itself may be behind
		if packet[4] != typeHandshake && packet[4] != typeApplication+byte(g%2) {
			continue
		}
		k := p.generation(g)
		content, err := k.aead.Open(nil, k.nonce(number), packet[tlsHeader:], packet[:tlsHeader])
		if err == nil {
			p.newest, p.next = max(p.newest, g), max(p.next, number+1)
			return content
		}
	}
	return nil
}

// seal makes a packet, under the key of a generation.
func (p *protection) seal(conv uint32, kind byte, generation int, number uint64, content []byte) []byte {
	packet := le.AppendUint32(nil, conv)
	packet = append(packet, kind)
	packet = le.AppendUint32(packet, uint32(number))
	k := p.generation(generation)
	return k.aead.Seal(packet, k.nonce(number), content, packet)
}

// openTLS returns the content of a packet of an end of c, and its level. It is -1
// for a packet of the handshake before there are keys.
func (k *keyLog) openTLS(c *conversationSeen, end int, packet []byte) (content []byte, level int) {
	if len(packet) < tlsOverhead {
		return nil, -1
	}
	switch packet[4] {
	case typeHandshake:
		level = levelHandshake
	case typeApplication, typeApplication + 1:
		level = levelApplication
	default:
		return openInitial(packet), -1
	}
	if c.secrets == nil {
		k.find(c, end, level, packet)
	}
	if p := k.protection(c, end, level); p != nil {
		return p.open(packet), level
	}
	return nil, level
}

// openInitial returns the content of a packet of the handshake before there are
// keys.
func openInitial(packet []byte) []byte { return append([]byte(nil), packet...) }

// sealInitial is the reverse of openInitial.
func sealInitial(content []byte) []byte { return content }

// find finds the secrets of c: those that open the packet.
func (k *keyLog) find(c *conversationSeen, end, level int, packet []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, s := range k.unused {
		if s[level][end] == nil {
			continue
		}
		for _, chacha := range []bool{false, len(s[level][end]) == 32} {
			p := protection{generations: []*packetKey{newPacketKey(s[level][end], chacha)}}
			if p.open(packet) != nil {
				c.secrets, c.chacha = s, chacha
				k.unused = append(k.unused[:i], k.unused[i+1:]...)
				return
			}
		}
	}
}

// protection returns that of an end of c at a level; nil if it is not known.
func (k *keyLog) protection(c *conversationSeen, end, level int) *protection {
	if c.secrets == nil {
		return nil
	}
	known := &c.ends[end].tls[level]
	if *known == nil {
		if s := k.secret(c.secrets, level, end); s != nil {
			*known = &protection{generations: []*packetKey{newPacketKey(s, c.chacha)}}
		}
	}
	return *known
}

// sealTLS seals a packet in the name of an end of c; nil if no keys are known.
func (a *attacker) sealTLS(c *conversationSeen, end, level int, content []byte) []byte {
	p := a.wire.tls.protection(c, end, level)
	if p == nil {
		return nil
	}
	number := p.next
	switch a.random.IntN(40) {
	case 0: // far ahead: what the end itself sends is old then
		if a.lethal {
			number += uint64(1) << a.random.IntN(62)
		}
	case 1: // seen before, perhaps
		number -= min(number, uint64(a.random.IntN(3000)))
	default:
		number = max(number, uint64(c.lead))
		p.next = number + 1
	}
	if level == levelHandshake {
		return p.seal(c.conv, typeHandshake, 0, number, content)
	}
	generation := p.newest
	switch a.random.IntN(60) {
	case 0:
		generation = p.newest + 1 // a key update
		p.newest = generation
	case 1:
		generation = max(0, p.newest-1)
	case 2:
		if a.lethal {
			generation += a.random.IntN(4)
		}
	}
	return p.seal(c.conv, typeApplication+byte(generation%2), generation, number, content)
}

// flight makes a packet of the handshake, for the end d of c.
func (a *attacker) flight(c *conversationSeen, d, level int) []byte {
	self, target := &c.ends[other(d)], &c.ends[d]
	var p []byte
	if level < 0 {
		if d == 1 {
			p = a.hello(c, p)
		} else {
			p = segment{conv: c.conv, cmd: cmdWins, frg: sigHello | sigAnswer, wnd: 128, sn: self.token, ts: target.token}.put(p)
			p = segment{conv: c.conv, cmd: cmdWins, frg: sigInfo, wnd: 128, sn: 1, ts: a.capabilities()}.put(p)
		}
	}
	if a.random.IntN(12) == 0 && (a.lethal || a.random.IntN(8) == 0) {
		g := segment{conv: c.conv, cmd: cmdWins, frg: sigAlert, sn: a.near(0, 40, 256), ts: target.token}
		return g.put(p)
	}
	for range 1 + a.random.IntN(8)/7 {
		g := segment{conv: c.conv, cmd: cmdWins, frg: sigCrypto, wnd: 128}
		a.crypto(&g, self, target)
		p = g.put(p)
	}
	if level < 0 && d == 1 && len(p) < 1200 && a.random.IntN(8) > 0 {
		pad := uint32(1200 - len(p))
		at := len(p) - int(segments(p)[len(segments(p))-1].size) - 4
		le.PutUint32(p[at:], le.Uint32(p[at:])+pad)
		p = append(p, make([]byte, pad)...)
	}
	return p
}

// crypto gives a CRYPTO segment its bytes: some that were seen, or others.
func (a *attacker) crypto(g *segment, self, target *speaker) {
	switch n := len(self.crypto); {
	case n > 0 && a.random.IntN(3) > 0:
		seen := self.crypto[a.random.IntN(n)]
		g.sn, g.una, g.payload = seen.sn, seen.una, append([]byte(nil), seen.payload...)
	case a.random.IntN(2) == 0: // the head of a message
		g.payload = append([]byte{byte(a.random.IntN(25)), 0, byte(a.random.IntN(256)), 0}, a.payload()...)
	default:
		g.payload = a.payload()
	}
	if len(g.payload) > 1000 {
		g.payload = g.payload[:1000]
	}
	g.ts = uint32(len(g.payload))
	switch a.random.IntN(6) {
	case 0:
		g.sn = a.near(g.sn, g.sn+uint32(a.random.IntN(70000)), 16384, 65536)
	case 1:
		g.una = a.near(g.una, uint32(a.random.IntN(2000)))
	case 2:
		g.ts = a.near(g.ts)
	case 3:
		g.payload = a.mutate(g.payload)
		g.ts = uint32(len(g.payload))
	}
}

// seesTLS takes note of a signal of TLS.
func (s *speaker) seesTLS(g segment) {
	switch g.frg {
	case sigCrypto:
		if len(s.crypto) == 8 {
			s.crypto = s.crypto[1:]
		}
		g.payload = append([]byte(nil), g.payload[:min(int(g.ts), len(g.payload))]...)
		s.crypto = append(s.crypto, g)
	case sigResetKey:
		g.payload = append([]byte(nil), g.payload...)
		s.resetKey = &g
	}
}

// statelessReset makes a stateless reset in the name of an end of c, which is real if
// its key has been seen.
func (a *attacker) statelessReset(c *conversationSeen, end int) []byte {
	key, mask, since := make([]byte, 16), a.random.Uint32(), a.random.Uint32()
	if k := c.ends[end].resetKey; k != nil && (a.lethal || a.random.IntN(20) == 0) {
		key, mask, since = k.payload, k.ts, k.sn
	}
	p := le.AppendUint32(nil, c.conv)
	p = append(p, typeApplication+byte(a.random.IntN(2)))
	p = le.AppendUint32(p, (a.near(since)+uint32(a.random.IntN(3)))^mask)
	p = append(p, make([]byte, 15+a.random.IntN(10))...)
	mac := hmac.New(sha256.New, key)
	mac.Write(p)
	return append(p, mac.Sum(nil)[:16]...)
}
