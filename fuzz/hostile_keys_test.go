package fuzz_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	crand "crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/protect"
)

// wire is what an attacker seals and opens packets with.
type wire struct {
	cipher crypt.Cipher // nil: none
	gcm    cipher.AEAD  // of cipher, to number packets (WIRE.md §4.1); nil: none
	tls    bool         // sessions have TLS
	log    *keyLog      // their secrets; nil: it does not have them
}

// newGCM returns a wire with AES-GCM.
func newGCM(key []byte) wire {
	c, _ := crypt.AESGCM(key)
	block, _ := aes.NewCipher(key)
	gcm, _ := cipher.NewGCM(block)
	return wire{cipher: c, gcm: gcm}
}

// seal seals a packet that has no number.
func (w *wire) seal(content []byte) []byte {
	if w.cipher == nil {
		return content
	}
	head, tail := w.cipher.Overhead()
	p := make([]byte, head+len(content)+tail)
	copy(p[head:], content)
	_ = w.cipher.Seal(p) // fails for what is too long
	return p
}

// open returns a copy of the content of a packet; nil if it is none.
func (w *wire) open(packet []byte) (content []byte) {
	if content = bytes.Clone(packet); w.cipher != nil {
		content, _ = w.cipher.Open(content)
	}
	return content
}

// nonceBase returns that of the packet numbers of an end of c (WIRE.md §4.1).
func (c *dialogue) nonceBase(end int) []byte {
	b := le.AppendUint32([]byte("kcp packet number"), c.conv)
	b = le.AppendUint32(b, c.ends[end].token)
	sum := sha256.Sum256(le.AppendUint32(b, c.ends[other(end)].token))
	return sum[:12]
}

// seesNumber takes note of the number of a packet of an end of c, with an AEAD.
func (c *dialogue) seesNumber(end int, packet []byte) {
	base := c.nonceBase(end)
	if len(packet) < 12 || !bytes.Equal(packet[:8], base[:8]) {
		return
	}
	s := &c.ends[end]
	s.numbered, s.number = true, max(s.number, (le.Uint32(base[8:])^le.Uint32(packet[8:]))+1)
}

// sealNumbered seals the next packet of an end of c.
func (w *wire) sealNumbered(c *dialogue, end int, content []byte) []byte {
	s, nonce := &c.ends[end], c.nonceBase(end)
	s.number = max(s.number, c.lead)
	le.PutUint32(nonce[8:], le.Uint32(nonce[8:])^s.number)
	s.number++
	return w.gcm.Seal(nonce, nonce, content, nil)
}

// keyLog is told the secrets of sessions by the ends that have dialled
// (tls.Config.KeyLogWriter).
type keyLog struct {
	mu       sync.Mutex
	sessions map[string]*secrets // by the random number of the client
}

// secrets are those of a session, by level and end. 0 has dialled.
type secrets [protect.Application + 1][2][]byte

// Write takes one line.
func (k *keyLog) Write(line []byte) (int, error) {
	fields := strings.Fields(string(line))
	label, end := fields[0], 0
	if strings.HasPrefix(label, "SERVER") {
		end = 1
	}
	level := protect.Application
	switch label[len("SERVER_"):] {
	case "HANDSHAKE_TRAFFIC_SECRET":
		level = protect.Handshake
	case "TRAFFIC_SECRET_0":
	default:
		return len(line), nil
	}
	secret, err := hex.DecodeString(fields[2])
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sessions[fields[1]] == nil {
		k.sessions[fields[1]] = new(secrets)
	}
	k.sessions[fields[1]][level][end] = secret
	return len(line), err
}

// tlsKeys are the keys of one end at one level, which open and seal.
type tlsKeys struct {
	protect.PacketKeys
	seen, sealed uint64 // numbers: behind the highest of the end, and of seal
}

func newKeys(conv uint32, level protect.Level, suite uint16, secret []byte) *tlsKeys {
	k := new(tlsKeys)
	k.Init(conv, level, false)
	_, _ = k.SetOpenSecret(suite, secret), k.SetSealSecret(suite, secret)
	return k
}

// keys returns those of an end of c at a level; nil if they are not known. The first
// packet under them shows which of the secrets are those of c.
func (k *keyLog) keys(c *dialogue, end int, level protect.Level, packet []byte) *tlsKeys {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if c.secrets == nil && packet != nil {
		for _, s := range k.sessions {
			for _, suite := range suitesOf(s[level][end]) {
				try := newKeys(c.conv, level, suite, s[level][end])
				if _, _, err := try.Open(bytes.Clone(packet)); err == nil {
					c.secrets, c.suite = s, suite
				}
			}
		}
	}
	known := &c.ends[end].tls[level]
	if *known == nil && c.secrets != nil && c.secrets[level][end] != nil {
		*known = newKeys(c.conv, level, c.suite, c.secrets[level][end])
	}
	return *known
}

// suitesOf returns the cipher suites of TLS that a secret may be of.
func suitesOf(secret []byte) []uint16 {
	switch len(secret) {
	case 32:
		return []uint16{0x1301, 0x1303}
	case 48:
		return []uint16{0x1302}
	}
	return nil
}

// openTLS returns the content of a packet of an end of c; nil if it does not open.
func (k *keyLog) openTLS(c *dialogue, end int, packet []byte) []byte {
	level := protect.LevelOf(packet)
	packet = bytes.Clone(packet)
	if level == protect.Clear {
		if len(packet) >= headerSize { // HELLO, or its answer
			content, _ := handshake.OpenInitial(protect.NewInitial(c.conv, parse(packet).ts, end == 1), packet)
			return content
		}
		return nil
	}
	keys := k.keys(c, end, level, packet)
	if keys == nil {
		return nil
	}
	content, number, err := keys.Open(packet)
	if err != nil {
		return nil
	}
	keys.seen = max(keys.seen, number+1)
	return content
}

// sealTLS seals a packet in the name of an end of c; nil if no keys are known.
func (a *attacker) sealTLS(c *dialogue, end int, level protect.Level, content []byte) []byte {
	k := a.wire.log.keys(c, end, level, nil)
	if k == nil {
		return nil
	}
	put := func(content []byte) []byte {
		p := make([]byte, protect.HeaderSize+len(content)+protect.TagSize)
		copy(p[protect.HeaderSize:], content)
		k.sealed++
		_ = k.Seal(p)
		return p
	}
	for k.sealed < k.seen+uint64(c.lead) {
		put(nil)
	}
	if level == protect.Application && a.random.IntN(60) == 0 {
		_ = k.Update()
	}
	return put(content)
}

// sealInitial seals a packet of a handshake for which there are no keys yet.
func sealInitial(token uint32, dialled bool, p []byte) []byte {
	at, ok := handshake.InitialAt(p)
	if !ok {
		return p
	}
	p = append(p, make([]byte, protect.InitialOverhead)...)
	le.PutUint32(p[at-4:], uint32(len(p)-at))
	protect.NewInitial(le.Uint32(p), token, dialled).Seal(p, at)
	return p
}

// statelessReset makes a stateless reset in the name of an end of c, which is real if
// its key has been seen.
func (a *attacker) statelessReset(c *dialogue, end int) []byte {
	var key protect.ResetKey
	since := a.random.Uint32()
	if k := c.ends[end].resetKey; k != nil && (a.lethal || a.random.IntN(20) == 0) {
		copy(key.Key[:], k.payload)
		key.Mask, since = k.ts, k.sn+1
	}
	p := make([]byte, protect.MinReset+a.random.IntN(protect.MaxReset-protect.MinReset+1))
	key.Reset(crand.Reader, p, c.conv, a.near(since))
	return p
}
