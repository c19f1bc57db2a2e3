package tunnel

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// records returns the records of a log that have all of what is wanted.
func (l *logged) records(want ...string) (found []string) {
	for line := range strings.Lines(l.String()) {
		all := true
		for _, w := range want {
			all = all && strings.Contains(line, w)
		}
		if all {
			found = append(found, line)
		}
	}
	return found
}

// Records name the target, of reverse connections and of packets too, and the user. What
// has worked is logged with -v, without an error.
func TestRecordsNameTargets(t *testing.T) {
	t.Parallel()
	s := startServer(t, everything, nil)
	at, packets := target(t, echo), udpTarget(t)
	config := clientConfig(t, s, "0:"+at, "0:"+packets+"/udp", "0:no-such-name.invalid:53/udp", "R:127.0.0.1:0:"+at, "R:127.0.0.1:0:"+packets+"/udp")
	config.UDPTimeout = 100 * time.Millisecond
	c := startClient(t, config)
	var locals []string
	for range 5 {
		locals = append(locals, c.address(t))
	}
	waitFor(t, func() bool { return c.Status().Sessions == 1 })
	exchange(t, dial(t, locals[0]), 100)
	waitFor(t, func() bool {
		return len(c.log.records("connection ended", "target="+at, "from=127.0.0.1:", "lasted=")) == 1
	})
	waitFor(t, func() bool {
		return len(s.log.records("connection ended", "user=me", "kind=tcp", "target="+at, "lasted=")) == 1
	})
	for _, r := range []int{3, 4} { // in any order
		if conn, err := net.Dial("tcp", locals[r]); err == nil {
			exchange(t, conn.(*net.TCPConn), 100)
			require.NoError(t, conn.Close())
			waitFor(t, func() bool {
				return len(s.log.records("connection ended", "user=me", "kind=listen-tcp", "address="+locals[r], "from=127.0.0.1:")) == 1
			})
		}
	}
	waitFor(t, func() bool {
		return len(c.log.records("connection ended", "kind=reverse-tcp", "target="+at)) == 1
	})
	for _, r := range []int{1, 3, 4} {
		conn := dialUDP(t, locals[r])
		if r == 1 {
			udpExchange(t, conn, 10)
			continue
		}
		_, err := conn.Write([]byte("x"))
		require.NoError(t, err)
	}
	waitFor(t, func() bool {
		return len(c.log.records("flow ended", "kind=reverse-udp", "target="+packets)) > 0 && len(s.log.records("flow ended", "user=me", "kind=udp", "target="+packets)) > 0
	})
	conn := dialUDP(t, locals[2])
	_, err := conn.Write([]byte("x"))
	require.NoError(t, err)
	waitFor(t, func() bool { return len(c.log.records("packets refused", "target=no-such-name.invalid:53")) > 0 })
	for _, l := range []*logged{s.log, c.log} {
		require.Empty(t, l.records("error=<nil>"))
		require.Empty(t, l.records(`target=""`))
	}
}

// What fails for a reason that the client is not told is logged as a warning where it is
// known.
func TestCauseIsLoggedWhereItIsKnown(t *testing.T) {
	t.Parallel()
	s, c := connected(t, "R:192.0.2.1:0:127.0.0.1:80")
	waitFor(t, func() bool { return len(c.log.records("level=WARN", "its log says why")) > 0 })
	require.NotEmpty(t, s.log.records("level=WARN", "msg=refused", "user=me", "target=192.0.2.1:0", "error="), fmt.Sprint(s.log))
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
	require.NoError(t, conn.Abort())
	waitFor(t, func() bool { return strings.Contains(s.log.String(), "session ended") })
	require.Less(t, strings.Count(s.log.String(), "msg=refused"), 500)
}
