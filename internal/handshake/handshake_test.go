package handshake

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/bits"
	"testing"
	"time"

	"github.com/arqnet/kcp/identity"
	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/stretchr/testify/require"
)

// configs returns those of a client and a server that trust each other.
func configs(t testing.TB) (client, server *tls.Config) {
	cert, err := identity.New("test")
	require.NoError(t, err)
	return &tls.Config{RootCAs: identity.Pool(cert), ServerName: "test", MinVersion: tls.VersionTLS13},
		&tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13}
}

// end is one end of a handshake, and what it has brought about.
type end struct {
	*TLS
	params  []byte
	secrets map[Level][2][]byte // received, sent
	out     [Levels][]byte
	done    bool
	err     error
}

func newEnd(tls *TLS) *end {
	e := &end{TLS: tls, secrets: make(map[Level][2][]byte)}
	e.take(tls.Start())
	return e
}

func (e *end) take(s Step) {
	for _, x := range s.Secrets {
		pair := e.secrets[x.Level]
		if x.Seals {
			pair[1] = x.Bytes
		} else {
			pair[0] = x.Bytes
		}
		e.secrets[x.Level] = pair
	}
	for l, out := range s.Out {
		e.out[l] = append(e.out[l], out...)
	}
	if s.Params != nil {
		e.params = s.Params
	}
	e.done = e.done || s.Done
	e.err = errors.Join(e.err, s.Err)
}

// deliver hands to f what e has to send, one message at a time, and reports whether
// there was anything.
func (e *end) deliver(f *end) (any bool) {
	for level := range e.out {
		for len(e.out[level]) > 0 && f.err == nil && f.reads == Level(level) {
			n := messageSize(e.out[level])
			f.take(f.Handle(e.out[level][:n]))
			e.out[level] = e.out[level][n:]
			any = true
		}
	}
	return any
}

// run carries bytes between two ends until there are none.
func run(client, server *tls.Config) (a, b *end) {
	a = newEnd(Client(client, []byte("client's")))
	b = newEnd(Server(server, []byte("server's")))
	for a.deliver(b) || b.deliver(a) {
	}
	return a, b
}

func TestHandshakeFails(t *testing.T) {
	client, server := configs(t)
	client.RootCAs = x509.NewCertPool()
	a, b := run(client, server)
	var untrusted *tls.CertificateVerificationError
	require.ErrorAs(t, a.err, &untrusted)
	require.EqualValues(t, 42, AlertOf(a.err), "bad_certificate")
	require.False(t, a.done || b.done)
	a.Close()
	b.Close()
	b.Close()

	client, server = configs(t)
	server.ClientAuth = tls.RequireAnyClientCert
	a, b = run(client, server)
	require.True(t, a.done && a.asked)
	require.EqualValues(t, 116, AlertOf(b.err), "certificate_required")

	_, server = configs(t)
	b = newEnd(Server(server, nil))
	b.take(b.Handle([]byte("no ClientHello")))
	require.Error(t, b.err)
	b.Close()

	a = newEnd(Client(&tls.Config{MinVersion: tls.VersionTLS13}, nil))
	require.Error(t, a.err, "no name to verify")
	a.Close()
}

// The constants of the package are the figures that RULES.md and WIRE.md say.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| A handshake holds", "16 KiB", maxClientHello},
		{"| A handshake holds", "64 KiB", maxPeerFlight},
		{"| A peer has 10", "10 certificates", maxCertificates},
		{"| A peer has 10", "12 P-256", maxCost},
		{"| A peer has 10", "1920 elements", maxCost * elementsAtOnce},
		{"| A peer has 10", "24 P-256", maxKeyCost},
		{"| Dearer signatures", "16 of a network", networkDear},
		{"| Dearer signatures", "8 a second", int(time.Second / networkEvery)},
		{"| Dearer signatures", "4 for a wrong one", wrongDear},
		{"| Dearer signatures", "64 wrong ones", allWrong},
		{"| Dearer signatures", "32 a second", int(time.Second / allEvery)},
	})
	rulebook.Check(t, "WIRE.md", []rulebook.Figure{
		{"| 2 | INFO |", "version, now 2", Version},
		{"| 2 | INFO |", "bit 1", bits.TrailingZeros(CapTLS)},
		{"Version 1 sealed nothing", "Version 1", VersionUnsealed},
		{"Version 1 sealed nothing", "ALERT 70", AlertProtocolVersion},
		{"**Errors.** ALERT", "256", alertChanged},
		{"A receiver keeps 16 KiB", "64 KiB", maxAheadOfTLS},
		{"A receiver keeps 16 KiB", "64 KiB", maxHeld / 2},
		{"A receiver keeps 16 KiB", "these are 32", maxEarly},
		{"quic_transport_parameters (57)", "4 bytes", paramsSize / 6},
		{"| 20 | flags;", "bit 0", bits.TrailingZeros(paramTickets)},
	})
}
