package tunnel

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/tunnel/internal/carrier"
	"github.com/arqnet/kcp/tunnel/internal/flowtable"
	"github.com/stretchr/testify/require"
	"github.com/things-go/go-socks5/statute"
)

// hanging is a net.Dialer whose targets do not answer.
type hanging struct {
	mu        sync.Mutex
	now, most int // dials in progress
	all       int
}

func (h *hanging) connect(ctx context.Context, _, _ string) (net.Conn, error) {
	h.mu.Lock()
	h.now++
	h.all++
	h.most = max(h.most, h.now)
	h.mu.Unlock()
	<-ctx.Done()
	h.mu.Lock()
	h.now--
	h.mu.Unlock()
	return nil, ctx.Err()
}

func (h *hanging) waitFor(t *testing.T, n int) {
	t.Helper()
	waitFor(t, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.now == n
	})
}

// theSession returns the session of a server that has one.
func theSession(t *testing.T, s *testServer) (found *serverSession) {
	t.Helper()
	waitFor(t, func() bool { return s.Status().Sessions == 1 })
	s.mu.Lock()
	defer s.mu.Unlock()
	for found = range s.sessions {
	}
	return found
}

// A dial ends with the stream that it is for, at a server and at a client with R:, so
// a peer that opens and resets streams has no more dials than streams (CVE-2023-44487).
func TestDialsEndWithTheirStreams(t *testing.T) {
	t.Parallel()
	var server, client hanging
	s := startServer(t, everything, func(c *ServerConfig) { c.connect, c.DialTimeout = server.connect, time.Hour })
	config := clientConfig(t, s, "R:127.0.0.1:0:host:80")
	config.connect, config.DialTimeout = client.connect, time.Hour
	c := startClient(t, config)
	_ = c.address(t)
	attacker, victim := theSession(t, s), c.pool.all()[0]
	victim.mu.Lock()
	var listener uint32
	for listener = range victim.reverse {
	}
	victim.mu.Unlock()
	for _, side := range []struct {
		dials *hanging
		s     *session
		o     opening
	}{
		{&server, &victim.session, opening{kind: kindTCP, target: "host:80"}},
		{&client, &attacker.session, opening{kind: kindReverseTCP, listener: listener}},
	} {
		for range 10 {
			var streams []carrier.Stream
			for range 20 {
				stream, err := side.s.open(context.Background(), side.o)
				require.NoError(t, err)
				streams = append(streams, stream)
			}
			side.dials.waitFor(t, len(streams))
			for _, stream := range streams {
				require.NoError(t, stream.Reset(1))
				side.s.release(stream)
			}
			side.dials.waitFor(t, 0)
		}
		require.LessOrEqual(t, side.dials.most, 20)
		require.Equal(t, 200, side.dials.all)
	}
}

// A user has so many dials at a time and no more, whatever the number of streams; the
// others wait their turn.
func TestDialsOfAUserAreLimited(t *testing.T) {
	t.Parallel()
	var dials hanging
	s := startServer(t, everything, func(c *ServerConfig) { c.connect, c.DialTimeout = dials.connect, time.Hour })
	var streams []*kcp.Stream
	for range 2 {
		conn := login(t, s, "me", "secret")
		for range maxDials {
			streams = append(streams, start(t, conn, opening{kind: kindTCP, target: "host:80"}.append(nil)))
		}
	}
	dials.waitFor(t, maxDials)
	for _, stream := range streams {
		_ = stream.Reset(1)
	}
	dials.waitFor(t, 0)
	require.Equal(t, maxDials, dials.most)
}

// accountWith enters the account of a user who has no session yet, and changes it under
// the lock with which sessions find it. The caller leaves it.
func accountWith(s *testServer, change func(*account)) *account {
	a := s.accounts.enter("me")
	s.accounts.mu.Lock()
	defer s.accounts.mu.Unlock()
	change(a)
	return a
}

