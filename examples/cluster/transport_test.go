package cluster

import (
	"context"
	"crypto/tls"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv/await"
)

// Packets to nodes that do not answer wait for nothing, do not delay others, and are
// bounded.
func TestDeadPeersBlockNobody(t *testing.T) {
	t.Parallel()
	ca := testAuthority(t)
	a, b := ca.transport(t, "a"), ca.transport(t, "b")
	dead := silent(t)
	for range 1000 {
		_, err := a.WriteTo([]byte("into the dark"), dead)
		require.NoError(t, err)
	}
	require.GreaterOrEqual(t, a.Stats().PacketsUnsent, uint64(1000-maxQueuedPackets))
	_, err := a.WriteToAddress([]byte("hello"), addressOf(b))
	require.NoError(t, err)
	require.Equal(t, "hello", string((<-b.PacketCh()).Buf))
	_, err = a.DialTimeout(dead, 200*time.Millisecond)
	require.ErrorIs(t, err, context.DeadlineExceeded, "before the dial's own limit")
}

// Only nodes with a certificate of the authority, for this cluster, get a session.
func TestStrangers(t *testing.T) {
	t.Parallel()
	ca := testAuthority(t)
	a := ca.transport(t, "a")
	stranger := testAuthority(t)
	elsewhere := *ca
	elsewhere.Cluster = "other.test"
	for name, c := range map[string]*TransportConfig{
		"of another authority": stranger.config(t, "b"),
		"for another cluster":  elsewhere.config(t, "b"),
	} {
		if name == "of another authority" {
			c.CA = ca.Pool() // it believes a
		}
		b := startTransport(t, c)
		_, err := b.DialAddressTimeout(memberlist.Address{Addr: a.Addr().String()}, patience)
		require.Error(t, err, name)
		_, err = a.DialAddressTimeout(memberlist.Address{Addr: b.Addr().String()}, patience)
		var handshake *kcp.HandshakeError
		require.ErrorAs(t, err, &handshake, name)
		require.NoError(t, b.Shutdown())
	}
	cert, err := elsewhere.Issue("b") // its holder knows the name of this cluster
	require.NoError(t, err)
	c := ca.config(t, "b")
	c.Certificate = cert
	_, err = kcp.Dial("udp", a.Addr().String(), &kcp.Config{TLS: tlsConfig(c)})
	var alert tls.AlertError
	require.ErrorAs(t, err, &alert)
	require.Zero(t, a.Stats().Accepted)
}

// A node that has another name than the one meant gets neither packets nor streams.
func TestWrongName(t *testing.T) {
	t.Parallel()
	ca := testAuthority(t)
	a, b := ca.transport(t, "a"), ca.transport(t, "b")
	wrong := memberlist.Address{Addr: b.Addr().String(), Name: "c"}
	_, err := a.WriteToAddress([]byte("for c"), wrong) // waits for the dial, and is dropped
	require.NoError(t, err)
	_, err = a.DialAddressTimeout(wrong, patience)
	var name *WrongNameError
	require.ErrorAs(t, err, &name)
	require.Equal(t, "b", name.Got)
	await.True(t, func() bool { return a.Stats().PacketsUnsent == 1 })
	_, err = a.WriteToAddress([]byte("for c"), wrong)
	require.ErrorAs(t, err, &name)
	_, err = a.WriteToAddress([]byte("for b"), addressOf(b))
	require.NoError(t, err)
	require.Equal(t, "for b", string((<-b.PacketCh()).Buf))
}

// A node has at most so many sessions; further ones end the oldest.
func TestSessionsOfOneNode(t *testing.T) {
	t.Parallel()
	ca := testAuthority(t)
	a := ca.transport(t, "a")
	var others []*Transport
	for range maxSessionsPerNode + 3 { // processes with one certificate
		b := ca.transport(t, "b")
		others = append(others, b)
		_, err := b.session(t.Context(), a.Addr(), "a")
		require.NoError(t, err)
	}
	await.True(t, func() bool { return a.Stats().Replaced == 3 })
	a.mu.Lock()
	require.Len(t, a.byName["b"], maxSessionsPerNode)
	require.Len(t, a.byAddr, maxSessionsPerNode)
	a.mu.Unlock()
	for _, b := range others {
		require.NoError(t, b.Shutdown())
	}
	await.True(t, func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.byName) == 0 && len(a.byAddr) == 0
	})
}
