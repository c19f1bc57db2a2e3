package handshake

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/tls"
	"fmt"
	"math/bits"
	"slices"

	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"
)

// What a peer may have TLS compute. The unit is the verification of a signature by a
// P-256 key. An honest handshake takes some five of them at a server, beside its own
// signature, and it is mostly the key exchange.

const (
	// maxCost is what the key exchange and the certificates may cost together, beyond an
	// exchange by X25519 and issuers that roots vouch for. It makes the handshake three
	// times an honest one.
	maxCost = 12
	// elementsAtOnce is how many elements of ASN.1 cost 1 to parse.
	elementsAtOnce = 160
	// maxKeyCost is what a signature by the peer's own key may cost, as much as one of
	// P-521.
	maxKeyCost = 24
)

// keyCost returns what it costs to check a signature by a key.
func keyCost(key any) int {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P224():
			return 4
		case elliptic.P256():
			return 1
		case elliptic.P384():
			return 10
		}
		return maxKeyCost
	case *rsa.PublicKey:
		// A multiplication takes the square of the size. The exponent takes one for each
		// bit, and another one if the bit is set. Some ten come before that.
		e := uint(k.E)
		size := (k.N.BitLen() + 255) / 256
		return max(1, (10+bits.Len(e)+bits.OnesCount(e))*size*size/rsaAtOnce)
	case ed25519.PublicKey:
		return 2
	}
	return 1
}

// rsaAtOnce is how many multiplications of 256 bits, squared, cost 1.
const rsaAtOnce = 1200

// keyName describes a key in errors.
func keyName(key any) string {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		return "ECDSA with " + k.Curve.Params().Name
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA with %d bits and the exponent %d", k.N.BitLen(), k.E)
	}
	return fmt.Sprintf("%T", key)
}

// elements returns how many elements of ASN.1 there are in some bytes, which is what the
// time depends on that crypto/x509 takes to parse them; once there are more than a limit,
// how many it has found. In an OCTET STRING, such as an extension, the first counts. A
// long one counts for more, and an object identifier by its numbers.
func elements(b cryptobyte.String, limit int) (n int) {
	const constructed = 0x20
	var content, inner cryptobyte.String
	var tag asn1.Tag
	for n <= limit && !b.Empty() && b.ReadAnyASN1(&content, &tag) {
		n++
		if tag == asn1.OCTET_STRING {
			inner, tag = content, 0
			n++
			inner.ReadAnyASN1(&content, &tag)
		}
		switch {
		case tag&constructed != 0:
			n += elements(content, limit-n)
		case tag == asn1.OBJECT_IDENTIFIER:
			n += len(content) / 24
		default:
			n += len(content) / 256
		}
	}
	return n
}

// groupP384MLKEM1024 is a group of the key exchange (RFC 8446 §4.2.7) that Go names
// from 1.26 on.
const groupP384MLKEM1024 = 4589

// exchangeCost returns what the key exchange by a group costs beyond one by X25519 and
// ML-KEM.
func exchangeCost(group tls.CurveID) int {
	switch group {
	case tls.CurveP384:
		return 5
	case groupP384MLKEM1024:
		return 7
	case tls.CurveP521:
		return 30
	}
	return 0
}

// checkHello returns an error if a ClientHello makes the server use a group of the key
// exchange that costs too much, unless the application has named it. What is not
// well-formed is left to crypto/tls.
func (t *TLS) checkHello(message []byte) error {
	if !t.server || t.reads != Initial {
		return nil
	}
	t.cost = 0
	for _, group := range keyShares(message[messageHead:]) {
		if slices.Contains(t.config.CurvePreferences, group) {
			continue
		}
		if t.cost = max(t.cost, exchangeCost(group)); t.cost > maxCost {
			return fmt.Errorf("the key exchange by %v takes long, and CurvePreferences does not name it: %w",
				group, tls.AlertError(alertHandshakeFailure))
		}
	}
	return nil
}

// keyShares returns the groups of the key shares in a ClientHello (RFC 8446 §4.2.8).
func keyShares(hello []byte) (groups []tls.CurveID) {
	const extensionKeyShare = 51
	s := cryptobyte.String(hello)
	var session, suites, compression, extensions, body, shares, share cryptobyte.String
	if !s.Skip(2+32) || !s.ReadUint8LengthPrefixed(&session) || !s.ReadUint16LengthPrefixed(&suites) ||
		!s.ReadUint8LengthPrefixed(&compression) || !s.ReadUint16LengthPrefixed(&extensions) {
		return nil
	}
	for !extensions.Empty() {
		var kind, group uint16
		if !extensions.ReadUint16(&kind) || !extensions.ReadUint16LengthPrefixed(&body) {
			return groups
		}
		if kind != extensionKeyShare || !body.ReadUint16LengthPrefixed(&shares) {
			continue
		}
		for shares.ReadUint16(&group) && shares.ReadUint16LengthPrefixed(&share) {
			groups = append(groups, tls.CurveID(group))
		}
	}
	return groups
}
