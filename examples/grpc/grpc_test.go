package main

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/examples/internal/lab"
)

// both returns settings with TLS and certificates that serve either end.
func both(t *testing.T) *tls.Config {
	t.Helper()
	config, client, err := newIdentities("alice")
	require.NoError(t, err)
	config.Certificates = append(config.Certificates, client.Certificates...)
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &client.Certificates[0], nil
	}
	config.RootCAs, config.ServerName = client.RootCAs, client.ServerName
	return config
}

// over runs a test of a server and a client over sessions. The server reports the
// end of each stream.
func over(t *testing.T, test func(t *testing.T, stop func() error, c *grpc.ClientConn, ended, served <-chan error)) {
	lab.RunInRealTime(t, settings(both(t)), func(t *testing.T, l net.Listener, dial lab.Dial) {
		ended, served := make(chan error, 10), make(chan error, 1)
		s := newServer(grpc.StreamInterceptor(func(s any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			err := handler(s, stream)
			ended <- err
			return err
		}))
		defer s.Stop()
		go func() { served <- s.Serve(l) }()
		c, err := newClient(l.Addr().String(), func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) })
		require.NoError(t, err)
		defer c.Close()
		stop := func() error {
			err := shutdown(t.Context(), s, l.(*kcp.Listener))
			for range l.(*kcp.Listener).Endpoint().Sessions() {
				t.Error("a session that may not have delivered all")
			}
			return err
		}
		test(t, stop, c, ended, served)
	})
}

// Calls of both kinds go through, and the server knows the client by its certificate.
func TestCalls(t *testing.T) {
	over(t, func(t *testing.T, _ func() error, c *grpc.ClientConn, ended, _ <-chan error) {
		state, err := grpc_health_v1.NewHealthClient(c).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		require.NoError(t, err)
		require.Equal(t, grpc_health_v1.HealthCheckResponse_SERVING, state.Status)
		name, err := client{c}.WhoAmI(t.Context(), grpc.PerRPCCredentials(secret{}))
		require.NoError(t, err)
		require.Equal(t, "alice", name)
		stream, err := client{c}.Count(t.Context(), 2000)
		require.NoError(t, err)
		for want := uint64(1); want <= 2000; want++ {
			number, err := stream.Recv()
			require.NoError(t, err)
			require.Equal(t, want, number.Value)
		}
		_, err = stream.Recv()
		require.Equal(t, io.EOF, err)
		require.NoError(t, <-ended)
	})
}

// secret is a credential of a call that must not go over an insecure transport.
type secret struct{}

func (secret) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "secret"}, nil
}
func (secret) RequireTransportSecurity() bool { return true }

// A call that is cancelled, or whose deadline passes, ends at the server too, although
// the client does not read; and the session goes on.
func TestDeadlineAndCancellation(t *testing.T) {
	over(t, func(t *testing.T, _ func() error, c *grpc.ClientConn, ended, _ <-chan error) {
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := client{c}.Count(ctx, 0)
		require.NoError(t, err)
		_, err = stream.Recv()
		require.NoError(t, err)
		cancel()
		require.Equal(t, codes.Canceled, status.Code(<-ended))
		for err == nil {
			_, err = stream.Recv()
		}
		require.Equal(t, codes.Canceled, status.Code(err))

		ctx, cancel = context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		stream, err = client{c}.Count(ctx, 0)
		require.NoError(t, err)
		for err == nil {
			_, err = stream.Recv()
		}
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
		require.Contains(t, []codes.Code{codes.DeadlineExceeded, codes.Canceled}, status.Code(<-ended), "whichever arrives first")

		name, err := client{c}.WhoAmI(t.Context())
		require.NoError(t, err)
		require.Equal(t, "alice", name)
	})
}

// shutdown lets a call in progress finish, and takes no other.
func TestShutdown(t *testing.T) {
	over(t, func(t *testing.T, stop func() error, c *grpc.ClientConn, _, served <-chan error) {
		const last = 50_000 // more than the windows of HTTP/2 hold, so that it waits for Recv
		stream, err := client{c}.Count(t.Context(), last)
		require.NoError(t, err)
		_, err = stream.Recv()
		require.NoError(t, err)
		stopped := make(chan error, 1)
		go func() { stopped <- stop() }()
		require.True(t, c.WaitForStateChange(t.Context(), connectivity.Ready), "the client was told")
		select {
		case <-stopped:
			t.Fatal("stopped while a call was in progress")
		default:
		}
		for want := uint64(2); want <= last; want++ {
			number, err := stream.Recv()
			require.NoError(t, err)
			require.Equal(t, want, number.Value)
		}
		_, err = stream.Recv()
		require.Equal(t, io.EOF, err)
		require.NoError(t, <-stopped)
		require.NoError(t, <-served)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err = client{c}.WhoAmI(ctx)
		require.Contains(t, []codes.Code{codes.Unavailable, codes.DeadlineExceeded}, status.Code(err))
	})
}

// A session without TLS carries no calls, nor one whose certificate is for another
// server than the calls name.
func TestInsecureSessionsAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		config    *tls.Config
		authority string
		want      string
	}{
		"no TLS":       {nil, serverName, "without TLS"},
		"other server": {both(t), "other.example", "other.example"},
	} {
		t.Run(name, func(t *testing.T) {
			lab.RunInRealTime(t, settings(test.config), func(t *testing.T, l net.Listener, dial lab.Dial) {
				session, err := dial(t.Context())
				require.NoError(t, err)
				defer session.Close()
				_, _, err = newCredentials().ClientHandshake(t.Context(), test.authority, session)
				require.ErrorContains(t, err, test.want)
			})
		})
	}
}
