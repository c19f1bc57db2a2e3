package icepath_test

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/pion/ice/v4"
	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/examples/p2p/icepath"
)

// agent returns an agent of ICE that uses loopback alone. Others would name STUN and TURN
// servers by ice.WithUrls.
func agent(t *testing.T) *ice.Agent {
	t.Helper()
	a, err := ice.NewAgentWithOptions(
		ice.WithNetworkTypes([]ice.NetworkType{ice.NetworkTypeUDP4}),
		ice.WithCandidateTypes([]ice.CandidateType{ice.CandidateTypeHost}),
		ice.WithMulticastDNSMode(ice.MulticastDNSModeDisabled),
		ice.WithIPFilter(func(ip net.IP) bool { return ip.IsLoopback() }),
		ice.WithIncludeLoopback(),
	)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	return a
}

// introduce has each agent know what the other has gathered, which a rendezvous server
// does otherwise.
func introduce(t *testing.T, from, to *ice.Agent) {
	t.Helper()
	require.NoError(t, from.OnCandidate(func(c ice.Candidate) {
		if c != nil { // nil is the end
			_ = to.AddRemoteCandidate(c) // a closed agent needs none
		}
	}))
}

// paths returns the two ends of a connection of ICE.
func paths(t *testing.T, ctx context.Context) (a, b *ice.Conn) {
	t.Helper()
	one, two := agent(t), agent(t)
	introduce(t, one, two)
	introduce(t, two, one)
	ufragOne, pwdOne, err := one.GetLocalUserCredentials()
	require.NoError(t, err)
	ufragTwo, pwdTwo, err := two.GetLocalUserCredentials()
	require.NoError(t, err)
	require.NoError(t, one.GatherCandidates())
	require.NoError(t, two.GatherCandidates())
	accepted := make(chan *ice.Conn, 1)
	go func() {
		c, _ := two.Accept(ctx, ufragOne, pwdOne) // Dial has the error too
		accepted <- c
	}()
	a, err = one.Dial(ctx, ufragTwo, pwdTwo)
	require.NoError(t, err)
	b = <-accepted
	require.NotNil(t, b)
	return a, b
}

// endpoint returns an endpoint over a connection of ICE. A relay adds to each packet, so
// packets are small.
func endpoint(t *testing.T, c *ice.Conn) *kcp.Endpoint {
	t.Helper()
	e, err := kcp.NewEndpoint(icepath.Conn{Conn: c}, &kcp.Config{MTU: 1200})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

// A session over a connection of ICE is one as over any other socket.
func TestSessionOverICE(t *testing.T) {
	ctx := t.Context()
	a, b := paths(t, ctx)
	dials, listens := endpoint(t, a), endpoint(t, b)
	l, err := listens.Listen()
	require.NoError(t, err)
	data := make([]byte, 1_000_000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data)
	go func() {
		c, err := l.AcceptKCP(ctx)
		if err != nil {
			return // Dial fails
		}
		_, _ = io.Copy(c, c) // ReadAll has the error
		_ = c.Close()
	}()
	c, err := dials.Dial(ctx, icepath.Peer{}, nil)
	require.NoError(t, err)
	go func() {
		_, _ = c.Write(data) // what is missing is missing below
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))
	require.NoError(t, c.Close())
	require.Equal(t, "peer", c.RemoteAddr().String())
}
