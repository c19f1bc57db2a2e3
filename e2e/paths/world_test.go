package paths

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
)

const (
	serverHost = "10.0.0.1"
	clientHost = "10.0.0.2"
)

// path is both ways of a path.
type path struct{ up, down netsim.LinkConfig }

// delay returns a path of a round-trip time.
func delay(rtt time.Duration) path {
	link := netsim.LinkConfig{Delay: rtt / 2}
	return path{link, link}
}

// world is a session over a path, in virtual time.
type world struct {
	t              *testing.T
	net            *netsim.Network
	client, server *kcp.Conn
	repetition     *kcp.Repetition      // makes runs repeat
	sockets        []*netsim.PacketConn // the server's and the client's
}

// set changes the path.
func (w *world) set(p path) {
	w.net.SetLink(clientHost, serverHost, p.up)
	w.net.SetLink(serverHost, clientHost, p.down)
}

// over runs f with a session over a path.
func over(t *testing.T, p path, server, client *kcp.Config, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, net: netsim.NewNetwork(1, netsim.LinkConfig{}), repetition: kcp.NewRepetition(1)}
		w.set(p)
		listening, dialling := w.endpoint(serverHost+":4000", server), w.endpoint(clientHost+":5000", client)
		l, err := listening.Listen()
		require.NoError(t, err)
		w.client, err = dialling.Dial(t.Context(), l.Addr())
		require.NoError(t, err)
		w.server, err = l.AcceptKCP(t.Context())
		require.NoError(t, err)
		f(w)
		_ = w.client.Abort()
		_ = w.server.Abort()
	})
}

// endpoint opens an endpoint, as long as the test runs.
func (w *world) endpoint(addr string, config *kcp.Config) *kcp.Endpoint {
	pc, err := w.net.Listen(addr)
	require.NoError(w.t, err)
	var c kcp.Config
	if config != nil {
		c = *config
	}
	c.Repetition = w.repetition
	e, err := kcp.NewEndpoint(pc, &c)
	require.NoError(w.t, err)
	w.sockets = append(w.sockets, pc)
	w.t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
	return e
}

// within returns a context of a time in virtual time.
func (w *world) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(w.t.Context(), d)
	w.t.Cleanup(cancel)
	return ctx
}

// protections are the settings of both ends, by what protects their packets.
func protections(t *testing.T) map[string]func(kcp.Config) *kcp.Config {
	return map[string]func(kcp.Config) *kcp.Config{
		"plain": func(c kcp.Config) *kcp.Config { return &c },
		"AEAD":  func(c kcp.Config) *kcp.Config { c.Cipher = testenv.AEAD(t); return &c },
		"TLS":   func(c kcp.Config) *kcp.Config { c.TLS = testTLS(); return &c },
	}
}

var testTLS = sync.OnceValue(testenv.TLS)
