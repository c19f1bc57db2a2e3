package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv/await"
)

// Packets arrive whatever their size: as datagrams, and beyond that by stream.
func TestPacketSizes(t *testing.T) {
	t.Parallel()
	ca := testAuthority(t)
	a, b := ca.transport(t, "a"), ca.transport(t, "b")
	for _, size := range []int{1, 100, PacketSize, 1500, 9000, maxLargePacket} {
		want := content("a", size, size)
		before := time.Now()
		sent, err := a.WriteToAddress(want, addressOf(b))
		require.NoError(t, err)
		require.WithinRange(t, sent, before, time.Now())
		p := <-b.PacketCh()
		require.True(t, bytes.Equal(want, p.Buf), "%d bytes", size)
		require.Equal(t, a.Addr().String(), p.From.String())
		require.WithinRange(t, p.Timestamp, before, time.Now())
	}
	require.Equal(t, uint64(3), a.Stats().PacketsByStream)
	_, err := a.WriteToAddress(make([]byte, maxLargePacket+1), addressOf(b))
	require.ErrorIs(t, err, ErrPacketTooLarge)
}

// The address that is advertised is the one given, or that of the socket.
func TestAdvertiseAddress(t *testing.T) {
	t.Parallel()
	tr := testAuthority(t).transport(t, "a")
	port := int(tr.Addr().Port())
	for _, test := range []struct {
		ip       string
		port     int
		want     string
		wantPort int
	}{{"", 7946, "127.0.0.1", port}, {"192.0.2.1", 7946, "192.0.2.1", 7946}, {"::ffff:192.0.2.1", 0, "192.0.2.1", port}} {
		ip, p, err := tr.FinalAdvertiseAddr(test.ip, test.port)
		require.NoError(t, err, test.ip)
		require.Equal(t, test.want, ip.String())
		require.Equal(t, test.wantPort, p)
	}
	_, _, err := tr.FinalAdvertiseAddr("nowhere.example", 1)
	require.Error(t, err)
}

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

// The dials of a transport are bounded, too.
func TestTooManyDials(t *testing.T) {
	t.Parallel()
	a := testAuthority(t).transport(t, "a")
	dead := netip.MustParseAddrPort(silent(t))
	refused := 0
	for i := range maxDials + 10 {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, 0, byte(i)}), dead.Port())
		if _, err := a.WriteTo([]byte("x"), addr.String()); err != nil {
			require.ErrorIs(t, err, ErrTooManyDials)
			refused++
		}
	}
	require.Equal(t, 10, refused)
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

// Bad settings and addresses are errors at once.
func TestBadInput(t *testing.T) {
	t.Parallel()
	ca := testAuthority(t)
	for what, change := range map[string]func(*TransportConfig){
		"no CA":          func(c *TransportConfig) { c.CA = nil },
		"no cluster":     func(c *TransportConfig) { c.Cluster = "" },
		"other cluster":  func(c *TransportConfig) { c.Cluster = "other.test" },
		"no certificate": func(c *TransportConfig) { c.Certificate.Certificate = nil },
		"bind":           func(c *TransportConfig) { c.Bind = "localhost" },
		"kcp settings":   func(c *TransportConfig) { c.KCP = &kcp.Config{MTU: 10} },
	} {
		c := ca.config(t, "a")
		change(c)
		_, err := NewTransport(c)
		require.Error(t, err, what)
	}
	for _, name := range []string{"", strings.Repeat("a", maxName+1), "a\x1b[2J", "a\nb", "\u202ea", "\xff"} {
		_, err := ca.Issue(name)
		require.Error(t, err, "%q", name)
	}
	a := ca.transport(t, "a")
	for _, addr := range []string{"", "localhost:1", "127.0.0.1", "127.0.0.1:99999"} {
		_, err := a.WriteTo([]byte("x"), addr)
		require.Error(t, err, addr)
		_, err = a.DialTimeout(addr, time.Second)
		require.Error(t, err, addr)
	}
	_, err := a.DialTimeout(a.Addr().String(), time.Second)
	require.ErrorIs(t, err, ErrOwnAddress)
}

// What a member sends that is nothing known is dropped, or refused, and counted.
func TestUnknownTraffic(t *testing.T) {
	t.Parallel()
	ca := testAuthority(t)
	a, b := ca.transport(t, "a"), ca.transport(t, "b")
	s, err := a.session(t.Context(), b.Addr(), "b")
	require.NoError(t, err)
	for _, d := range []string{"", "P", "?x", "Mx"} { // b takes no messages
		require.NoError(t, s.conn.SendDatagram([]byte(d)))
	}
	await.True(t, func() bool { return b.Stats().Malformed == 4 })
	for i, kind := range []byte{'?', streamMessages} {
		st, err := s.open(t.Context(), kind)
		require.NoError(t, err)
		_, err = st.Read(make([]byte, 1))
		var reset *kcp.StreamError
		require.True(t, errors.As(err, &reset) && reset.Code == codeUnknown, "%v", err)
		require.Equal(t, uint64(i+1), b.Stats().StreamsRefused)
		require.NoError(t, st.Reset(0))
	}
	st, err := s.open(t.Context(), streamPacket)
	require.NoError(t, err)
	_, err = st.Write(make([]byte, maxLargePacket+1))
	require.NoError(t, err)
	await.True(t, func() bool { return b.Stats().StreamsRefused == 3 })
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
