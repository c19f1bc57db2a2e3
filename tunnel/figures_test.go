package tunnel

import (
	"fmt"
	"net"
	"testing"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// of returns the figures of a user.
func (f Figures) of(t *testing.T, name string) UserFigures {
	t.Helper()
	for _, u := range f.Users {
		if u.User == name {
			return u
		}
	}
	t.Fatalf("there are no figures of %q", name)
	return UserFigures{}
}

// What users carry is counted by their names: connections and flows, both ways round, the
// bytes of both directions, what was refused, and what could not be reached.
func TestFiguresByUser(t *testing.T) {
	t.Parallel()
	refusing := testenv.FreeAddress(t)
	at, packets := testenv.Target(t, testenv.Echo), udpTarget(t)
	rules := fmt.Sprintf(`["^%s$", "^%s/udp$", "^R:127.*$", "^%s$", "^socks-none$"]`, at, packets, refusing)
	s := startServer(t, fmt.Sprintf(`{"me:secret": %s, "you:secret": [""]}`, rules), nil)
	config := clientConfig(t, s, "0:"+at, "R:127.0.0.1:0:"+at, "0:"+packets+"/udp", "0:"+refusing, "0:socks")
	c := startClient(t, config)
	locals := make(map[string]string) // one remote after another, but for the reverse one
	for len(locals) < 5 {
		a := c.address(t)
		locals[fmt.Sprint(len(locals))] = a
	}
	waitFor(t, func() bool { return s.Status().Sessions == 1 })
	exchange(t, dial(t, locals["0"]), 10_000)
	conn := dialUDP(t, locals["1"])
	testenv.ExchangePackets(t, conn, 100)
	_, err := tryHello(t, locals["2"]) // refused by the target
	require.Error(t, err)
	socks := dial(t, locals["3"]) // not allowed
	_, err = socks.Write([]byte("\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x01"))
	require.NoError(t, err)
	waitFor(t, func() bool { return s.Figures().of(t, "me").Refused == 1 })
	exchange(t, dial(t, locals["4"]), 3000)

	waitFor(t, func() bool { return s.Figures().of(t, "me").Connections == 0 })
	me := s.Figures().of(t, "me")
	require.Equal(t, 1, me.Flows)
	require.GreaterOrEqual(t, me.Sent, uint64(13_100)) // packets that were lost come again
	require.GreaterOrEqual(t, me.Received, uint64(13_100))
	require.Less(t, me.Sent, uint64(14_000))
	require.Less(t, me.Received, uint64(14_000))
	me.Sent, me.Received = 0, 0
	require.Equal(t, UserFigures{User: "me", Sessions: 1, Flows: 1, Logins: 1, ConnectionsOpened: 2, FlowsOpened: 1, Refused: 1, Failed: 1}, me)
	require.Equal(t, UserFigures{User: "you"}, s.Figures().of(t, "you"))
	require.Equal(t, UserFigures{}, s.Figures().of(t, ""))

	var names []string
	for session := range s.Endpoint().Sessions() {
		names = append(names, s.UserOf(session))
	}
	if !overTCP(t) { // these have no endpoint
		require.Equal(t, []string{"me"}, names)
	}
	require.NoError(t, c.stop())
	waitFor(t, func() bool { return s.Figures().of(t, "me").Sessions == 0 })
	require.Zero(t, s.Figures().of(t, "me").Flows)
	require.Empty(t, s.tallies.names)
	require.Empty(t, s.UserOf(new(kcp.Conn)))
}

// Clients that are turned away are counted by reason, and by the user that they name, if
// there is one: what strangers call themselves is not kept.
func TestFiguresOfTheTurnedAway(t *testing.T) {
	s, err := Listen(&ServerConfig{Addr: "127.0.0.1:0", Users: parsed(t, `{"me:secret": [""], "you:x": [""]}`), Certificate: key(t)})
	require.NoError(t, err)
	defer s.Close()
	away := func(code helloCode, user string) string {
		name, left := s.tallies.away(fmt.Errorf("no: %w", &turnedAway{welcome{Code: code}, user}))
		require.False(t, left)
		return name
	}
	for i := range 10_000 {
		away(helloWrong, fmt.Sprint("stranger", i))
	}
	require.Equal(t, "me", away(helloWrong, "me"))
	away(helloAttempts, "me")
	away(helloAttempts, "me")
	away(helloForbidden, "me")
	away(helloNoName, "")
	s.tallies.away(errFull)
	s.tallies.away(net.ErrClosed)
	f := s.Figures()
	require.Len(t, f.Users, 3)
	require.Equal(t, UserFigures{User: "me", WrongPasswords: 1, Lockouts: 2, Refused: 1}, f.of(t, "me"))
	require.Equal(t, UserFigures{WrongPasswords: 10_000}, f.of(t, ""))
	require.Equal(t, map[string]uint64{
		"wrong-identity": 10_001, "attempts": 2, "forbidden": 1, "no-identity": 1, "full": 1, "no-hello": 1,
	}, f.TurnedAway)

	// Counts stay over a reload, and go with the user.
	s.SetUsers(parsed(t, `{"me:secret": [""], "new:x": [""]}`))
	require.Equal(t, []string{"", "me", "new"}, []string{s.Figures().Users[0].User, s.Figures().Users[1].User, s.Figures().Users[2].User})
	require.Equal(t, uint64(2), s.Figures().of(t, "me").Lockouts)
	for i := range 100 {
		s.SetUsers(parsed(t, fmt.Sprintf(`{"user%d:secret": [""]}`, i)))
	}
	require.Len(t, s.Figures().Users, 2)
}
