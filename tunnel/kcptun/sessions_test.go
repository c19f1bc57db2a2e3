package kcptun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// hanging is a resolver that answers so many times, and then no more.
type hanging struct{ left atomic.Int64 }

func (h *hanging) lookUp(ctx context.Context, host string) (netip.Addr, error) {
	if h.left.Add(-1) < 0 {
		<-ctx.Done()
		return netip.Addr{}, ctx.Err()
	}
	return lookUp(ctx, host)
}

// While the resolver hangs, the sessions that there are take the connections: with one of
// two, and with one that has expired. Nobody waits for what takes the place of another.
func TestResolverHangs(t *testing.T) {
	at := testenv.Target(t, testenv.Echo)
	s := ServerDefaults()
	s.Listen, s.Target = "127.0.0.1:0", at
	server := start(t, Serve, s)
	for name, edit := range map[string]func(*Config){
		"second of two": func(c *Config) { c.Conn = 2 },
		"expired":       func(c *Config) { c.AutoExpire = time.Millisecond },
		"both":          func(c *Config) { c.Conn, c.AutoExpire = 4, time.Millisecond },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			resolver := new(hanging)
			resolver.left.Store(1)
			c := ClientDefaults()
			c.Listen, c.Target, c.lookUp = "127.0.0.1:0", server, resolver.lookUp
			edit(&c)
			local := start(t, Run, c)
			var running sync.WaitGroup
			for range 20 {
				exchange(t, local, 1000)
				running.Go(func() { exchange(t, local, 1000) })
			}
			running.Wait()
			require.Negative(t, resolver.left.Load())
		})
	}
}

// A resolver that fails is no reason to refuse what a session can carry, and nothing else
// is carried.
func TestResolverFails(t *testing.T) {
	s := ServerDefaults()
	s.Listen, s.Target = "127.0.0.1:0", testenv.Target(t, testenv.Echo)
	c := ClientDefaults()
	c.Listen, c.Target, c.AutoExpire = "127.0.0.1:0", start(t, Serve, s), time.Millisecond
	var answers atomic.Bool
	c.lookUp = func(ctx context.Context, host string) (netip.Addr, error) {
		if !answers.Load() {
			return netip.Addr{}, errors.New("no such host")
		}
		return lookUp(ctx, host)
	}
	local := start(t, Run, c)
	conn, err := net.Dial("tcp", local)
	if err == nil { // it may be reset before Dial has returned
		defer conn.Close()
		_, err = conn.Read(make([]byte, 1))
	}
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	answers.Store(true)
	exchange(t, local, 1000)
	answers.Store(false)
	exchange(t, local, 1000)
}

// An expired session is closed when its time has come, or not at all.
func TestScavenging(t *testing.T) {
	for name, ttl := range map[string]time.Duration{"at once": 0, "never": -time.Second} {
		t.Run(name, func(t *testing.T) {
			local := pair(t, testenv.Target(t, testenv.Echo), func(c *Config) { c.AutoExpire, c.ScavengeTTL = time.Millisecond, ttl })
			conn, err := net.Dial("tcp", local)
			require.NoError(t, err)
			defer conn.Close()
			says := func() error {
				_, err := io.WriteString(conn, "hello")
				if err == nil {
					_, err = io.ReadFull(conn, make([]byte, 5))
				}
				return err
			}
			require.NoError(t, says())
			for range 10 { // each has a session of its own
				exchange(t, local, 100)
			}
			if ttl < 0 {
				require.NoError(t, says())
				return
			}
			testenv.Await(t, func() bool { return says() != nil })
		})
	}
}

// A server listens on each port of a range, and the sessions of a client use several.
func TestRangeOfPorts(t *testing.T) {
	s, c, used := ServerDefaults(), ClientDefaults(), new(testenv.Records)
	s.Target = testenv.Target(t, testenv.Echo)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	first, last := 0, 0
	ended, listening := make(chan error, 1), make(chan struct{}, 5)
	for begun := false; !begun; { // until there are free ones
		on := make(chan struct{}, 5)
		listening, s.Listening = on, func(net.Addr) { on <- struct{}{} }
		first = 16000 + rand.IntN(3000)
		last = first + 4
		s.Listen = fmt.Sprintf("127.0.0.1:%d-%d", first, last)
		go func() { ended <- Serve(ctx, s) }()
		select {
		case <-listening:
			begun = true
		case <-ended:
		}
	}
	c.Listen, c.Target, c.Conn = "127.0.0.1:0", fmt.Sprintf("127.0.0.1:%d-%d", first, last), 30
	c.Logger = slog.New(slog.NewTextHandler(used, nil))
	local := start(t, Run, c)
	for range 30 {
		exchange(t, local, 1000)
	}
	several := 0
	for port := first; port <= last; port++ {
		if strings.Contains(used.String(), "server=127.0.0.1:"+strconv.Itoa(port)) {
			several++
		}
	}
	require.Greater(t, several, 1)
	require.Len(t, listening, 4, "and the first")
	cancel()
	require.NoError(t, <-ended)
}

// A wrong key is said at both ends, as is a wrong setting that can be told.
func TestEndsDiffer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit         func(*Config) // of the client
		server, said string        // in the logs
	}{
		"key":     {func(c *Config) { c.Key = "another" }, "key or crypt of a client differ", "key, crypt, datashard or parityshard differ"},
		"crypt":   {func(c *Config) { c.Crypt = "salsa20" }, "key or crypt of a client differ", "key, crypt, datashard or parityshard differ"},
		"nocomp":  {func(c *Config) { c.NoComp = true }, "nocomp or smuxver of the other end differ", ""},
		"smuxver": {func(c *Config) { c.SmuxVer = 2 }, "nocomp or smuxver of the other end differ", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			here, there := new(testenv.Records), new(testenv.Records)
			s, own := ServerDefaults(), ClientDefaults()
			s.Listen, s.Target, own.Listen = "127.0.0.1:0", testenv.Target(t, testenv.Echo), "127.0.0.1:0"
			s.Logger, own.Logger = slog.New(slog.NewTextHandler(there, nil)), slog.New(slog.NewTextHandler(here, nil))
			own.Target = start(t, Serve, s)
			c.edit(&own)
			at := start(t, Run, own)
			say := func() { // until the session has ended: connections end with it
				if conn, err := net.Dial("tcp", at); err == nil {
					t.Cleanup(func() { _ = conn.Close() })
					_, _ = io.WriteString(conn, strings.Repeat("hello", 1000))
				}
			}
			say()
			testenv.Await(t, func() bool {
				say()
				return strings.Contains(there.String(), c.server) && strings.Contains(here.String(), c.said)
			})
		})
	}
}
