package main

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/examples/internal/lab"
	"github.com/arqnet/kcp/netsim"
)

// both returns settings with TLS and certificates that serve either end.
func both(t *testing.T) *tls.Config {
	config, client, err := identities("alice")
	require.NoError(t, err)
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &client.Certificates[0], nil
	}
	config.RootCAs, config.ServerName = client.RootCAs, client.ServerName
	return config
}

// Calls go through, and the server knows the client by its certificate. A call that lasts
// ends at a cancellation, and holds up the end of the server until then.
func TestCalls(t *testing.T) {
	lab.RunInRealTime(t, settings(both(t)), func(t *testing.T, l net.Listener, dial lab.Dial) {
		s, served, stopped := newServer(), make(chan error, 1), make(chan error, 1)
		defer s.Stop()
		go func() { served <- s.Serve(l) }()
		c, err := newClient(dial)
		require.NoError(t, err)
		defer c.Close()
		state, name, err := check(t.Context(), c)
		require.NoError(t, err)
		require.Equal(t, []string{"SERVING", "alice"}, []string{state, name})

		ctx, cancel := context.WithCancel(t.Context())
		watch, err := grpc_health_v1.NewHealthClient(c).Watch(ctx, new(grpc_health_v1.HealthCheckRequest))
		require.NoError(t, err)
		_, err = watch.Recv()
		require.NoError(t, err)
		go func() { stopped <- shutdown(t.Context(), s, l.(*kcp.Listener)) }()
		require.True(t, c.WaitForStateChange(t.Context(), connectivity.Ready), "the client was told")
		select {
		case <-stopped:
			t.Fatal("stopped while a call was in progress")
		default:
		}
		cancel()
		_, err = watch.Recv()
		require.Equal(t, codes.Canceled, status.Code(err))
		require.NoError(t, <-stopped)
		require.NoError(t, <-served)
	})
}

// A session without TLS carries no calls, nor one whose certificate is for another
// server than the calls name.
func TestInsecureSessionsAreRefused(t *testing.T) {
	for authority, config := range map[string]*tls.Config{serverName: nil, "other.example": both(t)} {
		lab.RunInRealTime(t, settings(config), func(t *testing.T, l net.Listener, dial lab.Dial) {
			session, err := dial(t.Context())
			require.NoError(t, err)
			defer session.Close()
			_, _, err = sessionTLS{}.ClientHandshake(t.Context(), authority, session)
			require.ErrorContains(t, err, map[bool]string{true: "with TLS", false: "other.example"}[config == nil])
		})
	}
}

// A server is killed, and started again, at once or a little later. No call fails, and each
// is answered within a second.
func TestKilledServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := netsim.NewNetwork(1, netsim.LinkConfig{Delay: 20 * time.Millisecond})
		config := settings(both(t))
		ends := make(chan func(), 1)
		start := func() {
			server, end := lab.Endpoint(t, network, "10.0.0.1:4000", config)
			l, err := server.Listen()
			require.NoError(t, err)
			go newServer().Serve(l)
			ends <- end
		}
		start()
		e, _ := lab.Endpoint(t, network, "10.0.0.2:0", config)
		at := net.UDPAddrFromAddrPort(netip.MustParseAddrPort("10.0.0.1:4000"))
		c, err := newClient(func(ctx context.Context) (net.Conn, error) { return e.Dial(ctx, at, nil) })
		require.NoError(t, err)
		defer c.Close()
		for _, late := range []time.Duration{0, 0, 0, 100 * time.Millisecond, time.Second} {
			there := time.Now()
			_, _, err := check(t.Context(), c)
			require.NoError(t, err)
			time.Sleep(5 * time.Second)
			(<-ends)()
			there = time.Now().Add(late)
			time.AfterFunc(late, start)
			_, name, err := check(t.Context(), c)
			require.NoError(t, err)
			require.Equal(t, "alice", name)
			require.Less(t, time.Since(there), time.Second)
		}
	})
}
