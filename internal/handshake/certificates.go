package handshake

import (
	"crypto/tls"
	"crypto/x509"
)

// CertificateBytes returns about how much memory the peer's certificates in s
// take, in bytes: as they came, and as crypto/x509 has parsed them, which may be
// much more. Certificates that several sessions share count for each.
func CertificateBytes(s *tls.ConnectionState) int {
	n := 0
	for _, cert := range s.PeerCertificates {
		n += certificateBytes(cert)
	}
	for _, chain := range s.VerifiedChains {
		n += sliceBytes + cap(chain)*8
	}
	return n
}

// Sizes of parsed certificates in memory, in bytes.
const (
	// certificateSize is the size of an x509.Certificate with all that each has, such
	// as its key and its names.
	certificateSize = 3 << 10
	// rawCopies is how often the bytes of a certificate are held: in the message
	// that it came in, and as a key of the cache of crypto/tls.
	rawCopies = 3

	sliceBytes   = 24
	entryBytes   = 32  // a name or an address, which has memory of its own
	oidBytes     = 96  // an object identifier
	oidsBytes    = 160 // one that is held in two forms
	urlBytes     = 160
	networkBytes = 96
)

// certificateBytes is CertificateBytes for one certificate.
func certificateBytes(c *x509.Certificate) int {
	n := certificateSize + rawCopies*len(c.Raw)
	for _, list := range [][]string{
		c.DNSNames, c.EmailAddresses, c.OCSPServer, c.IssuingCertificateURL, c.CRLDistributionPoints,
		c.PermittedDNSDomains, c.ExcludedDNSDomains, c.PermittedEmailAddresses, c.ExcludedEmailAddresses,
		c.PermittedURIDomains, c.ExcludedURIDomains,
	} {
		n += cap(list) * entryBytes
	}
	n += cap(c.IPAddresses) * (sliceBytes + entryBytes)
	n += (cap(c.Subject.Names) + cap(c.Issuer.Names)) * oidBytes
	n += (cap(c.Extensions) + cap(c.UnhandledCriticalExtensions) + cap(c.UnknownExtKeyUsage)) * oidBytes
	n += (cap(c.Policies) + 2*cap(c.PolicyMappings)) * oidsBytes
	n += cap(c.URIs) * urlBytes
	n += (cap(c.PermittedIPRanges) + cap(c.ExcludedIPRanges)) * networkBytes
	return n
}
