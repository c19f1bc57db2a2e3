package main

import (
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/tunnel"
	"github.com/stretchr/testify/require"
)

// started is a command that runs.
type started struct {
	reload   chan chan<- os.Signal // where a server takes SIGHUP
	out, err *testenv.Records
	cancel   context.CancelFunc
	code     chan int
}

// start runs the command until the test ends.
func start(t *testing.T, args ...string) *started {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &started{out: new(testenv.Records), err: new(testenv.Records), cancel: cancel, code: make(chan int, 1), reload: make(chan chan<- os.Signal, 1)}
	p := &program{stdin: strings.NewReader(""), stdout: s.out, stderr: s.err, notify: func(c chan<- os.Signal) { s.reload <- c }}
	go func() { s.code <- p.run(ctx, append([]string{"kcptunnel"}, args...)) }()
	t.Cleanup(func() { _, _ = s.stop() })
	return s
}

// stop ends the command, and returns its exit code.
func (s *started) stop() (code int, text string) {
	s.cancel()
	code = <-s.code
	s.code <- code
	return code, s.err.String()
}

// exit runs the command to its end, and returns the exit code and what it has said.
func exit(t *testing.T, args ...string) (int, string) {
	t.Helper()
	var out, err testenv.Records
	p := &program{stdin: strings.NewReader(""), stdout: &out, stderr: &err}
	code := p.run(t.Context(), append([]string{"kcptunnel"}, args...))
	return code, out.String() + err.String()
}

// file writes a file, and returns its path.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// says exchanges six bytes with an echo.
func says(t *testing.T, address string) { exchange(t, address, 6) }

// exchange exchanges n bytes with an echo.
func exchange(t *testing.T, address string, n int) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	testenv.Exchange(t, conn, n)
}

// A server and a client, as the page of docs has them.
func TestForwardAndReverse(t *testing.T) {
	at := testenv.Target(t, testenv.Echo)
	users := file(t, "users.json", `{"me:secret": [`+fmt.Sprintf("%q", "^"+regexp.QuoteMeta(at)+"$")+`, "^R:127\\.0\\.0\\.1:0$"]}`)
	key := filepath.Join(t.TempDir(), "server.pem")
	s := start(t, "server", "-auth", users, "-key", key, "127.0.0.1:0")
	fingerprint := s.out.Find(t, `fingerprint (SHA256:\S+)\n`)
	server := s.err.Find(t, `listening address=(\S+)`)
	c := start(t, "client", "-v", "-fingerprint", fingerprint, "-auth", "me:secret", server, "0:"+at, "R:127.0.0.1:0:"+at)
	says(t, c.err.Find(t, `msg=listening .*address=(\S+)`))
	says(t, "127.0.0.1:"+c.err.Find(t, `the server listens".* port=(\d+)`))
	for _, p := range []*started{c, s} {
		code, text := p.stop()
		require.Equal(t, exitOK, code, text)
	}
	// The same key after a restart.
	s = start(t, "server", "-auth", users, "-key", key, "127.0.0.1:0")
	require.Equal(t, fingerprint, s.out.Find(t, `fingerprint (SHA256:\S+)\n`))
}

