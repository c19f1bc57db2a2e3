package tunnel

import (
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
	"github.com/things-go/go-socks5/statute"
)

// unixPair returns the ends of a pair of sockets.
func unixPair(t *testing.T) (a, b *net.UnixConn) {
	ends := testenv.UnixPair(t)
	return ends[0], ends[1]
}

// upgrade puts a server in place of another one, and returns it with the end of the
// other's HandOver.
func upgrade(t *testing.T, old *testServer, users string, edit func(*ServerConfig)) (*testServer, <-chan error) {
	t.Helper()
	sockets, itsSockets := unixPair(t)
	control, itsControl := unixPair(t)
	handed := make(chan error, 1)
	go func() { handed <- old.HandOver(context.Background(), Handover{sockets, control}) }()
	return startServer(t, users, func(c *ServerConfig) {
		c.TakeOver, c.Certificate = Handover{itsSockets, itsControl}, old.config.Certificate
		if edit != nil {
			edit(c)
		}
	}), handed
}

// Connections of each kind stay in the server that they began in, through several
// upgrades; new ones come to the newest. A server ends with its last connection.
func TestConnectionsOutliveUpgrades(t *testing.T) {
	t.Parallel()
	s := startServer(t, everything, nil)
	at, reverse := testenv.Target(t, testenv.Echo), testenv.FreeAddress(t)
	c := startClient(t, clientConfig(t, s, "0:"+at, "0:socks", "0:"+udpTarget(t)+"/udp", "R:"+reverse+":"+at))
	forward, proxy, packets := c.address(t), c.address(t), c.address(t)
	require.Equal(t, reverse, c.address(t))
	open := func() (all []net.Conn) {
		conn, reply := socksDial(t, proxy, statute.CommandConnect, at)
		require.EqualValues(t, statute.RepSuccess, reply.Response)
		all = []net.Conn{dial(t, forward), dial(t, reverse), conn}
		for _, one := range all {
			require.NoError(t, echoes(one))
		}
		return all
	}
	flow := dialUDP(t, packets)
	testenv.ExchangePackets(t, flow, 100)

	conns := [][]net.Conn{open()}
	servers := []*testServer{s}
	var ends []<-chan error
	for i := range 3 {
		next, handed := upgrade(t, servers[i], everything, nil)
		servers, ends = append(servers, next), append(ends, handed)
		require.Equal(t, reverse, c.address(t), "the next session listens")
		for _, all := range conns {
			for _, one := range all {
				require.NoError(t, echoes(one))
			}
		}
		conns = append(conns, open())
		require.Equal(t, 3, next.Status().Connections)
		testenv.ExchangePackets(t, flow, 1000)
	}
	require.NotContains(t, c.log.String(), "level=WARN")
	for i, all := range conns[:3] {
		select {
		case err := <-ends[i]:
			t.Fatalf("server %d has ended with connections: %v", i, err)
		default:
		}
		for _, one := range all {
			require.NoError(t, echoes(one))
			require.NoError(t, one.Close())
		}
		if i == 0 {
			require.NoError(t, flow.Close())
			for _, f := range c.pool.all() { // as after the time-out
				f.session.mu.Lock()
				for _, each := range f.flows {
					each.end(codeIdle)
				}
				f.session.mu.Unlock()
			}
		}
		err := <-ends[i]
		require.NoError(t, err)
	}
	for _, one := range conns[3] {
		require.NoError(t, echoes(one))
	}
	waitFor(t, func() bool { return c.Status().Sessions == 1 })
}

// With a limit a server does not stay for its connections, however long they last, nor
// does the one before it. They end with resets.
func TestDrain(t *testing.T) {
	t.Parallel()
	s := startServer(t, everything, nil)
	at := testenv.Target(t, testenv.Echo)
	c := startClient(t, clientConfig(t, s, "0:"+at))
	forward := c.address(t)
	first := dial(t, forward)
	require.NoError(t, echoes(first))
	brief := func(c *ServerConfig) { c.Drain = 200 * time.Millisecond }
	second, handed := upgrade(t, s, everything, brief)
	waitFor(t, func() bool { return second.Status().Sessions == 1 })
	other := dial(t, forward)
	require.NoError(t, echoes(other))
	_, later := upgrade(t, second, everything, brief)
	for _, one := range []net.Conn{first, other} {
		_, err := io.ReadAll(one)
		requireReset(t, err)
	}
	for _, end := range []<-chan error{handed, later} {
		err := <-end
		require.NoError(t, err)
	}
	require.Contains(t, second.log.String(), "connections are ended")
	exchange(t, dial(t, forward), 1000)
}

