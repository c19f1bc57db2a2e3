package main

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// A code is a secret that the two users tell each other, by phone or mail. The room in
// which their programs meet is derived from it, and so is the key that authenticates what
// they say there. The rendezvous server sees neither.

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

// card is what an end tells the other about itself.
type card struct {
	Role string           // send or get
	Key  string           // fingerprint of its public key
	At   []netip.AddrPort // its addresses on its host
}

// sealed is a card in JSON, with an authenticator under the secret.
type sealed struct{ Card, MAC []byte }

func (s *secret) seal(c *card) (*sealed, error) {
	text, err := json.Marshal(c)
	return &sealed{text, s.mac(text)}, err
}

func (s *secret) mac(text []byte) []byte {
	m := hmac.New(sha256.New, s.key)
	m.Write(text)
	return m.Sum(nil)
}

var errForged = errors.New("the peer's card was made by somebody who does not know the code")

// open returns the card that the other end has sealed. role is the role of this end.
func (s *secret) open(from *sealed, role string) (*card, error) {
	if from == nil || !hmac.Equal(from.MAC, s.mac(from.Card)) {
		return nil, errForged
	}
	c := new(card)
	if err := json.Unmarshal(from.Card, c); err != nil {
		return nil, fmt.Errorf("the peer's card: %w", err)
	}
	if c.Role == role {
		return nil, fmt.Errorf("both ends %s", role)
	}
	return c, nil
}
