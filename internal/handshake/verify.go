package handshake

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
)

// What a peer's certificates may cost, before crypto/tls has them. crypto/x509 tries
// up to 100 signatures of a chain, with keys that the peer has chosen.

const (
	// maxCertificates is how many certificates a peer may send.
	maxCertificates = 10
	// maxUnvouched is how many of them may turn out to have no root.
	maxUnvouched = 2
	// maxSteps is how many steps the search for their chains may take.
	maxSteps = 100
	// constraintsAtOnce is how many comparisons of a name with a constraint cost 1.
	constraintsAtOnce = 500
)

// wholeMessages returns how many of the bytes are messages of TLS that have arrived
// to their end.
func wholeMessages(b []byte) (n int) {
	for len(b)-n >= messageHead && len(b)-n >= messageSize(b[n:]) {
		n += messageSize(b[n:])
	}
	return n
}

// messageHead is the size of the header of a message of TLS: type and length.
const messageHead = 4

// messageSize returns the size of a message of TLS that begins with b.
func messageSize(b []byte) int { return messageHead + (int(b[1])<<16 | int(b[2])<<8 | int(b[3])) }

// Types of messages of TLS (RFC 8446 §4).
const (
	typeClientHello       = 1
	typeCertificate       = 11
	typeCertificateVerify = 15
)

// checkCertificates returns an error if a Certificate message has more certificates
// than one may, or such that would take long to verify. It leaves in t what they cost.
// What is not well-formed is left to crypto/tls.
func (t *TLS) checkCertificates(message []byte) error {
	if t.reads != Handshake || t.leaf != nil || t.server && t.config.ClientAuth == tls.NoClientCert {
		return nil // crypto/tls wants none
	}
	raw := certificatesIn(message[messageHead:])
	if len(raw) > maxCertificates {
		return fmt.Errorf("more than %d certificates: %w", maxCertificates, tls.AlertError(alertBadCertificate))
	}
	const most = maxCost * elementsAtOnce
	n := 0
	for _, b := range raw {
		n += elements(b, most-n)
	}
	if t.cost += n / elementsAtOnce; t.cost > maxCost || n > most {
		return fmt.Errorf("%w: %w", errTakesLong, tls.AlertError(alertBadCertificate))
	}
	var certs []*x509.Certificate
	for i, b := range raw {
		c, err := x509.ParseCertificate(b)
		if err != nil {
			return nil // crypto/tls finds the same
		}
		if i == 0 || !slices.ContainsFunc(certs[1:], c.Equal) { // crypto/x509 takes a certificate once
			certs = append(certs, c)
		}
	}
	if len(certs) == 0 {
		return nil
	}
	t.leaf = certs[0].PublicKey
	if keyCost(t.leaf) > maxKeyCost {
		return t.takesLong("")
	}
	if t.verifies() {
		if err := t.checkChain(certs); err != nil {
			return err
		}
	}
	t.cost += keyCost(t.leaf)
	return nil
}

// checkSignature returns an error if the signature of a client would take long to check,
// and the allowance for that is used up. It reports whether that is charged for.
func (t *TLS) checkSignature() (dear bool, err error) {
	if !t.server || t.cost <= maxCost || t.leaf == nil {
		return false, nil
	}
	if p := &t.payer; !p.allowance.allows(p.network, p.now) {
		return false, t.takesLong(", and the network has used up its allowance of them")
	}
	return true, nil
}

// errTakesLong means that the peer's certificates would take long to verify.
var errTakesLong = errors.New("certificates that take long to verify")

// takesLong returns errTakesLong for the key of the peer's own certificate. It is of
// another kind than this end supports, as far as the peer is told.
func (t *TLS) takesLong(why string) error {
	return fmt.Errorf("%w: the key is %s%s: %w", errTakesLong, keyName(t.leaf), why, tls.AlertError(alertUnsupportedCertificate))
}