// A client that was killed and begun again behind an upgrade listens at once, although
// its session before is in another process.
func TestReverseIsTakenOverAcrossUpgrades(t *testing.T) {
	t.Parallel()
	s := startServer(t, everything, impatient)
	at, remote := testenv.FreeAddress(t), ""
	remote = "R:" + at + ":" + testenv.Target(t, named("me"))
	config := clientConfig(t, s, remote)
	cut := vanish(t, config)
	require.Equal(t, "me", ask(t, at))
	cut()
	second, handed := upgrade(t, s, everything, impatient)
	third, later := upgrade(t, second, everything, impatient)
	c := startClient(t, clientConfig(t, third, remote))
	require.Equal(t, at, c.address(t))
	require.NotContains(t, c.log.String(), "does not listen")
	require.Equal(t, "me", ask(t, at))
	for _, end := range []<-chan error{handed, later} {
		err := <-end
		require.NoError(t, err)
	}
}

// What is revoked is revoked in all processes, and the end of the newest is that of all.
func TestServersBeforeFollow(t *testing.T) {
	t.Parallel()
	nobody := parsed(t, `{"other:word": [""]}`)
	var first, second *testServer
	var reloads atomic.Int64
	first = startServer(t, everything, func(c *ServerConfig) {
		c.Reload = func() {
			reloads.Add(1)
			_ = first.SetUsers(nobody)
		}
	})
	at := testenv.Target(t, testenv.Echo)
	c := startClient(t, clientConfig(t, first, "0:"+at))
	conn := dial(t, c.address(t))
	require.NoError(t, echoes(conn))
	second, handed := upgrade(t, first, everything, nil)
	third, later := upgrade(t, second, `{"me:secret": [""], "other:word": [""]}`, nil)
	waitFor(t, func() bool { return c.Status().Sessions == 2 })
	require.NoError(t, echoes(conn))
	third.Reload()
	require.EqualValues(t, 1, reloads.Load())
	_, err := io.ReadAll(conn)
	require.Error(t, err, "revoked in the first")
	require.NoError(t, <-handed)
	require.NoError(t, <-later)

	other := startClient(t, func() *ClientConfig {
		config := clientConfig(t, third, "0:"+at)
		config.User, config.Password = "other", "word"
		return config
	}())
	conn = dial(t, other.address(t))
	require.NoError(t, echoes(conn))
	fourth, handed := upgrade(t, third, everything, nil)
	fourth.stop()
	_, err = io.ReadAll(conn)
	require.Error(t, err, "the newest ends, and all with it")
	require.NoError(t, <-handed)
}

// A server that is not replaced after all goes on as before.
func TestUpgradeFails(t *testing.T) {
	t.Parallel()
	s, c := connected(t, "0:"+testenv.Target(t, testenv.Echo))
	at := c.address(t)
	conn := dial(t, at)
	require.NoError(t, echoes(conn))
	sockets, theirs := unixPair(t)
	control, theirControl := unixPair(t)
	require.NoError(t, theirs.Close())
	require.NoError(t, theirControl.Close())
	require.Error(t, s.HandOver(context.Background(), Handover{sockets, control}))
	require.NoError(t, echoes(conn))
	exchange(t, dial(t, at), 1000)
	require.NotContains(t, c.log.String(), "upgraded")
	next, _ := upgrade(t, s, everything, nil)
	require.NoError(t, echoes(conn))
	waitFor(t, func() bool { return next.Status().Sessions == 1 })
	require.Equal(t, 1, strings.Count(c.log.String(), "upgraded"))
}
