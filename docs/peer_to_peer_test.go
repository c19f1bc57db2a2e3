package docs

import (
	"context"
	"crypto/tls"
	"net"
	"testing"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/identity"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// meet opens a session with a peer that calls it too, as docs/peer-to-peer.md has it.
func meet(ctx context.Context, endpoint *kcp.Endpoint, peer net.Addr) (*kcp.Conn, error) {
	c, err := endpoint.Dial(ctx, peer, &kcp.DialOptions{SimultaneousOpen: true})
	return c, err
}

// meetAt is meet with a peer that has an address in its network too.
func meetAt(ctx context.Context, endpoint *kcp.Endpoint, public, local net.Addr) (*kcp.Conn, error) {
	return endpoint.Dial(ctx, public, &kcp.DialOptions{
		SimultaneousOpen: true,
		Candidates:       []net.Addr{local},
	})
}

// peerTLS returns the Config.TLS of an end that knows the rendezvous server by its key,
// and the peer by the key that the server has told. peer returns that fingerprint.
func peerTLS(cert tls.Certificate, server string, peer func() string) *tls.Config {
	return &tls.Config{
		Certificates:       []tls.Certificate{cert},
		NextProtos:         []string{"file/1", "rendezvous/1"}, // the server has the second only
		ClientAuth:         tls.RequireAnyClientCert,
		InsecureSkipVerify: true, // VerifyConnection takes its place
		VerifyConnection: func(state tls.ConnectionState) error {
			want := server
			if state.NegotiatedProtocol == "file/1" {
				want = peer()
			}
			return identity.Verify(state, want)
		},
	}
}

// meetings opens a session between two endpoints, and returns both ends of it, or errors.
func meetings(t *testing.T, configs [2]*kcp.Config) (conns [2]*kcp.Conn, errs [2]error) {
	var ends [2]*kcp.Endpoint
	for i := range ends {
		pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(t, err)
		t.Cleanup(func() { _ = pc.Close() })
		ends[i], err = kcp.NewEndpoint(pc, configs[i])
		require.NoError(t, err)
		t.Cleanup(func() { _ = ends[i].Close() })
	}
	second := make(chan struct{})
	go func() {
		defer close(second)
		conns[1], errs[1] = meetAt(t.Context(), ends[1], ends[0].LocalAddr(), ends[1].LocalAddr())
	}()
	conns[0], errs[0] = meet(t.Context(), ends[0], ends[1].LocalAddr())
	<-second
	return conns, errs
}

// The settings of the page let the peer in that has the key, and nobody else.
func TestPeerToPeerTLS(t *testing.T) {
	var certs [3]tls.Certificate
	var keys [3]string
	for i := range certs {
		certs[i] = testenv.TLS().Certificates[0]
		keys[i] = identity.Fingerprint(certs[i].Leaf)
	}
	config := func(own, peer int) *kcp.Config {
		return &kcp.Config{TLS: peerTLS(certs[own], "", func() string { return keys[peer] })}
	}
	conns, errs := meetings(t, [2]*kcp.Config{config(0, 1), config(1, 0)})
	require.NoError(t, errs[0])
	require.NoError(t, errs[1])
	for i, c := range conns {
		state := c.Peer().TLS
		require.Equal(t, "file/1", state.NegotiatedProtocol)
		require.Equal(t, keys[1-i], identity.Fingerprint(state.PeerCertificates[0]))
	}
	testenv.BothWays(t, conns[0], conns[1], []byte("here"), []byte("there"))

	_, errs = meetings(t, [2]*kcp.Config{config(0, 2), config(1, 0)})
	assert.ErrorContains(t, errs[0], "not "+keys[2])
	var refused *kcp.HandshakeError
	require.ErrorAs(t, errs[1], &refused)
	require.True(t, refused.Remote)
}