// certificatesIn returns the certificates of a Certificate message (RFC 8446 §4.4.2),
// up to one more than a peer may send; nil if it is not well-formed.
func certificatesIn(body []byte) (certs [][]byte) {
	vector := func(b []byte, sizeOfLength int) (v, rest []byte, ok bool) {
		if len(b) < sizeOfLength {
			return nil, nil, false
		}
		n := 0
		for _, x := range b[:sizeOfLength] {
			n = n<<8 | int(x)
		}
		b = b[sizeOfLength:]
		return b[:min(n, len(b))], b[min(n, len(b)):], n <= len(b)
	}
	_, body, ok := vector(body, 1)
	if ok {
		body, _, ok = vector(body, 3)
	}
	for ok && len(body) > 0 && len(certs) <= maxCertificates {
		var cert []byte
		if cert, body, ok = vector(body, 3); ok {
			_, body, ok = vector(body, 2)
		}
		certs = append(certs, cert)
	}
	if !ok {
		return nil
	}
	return certs
}

// verifies reports whether crypto/tls verifies the peer's certificates.
func (t *TLS) verifies() bool {
	if t.server {
		return t.config.ClientAuth >= tls.VerifyClientCertIfGiven
	}
	return !t.config.InsecureSkipVerify
}

// checkChain returns an error if the certificates would take long to verify. It looks
// at the names only, as long as the keys are such that nothing can take long. Otherwise
// the roots have to vouch for the keys.
func (t *TLS) checkChain(certs []*x509.Certificate) error {
	vouched := make([]bool, len(certs))
	limit := maxCost - t.cost
	cost := verifyCost(certs, vouched, limit)
	var failed error
	if cost > limit {
		failed = t.vouch(certs, vouched)
		cost = verifyCost(certs, vouched, limit)
	}
	switch {
	case cost <= limit:
		t.cost += cost
		return nil
	case failed != nil:
		failed = &tls.CertificateVerificationError{UnverifiedCertificates: certs, Err: failed}
		return fmt.Errorf("%w: %w", failed, tls.AlertError(alertUnknownCA))
	}
	return fmt.Errorf("%w: %w", errTakesLong, tls.AlertError(alertBadCertificate))
}

// vouch finds out for which of the peer's issuers the roots vouch. It verifies them
// from the last certificate to the first, as they come, so that it uses no key of the
// peer's before. It gives up with the last error after a few that have failed.
func (t *TLS) vouch(certs []*x509.Certificate, vouched []bool) (failed error) {
	options := x509.VerifyOptions{Roots: t.roots(), Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	if t.config.Time != nil {
		options.CurrentTime = t.config.Time()
	}
	for i, failures := len(certs)-1, 0; i > 0 && failures <= maxUnvouched; i-- {
		if _, err := certs[i].Verify(options); err != nil {
			failed = err
			failures++
			continue
		}
		vouched[i] = true
		options.Intermediates.AddCert(certs[i])
	}
	return failed
}

// roots returns the roots that the peer's certificates are verified with; nil: the roots
// of the system.
func (t *TLS) roots() *x509.CertPool {
	if t.server {
		return t.config.ClientCAs
	}
	return t.config.RootCAs
}

// verifyCost returns what crypto/x509 may do at most to verify the first of some
// certificates, or more than a limit. It follows the names as crypto/x509 does,
// and takes each signature for good. An issuer that was vouched for costs nothing.
func verifyCost(certs []*x509.Certificate, vouched []bool, limit int) (cost int) {
	if len(certs) == 0 {
		return 0
	}
	constraints := 0
	for _, c := range certs {
		constraints += len(c.PermittedDNSDomains) + len(c.ExcludedDNSDomains) + len(c.PermittedIPRanges) + len(c.ExcludedIPRanges) +
			len(c.PermittedEmailAddresses) + len(c.ExcludedEmailAddresses) + len(c.PermittedURIDomains) + len(c.ExcludedURIDomains)
	}
	leaf := certs[0]
	cost = (len(leaf.DNSNames) + len(leaf.IPAddresses) + len(leaf.EmailAddresses) + len(leaf.URIs)) * constraints / constraintsAtOnce
	steps := 0
	var visit func(path []int)
	visit = func(path []int) {
		at := path[len(path)-1]
		c := certs[at]
		if steps++; !vouched[at] {
			cost++ // a root may have the name
		}
		if steps > maxSteps {
			cost = limit + 1
		}
		for i := 1; i < len(certs) && cost <= limit; i++ {
			if slices.Contains(path, i) || !bytes.Equal(certs[i].RawSubject, c.RawIssuer) {
				continue
			}
			if !vouched[i] {
				cost += keyCost(certs[i].PublicKey)
			}
			visit(append(path, i))
		}
	}
	visit([]int{0})
	return cost
}