// Files of YAML and JSON have the names of flags; the command line goes before them.
func TestConfigFile(t *testing.T) {
	at := testenv.Target(t, testenv.Echo)
	users := file(t, "users.json", `{"me:secret": [""]}`)
	key := filepath.Join(t.TempDir(), "server.pem")
	s := start(t, "server", "-config", file(t, "server.yaml", "listen: 127.0.0.1:0\nauth: "+users+"\nkey: "+key+"\nlog-format: json\nudp-timeout: 1m30s\n"))
	fingerprint := s.out.Find(t, `fingerprint (SHA256:\S+)\n`)
	server := s.err.Find(t, `"address":"([^"]+)"`)
	c := start(t, "client", "-auth", "me:secret", "-config", file(t, "client.json", fmt.Sprintf(
		`{"server": [%q], "auth": "me:wrong", "remote": ["0:%s", "R:127.0.0.1:0:%s"], "fingerprint": %q, "v": true}`, server, at, at, fingerprint)))
	says(t, c.err.Find(t, `msg=listening .*address=(\S+)`))

	for text, want := range map[string]string{
		"listen: :1\nusres: x\n":            `:2: unknown key "usres"`,
		"lisen: :1\n":                       `do you mean "listen"`,
		"listen: :1\nlisten: :2\n":          `:2: the key "listen" is given twice`,
		"udp-timeout: soon\n":               `udp-timeout: "soon"`,
		"shards: -1\n":                      "-1 is negative",
		"listen: [a, b]\n":                  "not a list",
		"listen: {a: b}\n":                  "want a value",
		"listen:\n":                         "want a value",
		"- a\n":                             "want keys with values",
		"listen: :1\n---\nlisten: :2\n":     "second document",
		"{":                                 "yaml",
		"config: x\n":                       `unknown key "config"`,
		strings.Repeat("# long\n", 200_000): "more than",
	} {
		path := file(t, "server.yaml", text)
		code, said := exit(t, "server", "-config", path)
		require.Equal(t, exitUsage, code)
		require.Contains(t, said, want)
		require.Contains(t, said, path)
	}
	code, said := exit(t, "server", "-config", "/nonexistent.yaml")
	require.Equal(t, exitUsage, code)
	require.Contains(t, said, "/nonexistent.yaml")
}

// Mistakes are named, with the value, and a code of their own.
func TestMistakes(t *testing.T) {
	users := file(t, "users.json", `{"me:secret": [""]}`)
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "want a command"},
		{[]string{"serve"}, `unknown command "serve"`},
		{[]string{"server"}, "want an address"},
		{[]string{"server", ":1"}, "want -auth"},
		{[]string{"server", "-auth", file(t, "u", "{"), ":1"}, "-auth"},
		{[]string{"server", "-auth", users, "-key", file(t, "k", "no key"), ":1"}, "-key"},
		{[]string{"server", "-auth", users, "-key", filepath.Join(t.TempDir(), "k"), "-client-ca", users, ":1"}, "-client-ca"},
		{[]string{"server", "-auth", users, "4000"}, `"4000" is not an address`},
		{[]string{"server", "-auth", file(t, "empty", "{}"), ":1"}, "empty: the file has no users"},
		{[]string{"server", "-auth", users, "-key", "", ":1"}, "-key is empty"},
		{[]string{"server", "-auth", users, "-cert", users, ":1"}, "-cert"},
		{[]string{"server", "-config", file(t, "y", "config: x"), ":1"}, `unknown key "config": keys`},
		{[]string{"server", ":1", ":2"}, `":2"`},
		{[]string{"client", "-auth", "me:x", "host:abc", "80"}, `"host:abc"`},
		{[]string{"server", "-auht", "x", ":1"}, "unknown flag -auht; do you mean -auth?"},
		{[]string{"server", "-log-format", "xml", ":1"}, "xml"},
		{[]string{"client"}, "want a server"},
		{[]string{"client", "host:1"}, "want a remote"},
		{[]string{"client", "-auth", "me:x", "host:1", "8080:host"}, `"8080:host"`},
		{[]string{"client", "-auth", "me", "host:1", "80"}, "USER:PASSWORD"},
		{[]string{"client", "host:1", "80"}, "want -auth"},
		{[]string{"client", "-tls-cert", "x", "host:1", "80"}, "go together"},
		{[]string{"client", "-auth", "me:x", "-fingerprint", "SHA256:x", "host:1", "80"}, `"SHA256:x" is not a fingerprint`},
		{[]string{"client", "-auth", "me:x", "-bind", "a b", "host:1", "80"}, `"a b"`},
		{[]string{"kcptun-client", "-crypt", "rot13"}, "rot13"},
		{[]string{"kcptun-client", "-c", file(t, "c", `{"conn": "two"}`)}, "conn"},
		{[]string{"kcptun-server", "-tcp"}, "-tcp"},
		{[]string{"kcptun-server", "-mtu", "9000"}, "9000"},
	} {
		code, said := exit(t, c.args...)
		require.Equal(t, exitUsage, code, "%q: %s", c.args, said)
		require.Contains(t, said, c.want, "%q", c.args)
		require.Contains(t, said, "-h' for usage")
	}
}

