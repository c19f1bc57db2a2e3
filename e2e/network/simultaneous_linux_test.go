package network

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// masquerades puts a router with a masquerading NAT between two hosts. It lets in only
// what answers, as home routers do: address-and-port-dependent filtering (RFC 4787 §5).
func masquerades(t *testing.T, internet *host, name, wan, lan string) (inside *host) {
	t.Helper()
	router, inside := newHost(t), newHost(t)
	cable(t, internet, "to"+name, router, "wan")
	cable(t, router, "lan", inside, "eth")
	internet.Must(t, fmt.Sprintf("ip addr add %s.1/24 dev to%s", wan, name))
	router.Must(t, fmt.Sprintf(`ip addr add %s.2/24 dev wan
		ip addr add %s.1/24 dev lan
		ip route add default via %s.1`, wan, lan, wan))
	inside.Must(t, fmt.Sprintf("ip addr add %s.2/24 dev eth\nip route add default via %s.1", lan, lan))
	router.set(t, "ipv4.ip_forward", "1")
	router.Try(t, `nft add table ip nat
		nft add chain ip nat out { type nat hook postrouting priority 100 ; }
		nft add rule ip nat out oifname wan masquerade
		nft add table ip filter
		nft add chain ip filter in { type filter hook input priority 0 ; }
		nft add rule ip filter in iifname wan ct state new drop
		nft add chain ip filter through { type filter hook forward priority 0 ; }
		nft add rule ip filter through iifname wan ct state new drop`)
	return inside
}

// endpointAt opens an endpoint at a host.
func endpointAt(t *testing.T, h *host, addr string, config *kcp.Config) *kcp.Endpoint {
	t.Helper()
	var pc *net.UDPConn
	require.NoError(t, h.Do(func() (err error) {
		at, err := net.ResolveUDPAddr("udp4", addr)
		if err == nil {
			pc, err = net.ListenUDP("udp4", at)
		}
		return err
	}))
	e, err := kcp.NewEndpoint(pc, config)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
	return e
}

// Two ends behind NATs learn each other's addresses from a rendezvous server, and
// exchange a file over the same sockets.
func TestSimultaneousOpenThroughNATs(t *testing.T) {
	internet := client(t)
	internet.set(t, "ipv4.ip_forward", "1")
	hosts := [2]*host{
		masquerades(t, internet, "a", "203.0.113", "192.168.1"),
		masquerades(t, internet, "b", "198.51.100", "192.168.1"),
	}
	config := &kcp.Config{TLS: testenv.TLS()}
	config.TLS.ClientCAs, config.TLS.ClientAuth = config.TLS.RootCAs, tls.RequireAndVerifyClientCert
	server := endpointAt(t, internet, "203.0.113.1:7000", config)
	l, err := server.Listen()
	require.NoError(t, err)
	go introduce(l)
	size := 100 << 20
	if testing.Short() {
		size = 4 << 20
	}
	file := testenv.Content(1, size)
	type result struct {
		dialled bool
		err     error
	}
	results := make(chan result)
	for i, h := range hosts {
		e := endpointAt(t, h, ":4000", config)
		go func() {
			c, err := meet(e)
			if err == nil {
				err = exchange(c, file, i == 0)
			}
			results <- result{c != nil && c.Dialled(), err}
		}()
	}
	a, b := <-results, <-results
	require.NoError(t, a.err)
	require.NoError(t, b.err)
	require.NotEqual(t, a.dialled, b.dialled)
}

// introduce tells two peers each other's address.
func introduce(l *kcp.Listener) {
	a, err := l.AcceptKCP(context.Background())
	if err != nil {
		return
	}
	b, err := l.AcceptKCP(context.Background())
	if err != nil {
		return
	}
	_, _ = fmt.Fprintln(a, b.RemoteAddr())
	_, _ = fmt.Fprintln(b, a.RemoteAddr())
}

// meet asks the rendezvous server for the peer's address, and opens a session with it.
func meet(e *kcp.Endpoint) (*kcp.Conn, error) {
	ctx := context.Background()
	server, err := e.Dial(ctx, &net.UDPAddr{IP: net.IPv4(203, 0, 113, 1), Port: 7000})
	if err != nil {
		return nil, err
	}
	var text string
	if _, err := fmt.Fscanln(server, &text); err != nil {
		return nil, err
	}
	peer, err := net.ResolveUDPAddr("udp4", text)
	if err != nil {
		return nil, err
	}
	return e.DialWith(ctx, peer, kcp.DialOptions{SimultaneousOpen: true})
}

// exchange sends a file, or receives it and sends its hash back.
func exchange(c *kcp.Conn, file []byte, sends bool) error {
	if !sends {
		got := sha256.New()
		if _, err := io.CopyN(got, c, int64(len(file))); err != nil {
			return err
		}
		if _, err := c.Write(got.Sum(nil)); err != nil {
			return err
		}
		return c.Close()
	}
	if _, err := c.Write(file); err != nil {
		return err
	}
	sum, want := make([]byte, sha256.Size), sha256.Sum256(file)
	if _, err := io.ReadFull(c, sum); err != nil {
		return err
	}
	if !bytes.Equal(sum, want[:]) {
		return fmt.Errorf("the file has changed")
	}
	_ = c.Close() // the peer has closed too
	return nil
}