// A user's connections have half of the descriptors at most, and further ones are
// refused.
func TestConnectionsOfAUserAreLimited(t *testing.T) {
	t.Parallel()
	s := startServer(t, everything, nil)
	at := testenv.Target(t, testenv.Echo)
	account := accountWith(s, func(a *account) { a.most = 2 })
	conn := login(t, s, "me", "secret")
	ask := func(k kind, target string) error {
		return awaitOpen(start(t, conn, opening{kind: k, target: target}.append(nil)))
	}
	require.NoError(t, ask(kindTCP, at))
	require.NoError(t, ask(kindListenTCP, "127.0.0.1:0"))
	require.ErrorIs(t, ask(kindTCP, at), codeFailed)
	require.ErrorIs(t, ask(kindListenTCP, "127.0.0.1:0"), codeFailed)
	require.NoError(t, conn.Abort(0, ""))
	waitFor(t, func() bool { return account.conns.Load() == 0 })
	s.accounts.leave("me")
	waitFor(t, func() bool {
		s.accounts.mu.Lock()
		defer s.accounts.mu.Unlock()
		return len(s.accounts.users) == 0
	})
}

// Nor has a server more connections of a client, from all that it says it has accepted.
func TestConnectionsOfAClientAreLimited(t *testing.T) {
	t.Parallel()
	s, c := connected(t, "R:127.0.0.1:0:"+testenv.Target(t, testenv.Echo))
	_ = c.address(t)
	require.Positive(t, c.account.most)
	c.account.most = 2 // nothing has come yet
	victim, hostile := c.pool.all()[0], theSession(t, s)
	victim.mu.Lock()
	o := opening{kind: kindReverseTCP}
	for o.listener = range victim.reverse {
	}
	victim.mu.Unlock()
	ask := func() (carrier.Stream, error) {
		stream, err := hostile.session.open(t.Context(), o)
		require.NoError(t, err)
		defer hostile.release(stream)
		return stream, awaitOpen(stream)
	}
	first, err := ask()
	require.NoError(t, err)
	_, err = ask()
	require.NoError(t, err)
	for range 3 {
		_, err = ask()
		require.ErrorIs(t, err, codeFailed)
	}
	require.NoError(t, first.Reset(1))
	waitFor(t, func() bool { return c.account.conns.Load() == 1 })
	_, err = ask()
	require.NoError(t, err)
}

// The socket of a UDP ASSOCIATE at the server is a descriptor more, of those that the
// user may have.
func TestAssociationsOfAUserAreLimited(t *testing.T) {
	t.Parallel()
	s := startServer(t, everything, nil)
	// A listener, two connections, a socket.
	account := accountWith(s, func(a *account) { a.most = 4 })
	defer s.accounts.leave("me")
	proxy := startClient(t, clientConfig(t, s, "R:127.0.0.1:0:socks")).address(t)
	first, reply := socksDial(t, proxy, statute.CommandAssociate, "0.0.0.0:0")
	require.EqualValues(t, statute.RepSuccess, reply.Response)
	_, reply = socksDial(t, proxy, statute.CommandAssociate, "0.0.0.0:0")
	require.EqualValues(t, statute.RepServerFailure, reply.Response)
	require.NoError(t, first.Close())
	waitFor(t, func() bool { return account.conns.Load() == 1 })
	_, reply = socksDial(t, proxy, statute.CommandAssociate, "0.0.0.0:0")
	require.EqualValues(t, statute.RepSuccess, reply.Response)
}

// limitFlows makes an account one with room for few flows.
func limitFlows(a *account, limit int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.flows = flowtable.New[flow](limit, unansweredTimeout, defaultUDPTimeout)
}

// All questions of one-shot askers are answered when there are more than there is room
// for, and a conversation goes on in its flow. Figures and the log say what was ended.
func TestFlowsMakeRoom(t *testing.T) {
	for name, remote := range map[string]string{"forward": "127.0.0.1:0:%s/udp", "reverse": "R:127.0.0.1:0:%s/udp"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := connected(t, fmt.Sprintf(remote, udpTarget(t)))
			at := c.address(t)
			atServer := theSession(t, s)
			waitFor(t, func() bool { return c.Status().Sessions == 1 })
			limitFlows(c.account, 4)
			limitFlows(atServer.account, 4)
			ask := func() net.Conn {
				conn, err := net.Dial("udp", at)
				require.NoError(t, err)
				t.Cleanup(func() { _ = conn.Close() })
				testenv.ExchangePackets(t, conn, 10)
				return conn
			}
			talking := ask()
			testenv.ExchangePackets(t, talking, 11)
			opener := &c.pool.all()[0].session
			if name == "reverse" {
				opener = &atServer.session
			}
			opener.mu.Lock()
			require.Len(t, opener.flows, 1)
			var first uint32
			for first = range opener.flows {
			}
			opener.mu.Unlock()
			for range 20 {
				ask()
			}
			testenv.ExchangePackets(t, talking, 12)
			opener.mu.Lock()
			_, there := opener.flows[first]
			opener.mu.Unlock()
			require.True(t, there, "the conversation has another flow now")
			evicted := func() int { return c.Status().Evicted + s.Status().Evicted }
			require.GreaterOrEqual(t, evicted(), 17)
			log := c.log.String() + s.log.String()
			require.Positive(t, strings.Count(log, "too many flows of UDP"))
			require.LessOrEqual(t, strings.Count(log, "too many flows of UDP"), 2, "one line at each end")
			before := s.Figures().of(t, "me").FlowsEvicted
			require.NoError(t, c.stop())
			require.Equal(t, before, s.Figures().of(t, "me").FlowsEvicted, "it outlives the session")
		})
	}
}