// What the network refuses is a failure, with the address in it.
func TestFailures(t *testing.T) {
	users := file(t, "users.json", `{"me:secret": ["^127\\.0\\.0\\.1:80$"]}`)
	key := filepath.Join(t.TempDir(), "server.pem")
	s := start(t, "server", "-auth", users, "-key", key, "127.0.0.1:0")
	server := s.err.Find(t, `listening address=(\S+)`)
	fingerprint := s.out.Find(t, `fingerprint (SHA256:\S+)\n`)
	other := "SHA256:" + strings.Repeat("A", 43)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	_, err = net.Listen("tcp", taken.Addr().String())
	var taking syscall.Errno
	require.ErrorAs(t, err, &taking)
	inUse := taking.Error() // as this system says it

	for _, c := range []struct {
		code int
		args []string
		want []string
	}{
		{exitFailed, []string{"server", "-auth", users, "-key", key, server}, []string{server, inUse}},
		{exitFailed, []string{"server", "-auth", users, "-key", key, "-debug", taken.Addr().String(), "127.0.0.1:0"}, []string{"-debug", taken.Addr().String(), inUse}},
		{exitFailed, []string{"client", "-auth", "me:secret", "-fingerprint", fingerprint, server, taken.Addr().String() + ":127.0.0.1:80"}, []string{taken.Addr().String(), inUse}},
		{exitFailed, []string{"client", "-auth", "me:secret", "-max-retries", "1", "no-such-name.invalid:4000", "0:127.0.0.1:80"}, []string{"no-such-name.invalid"}},
		{exitFailed, []string{"kcptun-client", "-l", taken.Addr().String()}, []string{taken.Addr().String(), inUse}},
		{exitFailed, []string{"kcptun-server", "-l", server}, []string{server, inUse}},
		{exitAway, []string{"client", "-auth", "me:wrong", "-fingerprint", fingerprint, server, "0:127.0.0.1:80"}, []string{"wrong user or password"}},
		{exitAway, []string{"client", "-auth", "me:secret", "-fingerprint", other, server, "0:127.0.0.1:80"}, []string{other, fingerprint}},
		{exitAway, []string{"client", "-auth", "me:secret", server, "0:127.0.0.1:80"}, []string{"certificate"}},
		{exitAway, []string{"client", "-auth", "me:secret", "-fingerprint", fingerprint, server, "0:127.0.0.1:81"}, []string{"127.0.0.1:81", "not allow"}},
	} {
		code, said := exit(t, c.args...)
		require.Equal(t, c.code, code, "%q: %s", c.args, said)
		for _, want := range c.want {
			require.Contains(t, said, want, "%q", c.args)
		}
	}
}

