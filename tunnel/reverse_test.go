package tunnel

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// vanish runs a client behind a link that is cut, so that its server does not learn of
// its end.
func vanish(t *testing.T, config *ClientConfig) (cut func()) {
	t.Helper()
	relay, err := netsim.NewRelay(config.Servers[0], netsim.LinkConfig{}, netsim.LinkConfig{}, 1)
	require.NoError(t, err)
	config.Servers = []string{relay.Addr().String()}
	config.shutdown = 100 * time.Millisecond // nobody answers
	c := startClient(t, config)
	c.address(t)
	return func() {
		require.NoError(t, relay.Close())
		_ = c.stop()
	}
}

// impatient has a server not wait long for clients that have vanished.
func impatient(c *ServerConfig) {
	c.aliveWait, c.shutdown = 300*time.Millisecond, 100*time.Millisecond
}

// named answers with a name.
func named(name string) func(*net.TCPConn) {
	return func(conn *net.TCPConn) { _, _ = io.WriteString(conn, name) }
}

// ask returns what a target says.
func ask(t *testing.T, address string) string {
	t.Helper()
	conn := dial(t, address)
	b, err := io.ReadAll(conn)
	require.NoError(t, err)
	return string(b)
}

// A client that has vanished, and was begun again, listens at once, although its server
// still waits for the one before. What was open through that ends soon.
func TestReverseIsTakenOver(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"tcp", "udp", "socks"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, everything, impatient)
			at, target := testenv.FreeAddress(t), testenv.Target(t, testenv.Echo)
			remote := "R:" + at + ":" + map[string]string{"tcp": target, "udp": udpTarget(t) + "/udp", "socks": "socks"}[kind]
			cut := vanish(t, clientConfig(t, s, remote))
			var before *net.TCPConn
			if kind == "tcp" {
				before = dial(t, at)
				require.NoError(t, echoes(before))
			}
			cut()
			require.Equal(t, 1, s.Status().Sessions, "the server does not know yet")
			again := startClient(t, clientConfig(t, s, remote))
			require.Equal(t, at, again.address(t))
			require.NotContains(t, again.log.String(), "does not listen", "at the first attempt")
			switch kind {
			case "udp":
				conn := dialUDP(t, at)
				testenv.ExchangePackets(t, conn, 100)
			case "tcp":
				exchange(t, dial(t, at), 1000)
				_, err := io.ReadAll(before)
				requireReset(t, err)
			}
		})
	}
}

// Of two clients that both live the later one has the address. The other takes it back
// when that has gone, and not sooner.
func TestReverseOfTwoClients(t *testing.T) {
	t.Parallel()
	s := startServer(t, `{"me:secret": [""], "you:word": [""]}`, nil)
	at := testenv.FreeAddress(t)
	first := startClient(t, clientConfig(t, s, "R:"+at+":"+testenv.Target(t, named("first"))))
	require.Equal(t, at, first.address(t))
	require.Equal(t, "first", ask(t, at))
	second := startClient(t, clientConfig(t, s, "R:"+at+":"+testenv.Target(t, named("second"))))
	require.Equal(t, at, second.address(t))
	require.Equal(t, "second", ask(t, at))
	waitFor(t, func() bool { return strings.Count(first.log.String(), codeInUse.Error()) > 3 })
	require.Contains(t, first.log.String(), codeTaken.Error())
	require.Equal(t, "second", ask(t, at), "the first does not take it from one that lives")

	config := clientConfig(t, s, "R:"+at+":"+testenv.Target(t, named("third")))
	config.User, config.Password = "you", "word"
	third := startClient(t, config)
	waitFor(t, func() bool { return strings.Contains(third.log.String(), codeInUse.Error()) })
	require.Equal(t, "second", ask(t, at), "another user takes nothing")
	require.NoError(t, third.stop())

	require.NoError(t, second.stop())
	require.Equal(t, at, first.address(t))
	require.Equal(t, "first", ask(t, at))
	require.Equal(t, 1, s.Status().Sessions)
}

