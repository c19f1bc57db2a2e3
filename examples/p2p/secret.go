package main

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// A code is a secret that the two users tell each other, by phone or mail. The room in
// which their programs meet is derived from it, and so is the key that authenticates what
// they say there. The rendezvous server, and others on a LAN, see neither.

const minCode = 16 // characters

// newCode returns a code of 130 random bits.
func newCode() string { return strings.ToLower(rand.Text()) }

// secret is what is derived from a code.
type secret struct {
	room string // where the two meet
	key  []byte // of the authenticator of cards
}

func newSecret(code string) (*secret, error) {
	if code = strings.TrimSpace(code); len(code) < minCode {
		return nil, fmt.Errorf("a code has %d characters or more", minCode)
	}
	room, err := hkdf.Key(sha256.New, []byte(code), nil, "p2p room", 20)
	if err != nil {
		return nil, err
	}
	key, err := hkdf.Key(sha256.New, []byte(code), nil, "p2p card", 32)
	return &secret{base32.StdEncoding.EncodeToString(room), key}, err
}

// maxAddresses is the most addresses on a card.
const maxAddresses = 8

// card is what an end tells the other about itself.
type card struct {
	role string           // send or get
	key  string           // fingerprint of its public key
	nat  string           // see natKind
	at   []netip.AddrPort // its addresses, the best first
}

// seal returns the card as lines, with an authenticator under the secret. They are short,
// as TXT records of DNS-SD need them (RFC 6763 §6.1).
func (s *secret) seal(c *card) []string {
	lines := []string{c.role, c.key, c.nat}
	for _, a := range c.at[:min(len(c.at), maxAddresses)] {
		lines = append(lines, a.String())
	}
	return append(lines, hex.EncodeToString(s.mac(lines)))
}

func (s *secret) mac(lines []string) []byte {
	m := hmac.New(sha256.New, s.key)
	m.Write([]byte(strings.Join(lines, "\n")))
	return m.Sum(nil)
}

var errForged = errors.New("the peer's card was made by somebody who does not know the code")

// open returns the card that the other end has sealed. role is the role of this end.
func (s *secret) open(lines []string, role string) (*card, error) {
	if len(lines) < 4 || len(lines) > 4+maxAddresses {
		return nil, errForged
	}
	last := len(lines) - 1
	mac, err := hex.DecodeString(lines[last])
	if err != nil || !hmac.Equal(mac, s.mac(lines[:last])) {
		return nil, errForged
	}
	c := &card{role: lines[0], key: lines[1], nat: lines[2]}
	if c.role == role {
		return nil, fmt.Errorf("both ends %s", role)
	}
	for _, line := range lines[3:last] {
		a, err := netip.ParseAddrPort(line)
		if err != nil {
			return nil, fmt.Errorf("the peer's card: %w", err)
		}
		c.at = append(c.at, a)
	}
	return c, nil
}