// The users and the key change while the server runs. A file with a mistake changes
// nothing.
func TestReload(t *testing.T) {
	at := testenv.Target(t, testenv.Echo)
	users := file(t, "users.json", `{"me:secret": [""]}`)
	key := filepath.Join(t.TempDir(), "server.pem")
	s := start(t, "server", "-auth", users, "-key", key, "127.0.0.1:0")
	server := s.err.Find(t, `listening address=(\S+)`)
	old := s.out.Find(t, `fingerprint (SHA256:\S+)\n`)
	c := start(t, "client", "-v", "-fingerprint", old, "-auth", "me:secret", server, "0:"+at)
	local := c.err.Find(t, `msg=listening .*address=(\S+)`)
	says(t, local)

	reload := <-s.reload
	require.NoError(t, os.WriteFile(users, []byte(`{"me:secret": [""`), 0o600))
	reload <- syscall.SIGHUP
	s.err.Find(t, `reload failed, keeping the old users.*users.json`)
	says(t, local)

	// What the start refuses: nobody has an authority.
	require.NoError(t, os.WriteFile(users, []byte(`{"me": [""]}`), 0o600))
	reload <- syscall.SIGHUP
	s.err.Find(t, `reload failed, keeping the old users.*no authority`)
	says(t, local)

	require.NoError(t, os.WriteFile(users, []byte(`{"you:secret": [""]}`), 0o600))
	require.NoError(t, os.Remove(key))
	reload <- syscall.SIGHUP
	s.err.Find(t, `users reloaded`)
	fingerprint := s.err.Find(t, `(?s)users reloaded.*certificate reloaded" fingerprint=(SHA256:\S+)`)
	require.NotEqual(t, old, fingerprint)
	c.err.Find(t, `session lost, reconnecting.*no longer valid`)
	c = start(t, "client", "-fingerprint", fingerprint, "-auth", "you:secret", server, "0:"+at)
	says(t, c.err.Find(t, `msg=listening .*address=(\S+)`))
}

// Standard input and output carry a connection, and nothing else is written there.
func TestStdio(t *testing.T) {
	at := testenv.Target(t, testenv.Echo)
	s := start(t, "server", "-auth", file(t, "users.json", `{"me:secret": [""]}`), "-key", filepath.Join(t.TempDir(), "server.pem"), "127.0.0.1:0")
	var out, log testenv.Records
	p := &program{stdin: strings.NewReader("hello"), stdout: &out, stderr: &log}
	code := p.run(t.Context(), []string{"kcptunnel", "client", "-fingerprint", s.out.Find(t, `fingerprint (SHA256:\S+)\n`), "-auth", "me:secret", s.err.Find(t, `listening address=(\S+)`), "stdio:" + at})
	require.Equal(t, exitOK, code, log.String())
	require.Equal(t, "hello", out.String())
}

func TestHelpAndCompletion(t *testing.T) {
	for _, args := range [][]string{{"-h"}, {"server", "-h"}, {"client", "-h"}, {"kcptun-server", "-h"}, {"kcptun-client", "-h"}, {"hash", "-h"}, {"fingerprint", "-h"}, {"man", "-h"}, {"-version"},
		{"completion", "bash"}, {"completion", "zsh"}, {"completion", "fish"}, {"completion", "pwsh"}} {
		code, said := exit(t, args...)
		require.Equal(t, exitOK, code, said)
		require.Regexp(t, "kcptunnel|MyInvocation", said, "%q", args)
	}
}

// What bash asks for: the beginning of a flag, or nothing yet.
func TestCompletionOfFlags(t *testing.T) {
	for _, args := range [][]string{{"client"}, {"client", "--tls"}, {"client", "-tls"}, {"client", "-v", "host:1", "--tls"}} {
		code, said := exit(t, append(args, "--generate-shell-completion")...)
		require.Equal(t, exitOK, code)
		require.Contains(t, said, "--tls-name\n", "%q", args)
	}
}

func TestStatusLine(t *testing.T) {
	last := tunnel.Status{Sessions: 1, Connections: 2, Opened: 5, Sent: 1000, Received: 2_000_000, RTT: 50 * time.Millisecond}
	now := last
	now.Sent, now.Received = 2500, 1
	require.Equal(t, "1 session | 2 connections, 5 in all | out 1.5 KB/s | in 0 B/s | rtt 50ms", statusLine(last, now, time.Second))

	var w strings.Builder
	s := &screen{w: &w}
	s.show("status")
	_, err := s.Write([]byte("record\n"))
	require.NoError(t, err)
	s.show("")
	line := "\x1b[?7lstatus\x1b[?7h"
	require.Equal(t, clear+line+clear+"record\n"+line+clear, w.String())
}

// Seconds that no time can hold are the longest that one can.
func TestSecondsDoNotComeAround(t *testing.T) {
	require.Equal(t, 7*time.Second, inSeconds(7))
	require.Greater(t, inSeconds(math.MaxInt), 60*365*24*time.Hour)
}
