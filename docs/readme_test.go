package docs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/netsim"
)

// What README and the package's documentation show, but for the programs in
// examples/echo. TestSnippets compares them.

//lint:file-ignore SA4006 the errors of snippets are those of the reader

func _(addr string) error {
	config := kcp.LowLatency() // a preset to start from
	config.MTU = 1200
	config.Redundancy = 1 // twice the bytes at most, for small messages that must not wait
	config.PeerTimeout = 10 * time.Second
	conn, err := kcp.Dial("udp", addr, &config)
	_ = conn
	return err
}

func _(certs []tls.Certificate, pool *x509.CertPool) (*tls.ConnectionState, error) {
	l, err := kcp.Listen("udp", ":4000", &kcp.Config{TLS: &tls.Config{Certificates: certs}})
	conn, err := kcp.Dial("udp", "example.com:4000", &kcp.Config{TLS: &tls.Config{RootCAs: pool}})
	state := conn.Peer().TLS // certificates of the peer, application protocol
	_ = l
	return state, err
}

func _(config kcp.Config, key []byte) (kcp.Config, error) {
	cipher, err := crypt.AESGCM(key) // 32 random bytes, the same at both ends
	config.Cipher = cipher
	config.FEC = kcp.FEC{Data: 10, Parity: 3}
	return config, err
}

func _(ctx context.Context, conn *kcp.Conn, position, order []byte, receipts chan<- error) error {
	state, err := conn.OpenStream(ctx, &kcp.StreamOptions{
		Unordered: true, MaxLifetime: 100 * time.Millisecond, Priority: 1,
	})
	err = state.WriteMessage(position, nil) // given up once it is too old
	s, err := conn.AcceptStream(ctx)        // a net.Conn, with messages of any size
	err = s.WriteMessage(order, &kcp.MessageOptions{Done: func(err error) { receipts <- err }})
	return err
}

func _(ctx context.Context, l *kcp.Listener, batch []kcp.Outgoing) error {
	g := kcp.NewGroup()
	l.AcceptInto(g)
	events := make([]kcp.Event, 256)
	for {
		n, err := g.Wait(ctx, events) // until something happens, or ctx is done
		if err != nil {
			return err
		}
		for _, e := range events[:n] {
			switch e.Kind {
			case kcp.EventAccepted: // e.Conn is new
			case kcp.EventMessage, kcp.EventDatagram: // e.Data has arrived
			case kcp.EventEnded: // e.Err says why
			}
		}
		g.Send(batch) // a []kcp.Outgoing; full sessions are skipped with ErrWouldBlock
	}
}

// TestNetsim runs the test that README shows.
func TestNetsim(t *testing.T) {
	const seed = 1
	synctest.Test(t, func(t *testing.T) {
		network := netsim.NewNetwork(seed, netsim.LinkConfig{Delay: 40 * time.Millisecond, Loss: 0.1})
		network.Play("", "", netsim.Outage(time.Second, 3*time.Second))
		pc, _ := network.Listen("10.0.0.1:4000") // a net.PacketConn
		server, _ := kcp.NewEndpoint(pc, nil)
		require.NoError(t, server.Close())
		require.NoError(t, pc.Close())
	})
}

func _() error {
	l, err := kcp.Listen("udp", ":4000", nil)
	conn, err := l.Accept()
	_ = conn
	return err
}

func _() (net.Conn, error) {
	conn, err := kcp.Dial("udp", "example.com:4000", nil)
	return conn, err
}

func _(ctx context.Context, l *kcp.Listener, batch []kcp.Outgoing) {
	g := kcp.NewGroup()
	l.AcceptInto(g) // what l accepts comes as an event, too
	events := make([]kcp.Event, 256)
	for {
		n, err := g.Wait(ctx, events)
		for _, e := range events[:n] {
			if e.Err != nil || err != nil {
				return
			}
		}
		g.Send(batch) // to any number of sessions, without waiting
	}
}