// A session that begins later and vanishes gives the address back to one that lives.
func TestReverseOfOneThatVanished(t *testing.T) {
	t.Parallel()
	s := startServer(t, everything, impatient)
	at := testenv.FreeAddress(t)
	first := startClient(t, clientConfig(t, s, "R:"+at+":"+testenv.Target(t, named("first"))))
	require.Equal(t, at, first.address(t))
	vanish(t, clientConfig(t, s, "R:"+at+":"+testenv.Target(t, named("second"))))()
	require.Equal(t, at, first.address(t))
	require.Equal(t, "first", ask(t, at))
}

// A client that is refused because somebody listens there tries again within 2 s,
// however long it may wait for other things.
func TestRefusedListenIsTriedSoon(t *testing.T) {
	require.Equal(t, maxListenWait, listenPause(codeInUse, time.Hour))
	require.Equal(t, maxListenWait, listenPause(codeTaken, time.Hour))
	require.Equal(t, time.Second, listenPause(codeTaken, time.Second))
	require.Equal(t, time.Hour, listenPause(codeForbidden, time.Hour))
}

// A client with two ways to a server listens through the later one, and says nothing of
// the other while that lives. When it does not, the other is taken.
func TestReverseOverTwoWays(t *testing.T) {
	t.Parallel()
	s := startServer(t, everything, nil)
	at := testenv.FreeAddress(t)
	config := clientConfig(t, s, "R:"+at+":"+testenv.Target(t, testenv.Echo))
	config.Binds = []string{"127.0.0.1", "127.0.0.2"}
	c := startClient(t, config)
	require.Equal(t, at, c.address(t))
	waitFor(t, func() bool { return strings.Count(c.log.String(), codeInUse.Error()) > 3 })
	for len(c.listening) > 0 { // the earlier one may have come first
		<-c.listening
	}
	require.LessOrEqual(t, strings.Count(c.log.String(), `level=WARN msg="the server does not listen"`), 1)
	exchange(t, dial(t, at), 1000)
	var later *serverSession
	s.mu.Lock()
	for each := range s.sessions {
		if later == nil || each.number > later.number {
			later = each
		}
	}
	s.mu.Unlock()
	require.NoError(t, later.conn.Abort(0, ""))
	require.Equal(t, at, c.address(t))
	exchange(t, dial(t, at), 1000)
}

// Rules that no longer allow to listen end that, and nothing else.
func TestReverseIsRevoked(t *testing.T) {
	t.Parallel()
	s := startServer(t, everything, nil)
	kept, gone := testenv.FreeAddress(t), testenv.FreeAddress(t)
	echoes := testenv.Target(t, testenv.Echo)
	c := startClient(t, clientConfig(t, s, "R:"+kept+":"+echoes, "R:"+gone+":"+echoes, "R:127.0.0.1:0:"+echoes, "R:"+gone+":"+udpTarget(t)+"/udp"))
	var all []string
	for range 4 {
		all = append(all, c.address(t))
	}
	users := parsed(t, `{"me:secret": ["^R:`+strings.ReplaceAll(kept, ".", "\\\\.")+`$"]}`)
	require.NoError(t, s.SetUsers(users))
	for _, at := range all {
		if at != kept {
			waitForRefusal(t, at)
		}
	}
	waitFor(t, func() bool {
		pc, err := net.ListenPacket("udp", gone)
		if err == nil {
			pc.Close()
		}
		return err == nil
	})
	exchange(t, dial(t, kept), 1000)
	waitFor(t, func() bool { return strings.Count(c.log.String(), codeForbidden.Error()) >= 3 })
	require.Equal(t, 1, s.Status().Sessions)
}

// Users whom a server would refuse at its start are refused later, too.
func TestLaterUsersRefused(t *testing.T) {
	s := startServer(t, everything, nil)
	for text, want := range map[string]string{`{}`: "no users", `{"laptop": [""]}`: "no authority"} {
		users := parsed(t, text)
		require.ErrorContains(t, s.SetUsers(users), want)
	}
	require.ErrorContains(t, s.SetUsers(nil), "no users")
	conn := login(t, s, "me", "secret")
	require.NoError(t, conn.Err())
	_, err := conn.Ping(context.Background())
	require.NoError(t, err)
}
