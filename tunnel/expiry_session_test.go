package tunnel

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// over returns an authority with a name and a key, unless nil, that counts between two
// times. parent has signed it; nil: it has itself.
func over(t *testing.T, parent *authority, name string, key *ecdsa.PrivateKey, from, to time.Time) *authority {
	t.Helper()
	der, key := parent.sign(t, key, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: from, NotAfter: to, KeyUsage: x509.KeyUsageCertSign,
	})
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{key, cert, poolOf(cert)}
}

// poolOf returns a pool with some certificates.
func poolOf(certs ...*x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range certs {
		pool.AddCert(c)
	}
	return pool
}

// authenticated returns what a server knows of a client from a handshake at a time. The
// client has a certificate, and has sent those of issuers besides.
func authenticated(t *testing.T, cert tls.Certificate, issuers []*authority, roots *x509.CertPool, at time.Time) *tls.ConnectionState {
	t.Helper()
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	require.NoError(t, err)
	state := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
	options := x509.VerifyOptions{
		Roots: roots, Intermediates: x509.NewCertPool(), CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, a := range issuers {
		state.PeerCertificates = append(state.PeerCertificates, a.cert)
		options.Intermediates.AddCert(a.cert)
	}
	state.VerifiedChains, err = leaf.Verify(options)
	require.NoError(t, err)
	return state
}

// Whether the authority of a session is still there does not depend on what has
// expired since the session began: an expired certificate is no worse than a valid one,
// and no better.
func TestAuthorityWithoutTime(t *testing.T) {
	now := time.Now()
	const hour, day, year = time.Hour, 24 * time.Hour, 365 * 24 * time.Hour
	began := now.Add(-10 * day)
	root := over(t, nil, "root", nil, now.Add(-year), now.Add(year))
	other := over(t, nil, "other", nil, now.Add(-year), now.Add(year))
	impostor := over(t, nil, "root", nil, now.Add(-year), now.Add(year)) // has the name, and another key
	short := over(t, nil, "short", nil, began.Add(-hour), now.Add(-hour))
	renewed := over(t, nil, "short", short.key, now.Add(-30*time.Minute), now.Add(year))
	between := over(t, root, "between", nil, began.Add(-hour), now.Add(-day))
	valid := root.between(t, "me", began.Add(-hour), now.Add(hour))
	expired := root.between(t, "me", began.Add(-hour), now.Add(-time.Second))
	early := root.between(t, "me", now.Add(hour), now.Add(day)) // the clock was set back
	under := between.between(t, "me", began.Add(-hour), now.Add(hour))
	underExpired := between.between(t, "me", began.Add(-hour), now.Add(-2*day))
	ofShort := short.between(t, "me", began.Add(-year), now.Add(year))
	self := over(t, nil, "self", nil, began.Add(-hour), now.Add(-hour)) // is its own authority

	states := map[string]*tls.ConnectionState{
		"valid":                     authenticated(t, valid, nil, root.pool, began),
		"expired":                   authenticated(t, expired, nil, root.pool, began),
		"not yet valid":             authenticated(t, early, nil, root.pool, now.Add(2*hour)),
		"expired issuer":            authenticated(t, under, []*authority{between}, root.pool, began),
		"expired issuer and itself": authenticated(t, underExpired, []*authority{between}, root.pool, began),
	}
	for name, state := range states {
		require.True(t, authorized(state, root.pool, now), name)
		require.True(t, authorized(state, poolOf(other.cert, root.cert), now), name)
		require.False(t, authorized(state, other.pool, now), name)
		require.False(t, authorized(state, impostor.pool, now), name)
		require.False(t, authorized(state, x509.NewCertPool(), now), name)
	}
	state := authenticated(t, ofShort, nil, short.pool, began)
	require.True(t, authorized(state, short.pool, now), "the authority has expired, and is there")
	require.True(t, authorized(state, renewed.pool, now), "it was renewed")
	require.False(t, authorized(state, renewed.pool, now.Add(-hour)), "but not yet")
	require.False(t, authorized(state, root.pool, now))
	state = authenticated(t, tls.Certificate{Certificate: [][]byte{self.cert.Raw}}, nil, self.pool, began)
	require.True(t, authorized(state, self.pool, now))
	require.False(t, authorized(state, root.pool, now))

	// The authority is there, and forbids this one by a constraint.
	revoked := x509.NewCertPool()
	revoked.AddCertWithConstraint(root.cert, func([]*x509.Certificate) error { return x509.UnknownAuthorityError{} })
	require.False(t, authorized(states["expired"], revoked, now))

	// A certificate that is not for clients does not become so by having expired.
	der, _ := root.sign(t, nil, &x509.Certificate{
		Subject: pkix.Name{CommonName: "me"}, NotBefore: began, NotAfter: now.Add(-hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	require.False(t, authorized(&tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}, root.pool, now))
}
