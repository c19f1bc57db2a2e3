package tunnel

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// Records name the target, of reverse connections and of packets too, and the user. What
// has worked is logged with -v, without an error.
func TestRecordsNameTargets(t *testing.T) {
	t.Parallel()
	s := startServer(t, everything, nil)
	at, packets := testenv.Target(t, testenv.Echo), udpTarget(t)
	config := clientConfig(t, s, "0:"+at, "0:"+packets+"/udp", "0:no-such-name.invalid:53/udp", "R:127.0.0.1:0:"+at)
	config.UDPTimeout = 100 * time.Millisecond
	c := startClient(t, config)
	forward, flow, nobody, reverse := c.address(t), c.address(t), c.address(t), c.address(t)
	has := func(l *testenv.Records, want ...string) {
		t.Helper()
		waitFor(t, func() bool { return len(l.Of(want...)) > 0 })
	}
	exchange(t, dial(t, forward), 100)
	has(c.log, "connection ended", "target="+at, "from=127.0.0.1:", "lasted=")
	has(s.log, "connection ended", "user=me", "kind=tcp", "target="+at, "lasted=")
	exchange(t, dial(t, reverse), 100)
	has(s.log, "connection ended", "user=me", "kind=listen-tcp", "address="+reverse, "from=127.0.0.1:")
	has(c.log, "connection ended", "kind=reverse-tcp", "target="+at)
	testenv.ExchangePackets(t, dialUDP(t, flow), 10)
	has(s.log, "flow ended", "user=me", "kind=udp", "target="+packets)
	_, err := dialUDP(t, nobody).Write([]byte("x"))
	require.NoError(t, err)
	has(c.log, "packets refused", "target=no-such-name.invalid:53")
	for _, l := range []*testenv.Records{s.log, c.log} {
		require.Empty(t, l.Of("error=<nil>"))
		require.Empty(t, l.Of(`target=""`))
	}
}

// What fails for a reason that the client is not told is logged as a warning where it is
// known.
func TestCauseIsLoggedWhereItIsKnown(t *testing.T) {
	t.Parallel()
	s, c := connected(t, "R:192.0.2.1:0:127.0.0.1:80")
	waitFor(t, func() bool { return len(c.log.Of("level=WARN", "its log says why")) > 0 })
	require.NotEmpty(t, s.log.Of("level=WARN", "msg=refused", "user=me", "target=192.0.2.1:0", "error="), fmt.Sprint(s.log))
}

// A user who asks for what is forbidden, again and again, leaves room in the log.
func TestRecordsOfAUserAreLimited(t *testing.T) {
	t.Parallel()
	s := startServer(t, `{"me:secret": ["^socks$"]}`, nil)
	conn := login(t, s, "me", "secret")
	for range 1000 {
		stream := start(t, conn, opening{kind: kindListenTCP, target: "127.0.0.1:0"}.append(nil))
		require.Equal(t, codeForbidden, refusalOf(t, stream))
	}
	require.NoError(t, conn.Abort(0, ""))
	waitFor(t, func() bool { return strings.Contains(s.log.String(), "session ended") })
	require.Less(t, strings.Count(s.log.String(), "msg=refused"), 500)
}
