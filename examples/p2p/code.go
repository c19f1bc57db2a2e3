package main

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// A code is a secret that the two users tell each other, by phone or mail. The room in
// which their programs meet is derived from it, and so is the key that authenticates what
// they say there. The rendezvous server, and others on a LAN, see neither. A code of the
// program has 130 random bits, so nobody finds it by trying.

const (
	minCode      = 16 // characters
	codeAlphabet = "abcdefghijkmnpqrstuvwxyz23456789"
)

// newCode returns a random code.
func newCode() string {
	b := make([]byte, 26)
	_, _ = rand.Read(b) // it never fails
	code := make([]byte, 0, 30)
	for i, v := range b {
		if i == 7 || i == 14 || i == 20 {
			code = append(code, '-')
		}
		code = append(code, codeAlphabet[int(v)%len(codeAlphabet)])
	}
	return string(code)
}

// secret is what is derived from a code.
type secret struct {
	room string // where the two meet
	key  []byte // of the authenticator of cards
}

func newSecret(code string) (*secret, error) {
	code = strings.TrimSpace(code)
	if len(code) < minCode {
		return nil, fmt.Errorf("a code has %d characters or more: leave -code out for a random one", minCode)
	}
	room, err := hkdf.Key(sha256.New, []byte(code), nil, "p2p room", roomSize)
	if err != nil {
		return nil, err
	}
	key, err := hkdf.Key(sha256.New, []byte(code), nil, "p2p card", 32)
	return &secret{base64.RawURLEncoding.EncodeToString(room), key}, err
}

// roomSize is the length of the name of a room, in bytes before base64.
const roomSize = 16

// Roles of the two ends.
const (
	roleSend = "send"
	roleGet  = "get"
)

// other returns the role of the peer.
func other(role string) string {
	if role == roleSend {
		return roleGet
	}
	return roleSend
}

// maxCandidates is the most addresses on a card.
const maxCandidates = 8

// card is what an end tells the other about itself.
type card struct {
	role string
	key  string // fingerprint of its public key
	nat  natKind
	at   []netip.AddrPort // its candidates, the best first
}

// text returns the card as lines of at most 255 bytes, as TXT records of DNS-SD need
// them (RFC 6763 §6.1).
func (c *card) text() []string {
	lines := []string{"role=" + c.role, "key=" + c.key, "nat=" + string(c.nat)}
	for _, a := range c.at[:min(len(c.at), maxCandidates)] {
		lines = append(lines, "at="+a.String())
	}
	return lines
}

// seal returns the card as lines, with an authenticator under the secret.
func (s *secret) seal(c *card) []string {
	lines := c.text()
	return append(lines, "mac="+hex.EncodeToString(s.mac(lines)))
}

func (s *secret) mac(lines []string) []byte {
	m := hmac.New(sha256.New, s.key)
	m.Write([]byte(strings.Join(lines, "\n")))
	return m.Sum(nil)
}

var errForged = errors.New("the peer's card was made by somebody who does not know the code")

// open returns the card that seal has made of one with a role.
func (s *secret) open(lines []string, role string) (*card, error) {
	if len(lines) == 0 {
		return nil, errForged
	}
	last := len(lines) - 1
	mac, err := hex.DecodeString(strings.TrimPrefix(lines[last], "mac="))
	if err != nil || !hmac.Equal(mac, s.mac(lines[:last])) {
		return nil, errForged
	}
	c := new(card)
	for _, line := range lines[:last] {
		name, value, _ := strings.Cut(line, "=")
		switch name {
		case "role":
			c.role = value
		case "key":
			c.key = value
		case "nat":
			c.nat = natKind(value)
		case "at":
			a, err := netip.ParseAddrPort(value)
			if err != nil {
				return nil, fmt.Errorf("the peer's card: %w", err)
			}
			c.at = append(c.at, a)
		}
	}
	if c.role != role {
		return nil, fmt.Errorf("the peer's card has the role %q, not %q", c.role, role)
	}
	return c, nil
}
