package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// blocked is a server and a client on a host of their own, whose firewall can stop UDP.
type blocked struct {
	*testenv.Host
	server, client *process
	local          string
}

// reverseAt is where the server listens for the client.
const reverseAt = "127.0.0.1:4001"

// newBlocked begins both, with more flags of the client. The rule of nftables is there from
// the beginning.
func newBlocked(t *testing.T, rule string, flags ...string) *blocked {
	t.Helper()
	b := &blocked{Host: testenv.NewHost(t)}
	b.Must(t, "ip link set lo up")
	b.Try(t, "nft add table inet f\nnft add chain inet f in { type filter hook input priority 0 ; }")
	b.firewall(t, rule)
	var target net.Listener
	require.NoError(t, b.Do(func() (err error) {
		target, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}))
	testenv.ServeTCP(t, target, testenv.Echo)
	program := func(args ...string) *process {
		p := &process{cmd: exec.Command(os.Args[0], args...), out: new(testenv.Records), err: new(testenv.Records)}
		p.cmd.Stdout, p.cmd.Stderr = p.out, p.err
		require.NoError(t, b.Do(func() error {
			p.start(t, nil)
			return nil
		}))
		return p
	}
	const at = "127.0.0.1:4000"
	b.server = program("server", "-v", "-auth", file(t, "users.json", everyone), "-key", filepath.Join(t.TempDir(), "server.pem"), at)
	print := b.server.out.Find(t, `fingerprint (SHA256:\S+)\n`)
	b.server.err.Find(t, `listening address=(\S+)`)
	args := append([]string{"client", "-v", "-fingerprint", print, "-auth", "me:secret", "-max-retry-interval", "1s"}, flags...)
	b.client = program(append(args, at, "0:"+target.Addr().String(), "R:"+reverseAt+":"+target.Addr().String())...)
	b.local = b.client.err.Find(t, `msg=listening .*address=(\S+)`)
	return b
}

// firewall has the rule in place of others; empty: none.
func (b *blocked) firewall(t *testing.T, rule string) {
	t.Helper()
	b.Try(t, "nft flush chain inet f in")
	if rule != "" {
		b.Try(t, "nft add rule inet f in udp dport 4000 "+rule+"\nnft add rule inet f in udp sport 4000 "+rule)
	}
}

// dial opens a connection, with which it exchanges a byte within a second.
func (b *blocked) dial(at string) (conn net.Conn, err error) {
	err = b.Do(func() error {
		conn, err = net.Dial("tcp", at)
		return err
	})
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if err := echoes(conn); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, conn.SetDeadline(time.Time{})
}

// served waits for a connection, and logs how long there was none.
func (b *blocked) served(t *testing.T, what string) net.Conn {
	t.Helper()
	return b.servedAt(t, b.local, what)
}

func (b *blocked) servedAt(t *testing.T, at, what string) (conn net.Conn) {
	t.Helper()
	began := time.Now()
	testenv.Await(t, func() (ok bool) {
		var err error
		conn, err = b.dial(at)
		return err == nil
	})
	t.Logf("%s: served after %v", what, time.Since(began).Round(10*time.Millisecond))
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// says waits until the client's log has a text n times.
func (b *blocked) says(t *testing.T, text string, n int) {
	t.Helper()
	testenv.Await(t, func() bool { return strings.Count(b.client.err.String(), text) == n })
}

// Where UDP is closed from the beginning, by a firewall that is silent or one that says so,
// the client goes over TCP, and says so once. When UDP opens, new connections take that.
func TestUDPIsClosed(t *testing.T) {
	for _, rule := range []string{"drop", "reject"} {
		t.Run(rule, func(t *testing.T) {
			b := newBlocked(t, rule)
			conn := b.served(t, rule+" from the beginning")
			b.says(t, "UDP is closed on this path", 1)
			b.firewall(t, "")
			b.says(t, "UDP passes", 1)
			b.says(t, "transport=udp", 1)
			require.NoError(t, echoes(conn), "it goes on over TCP")
			again := b.served(t, "UDP opens")
			require.NoError(t, conn.Close())
			testenv.Await(t, func() bool { return strings.Contains(b.server.err.String(), "session ended") })
			require.NoError(t, echoes(again))
			b.says(t, "UDP is closed on this path", 1)
		})
	}
}

// Where UDP is cut under traffic, new connections go over TCP, and those over UDP go on
// when it is back. Then new ones take UDP again.
func TestUDPIsCut(t *testing.T) {
	b := newBlocked(t, "")
	before, back := b.served(t, "UDP"), b.servedAt(t, reverseAt, "reverse over UDP")
	b.says(t, "transport=udp", 1)
	b.firewall(t, "drop")
	b.served(t, "UDP is cut")
	b.servedAt(t, reverseAt, "reverse, UDP is cut")
	b.says(t, "UDP is closed on this path", 1)
	time.Sleep(5 * time.Second) // in which the server would end the session over UDP
	b.firewall(t, "")
	began := time.Now()
	require.NoError(t, echoes(before), "the session over UDP has lived")
	require.NoError(t, echoes(back), "for the remote at the server, too")
	t.Logf("a connection over UDP: served %v after UDP is back", time.Since(began).Round(10*time.Millisecond))
	b.says(t, "UDP passes", 1)
	b.served(t, "UDP is back")
	require.Equal(t, 1, strings.Count(b.client.err.String(), "transport=udp"), "it is the same session")
}

// Without TCP the client waits for UDP.
func TestTCPIsOff(t *testing.T) {
	b := newBlocked(t, "drop", "-tcp-port", "0")
	b.firewall(t, "")
	b.served(t, "UDP opens")
	require.NotContains(t, b.client.err.String(), "tcp")
}
