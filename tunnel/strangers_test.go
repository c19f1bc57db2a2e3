package tunnel

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// simulatedNetwork is a network with a server of a tunnel on it, whose users have the
// password "secret", which takes 60 ms to verify.
type simulatedNetwork struct {
	*netsim.Network
	t  *testing.T
	at net.Addr
}

// onNetwork runs f beside a server, in virtual time.
func onNetwork(t *testing.T, f func(n *simulatedNetwork)) {
	synctest.Test(t, func(t *testing.T) {
		n := &simulatedNetwork{netsim.NewNetwork(1, netsim.LinkConfig{Delay: 10 * time.Millisecond}), t, nil}
		pc, err := n.Listen("10.0.0.1:4000")
		require.NoError(t, err)
		defer pc.Close()
		s, err := Listen(&ServerConfig{Socket: pc, Certificate: key(t), Users: parsed(t, fmt.Sprintf(`{"me:%s": [""]}`, hashed(t, "secret")))})
		require.NoError(t, err)
		s.verifier.turns = fair.NewQueue(1, 0)
		s.verifier.compare = func(_, password []byte) error {
			time.Sleep(60 * time.Millisecond)
			if string(password) != "secret" {
				return errors.New("wrong")
			}
			s.verifier.keep(new(Users)) // as if each user had a password of their own
			return nil
		}
		n.at = s.Addr()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Serve(ctx) }()
		f(n)
		cancel()
		require.NoError(t, <-ended)
	})
}

// client runs f with a session from an address.
func (n *simulatedNetwork) client(ctx context.Context, address string, f func(*kcp.Conn) error) error {
	pc, err := n.Listen(address)
	require.NoError(n.t, err)
	defer pc.Close()
	e, err := kcp.NewEndpoint(pc, &kcp.Config{TLS: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}}})
	require.NoError(n.t, err)
	defer e.Close()
	conn, err := e.Dial(ctx, n.at, nil)
	if err != nil {
		return err
	}
	defer conn.Abort(0, "")
	return f(conn)
}

// login shows a password, and returns the server's answer.
func (n *simulatedNetwork) login(ctx context.Context, address, password string) (w welcome, err error) {
	err = n.client(ctx, address, func(conn *kcp.Conn) error {
		stream, err := conn.OpenStream(ctx, nil)
		if err != nil {
			return err
		}
		stop := context.AfterFunc(ctx, func() { _ = conn.Abort(0, "") })
		defer stop()
		if _, err = stream.Write(opening{kind: kindHello}.append(nil)); err == nil {
			err = writeJSON(stream, hello{User: "me", Password: password})
		}
		if err == nil {
			err = readJSON(stream, &w)
		}
		return err
	})
	return w, err
}

// Users who log in are let in within 2 s, while a stranger with a whole /48, or a /24,
// tries 25 passwords a second and leaves as many sessions open as may be.
func TestLoginsUnderAttack(t *testing.T) {
	for name, address := range map[string]func(i int) string{
		"a /48": func(i int) string { return fmt.Sprintf("[2001:db8:1:%x::1]:0", i) },
		"a /24": func(i int) string { return fmt.Sprintf("192.0.2.%d:0", i%256) },
	} {
		t.Run(name, func(t *testing.T) {
			onNetwork(t, func(n *simulatedNetwork) {
				ctx, cancel := context.WithCancel(n.t.Context())
				var all sync.WaitGroup
				for i := range 250 { // which say nothing
					all.Go(func() {
						_ = n.client(ctx, address(i), func(conn *kcp.Conn) error {
							<-ctx.Done()
							return nil
						})
					})
				}
				all.Go(func() {
					for i := 250; ctx.Err() == nil; i++ {
						all.Go(func() { _, _ = n.login(ctx, address(i), "guess") })
						time.Sleep(time.Second / 25)
					}
				})
				time.Sleep(4 * time.Second)
				for i := range 20 {
					limited, stop := context.WithTimeout(ctx, 2*time.Second)
					w, err := n.login(limited, fmt.Sprintf("198.51.%d.1:0", i), "secret")
					stop()
					require.NoError(n.t, err, "user %d", i)
					require.Zero(n.t, w)
				}
				cancel()
				all.Wait()
			})
		})
	}
}