// An idle flow has no buffer, and little else, at the end that dials. It looks at the memory
// of the process, so no test runs beside it.
func TestIdleFlowsAreSmall(t *testing.T) {
	const n, most = 300, 20 << 10 // with what the test itself has for each
	if testenv.RaceEnabled {
		t.Skip("the race detector takes memory of its own")
	}
	s := startServer(t, everything, nil)
	conn := login(t, s, "me", "secret")
	to := udpTarget(t)
	used := func() uint64 {
		for range 3 {
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	open := func(from, upto int) {
		for i := range upto - from {
			stream, err := conn.OpenStream(context.Background(), &kcp.StreamOptions{Unordered: true})
			require.NoError(t, err)
			require.NoError(t, stream.WriteMessage(opening{kind: kindUDP, target: to}.append([]byte{messageControl}), nil))
			require.NoError(t, stream.WriteMessage([]byte{messagePacket, byte(i)}, nil))
		}
		waitFor(t, func() bool { return s.Status().Connections == upto })
	}
	open(0, 20)
	before := used()
	open(20, n)
	each := func() int { return (int(used()) - int(before)) / (n - 20) }
	waitFor(t, func() bool { return each() < most }) // collections shrink stacks
	t.Logf("%d bytes a flow", each())
}

// Flows that were ended to make room, and have not given back their sockets yet, are
// bounded, too: further ones wait for them.
func TestFlowsThatEndAreCounted(t *testing.T) {
	const more = 20
	t.Parallel()
	s := startServer(t, everything, nil)
	accountWith(s, func(a *account) { a.carried = make(chan struct{}, 2) })
	defer s.accounts.leave("me")
	conn := login(t, s, "me", "secret")
	at := theSession(t, s)
	var streams []*kcp.Stream
	for range 2 + more {
		stream, err := conn.OpenStream(context.Background(), &kcp.StreamOptions{Unordered: true})
		require.NoError(t, err)
		require.NoError(t, stream.WriteMessage(opening{kind: kindUDP, target: "127.0.0.1:9"}.append([]byte{messageControl}), nil))
		streams = append(streams, stream)
	}
	for ended := range more {
		waitFor(t, func() bool { return at.handled.Load() == int64(more-ended) && at.active.Load() == 2 })
		for i, stream := range streams { // one of those that are carried
			at.session.mu.Lock()
			carried := at.flows[stream.ID()] != nil
			at.session.mu.Unlock()
			if carried {
				require.NoError(t, stream.Reset(1))
				streams = slices.Delete(streams, i, i+1)
				break
			}
		}
	}
	waitFor(t, func() bool { return at.handled.Load() == 0 && at.active.Load() == 2 })
}

// What waits for a flow's opening is on the account, and little.
func TestPacketsBeforeTheOpening(t *testing.T) {
	t.Parallel()
	s := startServer(t, everything, nil)
	conn := login(t, s, "me", "secret")
	account := theSession(t, s).account
	stream, err := conn.OpenStream(context.Background(), &kcp.StreamOptions{Unordered: true})
	require.NoError(t, err)
	packet := append([]byte{messagePacket}, testenv.Random(100)...)
	for range 2 * flowQueue {
		require.NoError(t, stream.WriteMessage(packet, nil))
	}
	waitFor(t, func() bool { return account.packets.Load() == flowQueue*100 })
	require.NoError(t, stream.Reset(1))
	waitFor(t, func() bool { return account.packets.Load() == 0 })

	require.True(t, account.keepPacket(maxPacketBytes))
	require.False(t, account.keepPacket(1))
	account.dropPacket(maxPacketBytes)
}
