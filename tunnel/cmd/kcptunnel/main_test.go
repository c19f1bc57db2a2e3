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
	"github.com/stretchr/testify/require"
)

// TestMain makes the test binary the program itself if it is asked to be, so that a
// test can kill a server.
func TestMain(m *testing.M) {
	if os.Getenv("KCPTUNNEL_TEST_MAIN") != "" {
		main()
	}
	dir, err := os.MkdirTemp("", "kcptunnel") // for sockets of the command status
	if err == nil {
		err = os.Setenv("XDG_RUNTIME_DIR", dir)
	}
	if err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

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
	code, out, said := piped(t, "", args...)
	return code, out + said
}

// piped is exit with something on standard input.
func piped(t *testing.T, in string, args ...string) (code int, out, said string) {
	t.Helper()
	var stdout, stderr testenv.Records
	p := &program{stdin: strings.NewReader(in), stdout: &stdout, stderr: &stderr}
	code = p.run(t.Context(), append([]string{"kcptunnel"}, args...))
	return code, stdout.String(), stderr.String()
}

// file writes a file, and returns its path.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// everyone is a file of users of whom "me" may reach everything.
const everyone = `{"me:secret": [""]}`

// served is a server as its clients see it.
type served struct{ users, key, address, fingerprint string }

// client returns the command line of a client of a user, with the password.
func (s *served) client(user string, remotes ...string) []string {
	return append([]string{"client", "-v", "-fingerprint", s.fingerprint, "-auth", user, s.address}, remotes...)
}

// connect runs a client of "me", and returns where it listens.
func (s *served) connect(t *testing.T, remotes ...string) (c *started, local string) {
	t.Helper()
	c = start(t, s.client("me:secret", remotes...)...)
	return c, c.err.Find(t, `msg=listening .*address=(\S+)`)
}

// startedServer is a server that runs in this process.
type startedServer struct {
	served
	*started
}

// serve runs a server for the users of a file until the test ends.
func serve(t *testing.T, users string, more ...string) *startedServer {
	t.Helper()
	s := &startedServer{served: served{users: file(t, "users.json", users), key: filepath.Join(t.TempDir(), "server.pem")}}
	s.started = start(t, append(append([]string{"server", "-auth", s.users, "-key", s.key}, more...), "127.0.0.1:0")...)
	s.fingerprint = s.out.Find(t, `fingerprint (SHA256:\S+)\n`)
	s.address = s.err.Find(t, `listening address=(\S+)`)
	return s
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
	s := serve(t, `{"me:secret": [`+fmt.Sprintf("%q", "^"+regexp.QuoteMeta(at)+"$")+`, "^R:127\\.0\\.0\\.1:0$"]}`)
	c, local := s.connect(t, "0:"+at, "R:127.0.0.1:0:"+at)
	says(t, local)
	says(t, "127.0.0.1:"+c.err.Find(t, `the server listens".* port=(\d+)`))
	for _, p := range []*started{c, s.started} {
		code, text := p.stop()
		require.Equal(t, exitOK, code, text)
	}
	// The same key after a restart.
	again := start(t, "server", "-auth", s.users, "-key", s.key, "127.0.0.1:0")
	require.Equal(t, s.fingerprint, again.out.Find(t, `fingerprint (SHA256:\S+)\n`))
}

// Files of YAML and JSON have the names of flags; the command line goes before them.
func TestConfigFile(t *testing.T) {
	at := testenv.Target(t, testenv.Echo)
	users := file(t, "users.json", everyone)
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
	t.Chdir(t.TempDir()) // for server.pem
	users := file(t, "users.json", everyone)
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "want a command"},
		{[]string{"serve"}, `unknown command "serve"`},
		{[]string{"server"}, "want an address"},
		{[]string{"server", ":1"}, "want -auth"},
		{[]string{"server", "-auth", file(t, "u", "\n{"), ":1"}, "u:2: invalid JSON"},
		{[]string{"server", "-auth", users, "-key", file(t, "k", "no key"), ":1"}, "-key"},
		{[]string{"server", "-auth", users, "-key", filepath.Join(t.TempDir(), "k"), "-client-ca", users, ":1"}, "-client-ca"},
		{[]string{"server", "-auth", users, "4000"}, `"4000" is not an address`},
		{[]string{"server", "-auth", file(t, "empty", "{}"), ":1"}, "empty: the file has no users"},
		{[]string{"server", "-auth", file(t, "open", `{"me:x": ["80"]}`), ":1"}, "open:1: user \"me\": rule \"80\" has no anchors"},
		{[]string{"server", "-unanchored-rules", "-auth", file(t, "chisel", `{"me:x": ["80"]}`), "-key", "", ":1"}, "-key is empty"},
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
	require.NoFileExists(t, "server.pem", "a start that fails makes no key")
}

// -check finds what a start would, all of it, and starts nothing.
func TestCheck(t *testing.T) {
	users := file(t, "users.json", everyone)
	key := filepath.Join(t.TempDir(), "server.pem")
	config := file(t, "server.yaml", "listen: 127.0.0.1:0\nauth: "+users+"\nkey: "+key+"\n")
	code, out, said := piped(t, "", "server", "-check", "-config", config)
	require.Equal(t, exitOK, code, said)
	require.Equal(t, "ok: a start makes the key "+key+"\n", out)
	require.NoFileExists(t, key)
	for _, args := range [][]string{
		{"server", "-check", "-auth", users, "-key", serve(t, everyone).key, ":1"},
		{"client", "-check", "-auth", "me:x", "a:1", "80"},
		{"kcptun-client", "-check", "-key", "x"},
		{"kcptun-server", "-check", "-key", "x"},
	} {
		code, out, said = piped(t, "", args...)
		require.Equal(t, exitOK, code, "%q: %s", args, said)
		require.Equal(t, "ok\n", out)
	}
	bad := file(t, "bad.json", "{\"me:secret\": [\"(\"],\n\"you:x\": [\"80\"]}")
	for _, c := range []struct{ args, want []string }{
		{[]string{"server", "-check", "-auth", bad, "-key", users, "-client-ca", users, ":1"}, []string{bad + ":1: ", bad + ":2: ", "-key: " + users, "-client-ca: " + users}},
		{[]string{"server", "-check", "-auth", file(t, "certified.json", `{"me": [""]}`), "-key", key, ":1"}, []string{"no authority"}},
		{[]string{"server", "-check", "-config", file(t, "two.yaml", "usres: x\nlisten: :1\nshards: -1\n")}, []string{"two.yaml:1: ", "two.yaml:3: "}},
		{[]string{"client", "-check", "a", "b:", "8080:x"}, []string{`server "a"`, `"b:"`, `"8080:x"`, "want -auth"}},
		{[]string{"client", "-check", "-auth", "me:x", "-fingerprint", "x", "a:1", "80"}, []string{`"x" is not a fingerprint`}},
		{[]string{"kcptun-server", "-check", "-mtu", "9000"}, []string{"9000"}},
	} {
		code, out, said := piped(t, "", c.args...)
		require.Equal(t, exitUsage, code, "%q", c.args)
		require.Empty(t, out)
		for _, want := range c.want {
			require.Contains(t, said, want)
		}
	}
	require.NoFileExists(t, key)
}

// What the network refuses is a failure, with the address in it.
func TestFailures(t *testing.T) {
	s := serve(t, `{"me:secret": ["^127\\.0\\.0\\.1:80$"]}`)
	other := served{address: s.address, fingerprint: "SHA256:" + strings.Repeat("A", 43)}
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
		{exitFailed, []string{"server", "-auth", s.users, "-key", s.key, s.address}, []string{s.address, inUse}},
		{exitFailed, []string{"server", "-auth", s.users, "-key", s.key, "-debug", taken.Addr().String(), "127.0.0.1:0"}, []string{"-debug", taken.Addr().String(), inUse}},
		{exitFailed, s.client("me:secret", taken.Addr().String()+":127.0.0.1:80"), []string{taken.Addr().String(), inUse}},
		{exitFailed, []string{"client", "-auth", "me:secret", "-max-retries", "1", "no-such-name.invalid:4000", "0:127.0.0.1:80"}, []string{"no-such-name.invalid"}},
		{exitFailed, []string{"kcptun-client", "-l", taken.Addr().String()}, []string{taken.Addr().String(), inUse}},
		{exitFailed, []string{"kcptun-server", "-l", s.address}, []string{s.address, inUse}},
		{exitAway, s.client("me:wrong", "stdio:127.0.0.1:80"), []string{"wrong user or password"}},
		{exitAway, other.client("me:secret", "0:127.0.0.1:80", "stdio:127.0.0.1:80"), []string{other.fingerprint, s.fingerprint}},
		{exitAway, []string{"client", "-auth", "me:secret", s.address, "stdio:127.0.0.1:80"}, []string{"certificate"}},
		{exitAway, s.client("me:secret", "stdio:127.0.0.1:81"), []string{"127.0.0.1:81", "not allow"}},
		{exitAway, append([]string{"client", "-max-retries", "1"}, other.client("me:secret", "0:127.0.0.1:80")[1:]...), []string{"given up after 1 retry", s.fingerprint}},
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
	s := serve(t, everyone)
	c, local := s.connect(t, "0:"+at)
	says(t, local)
	reload := <-s.reload
	for _, bad := range []struct{ users, why string }{
		{`{"me:secret": [""`, "users.json"},
		{`{"me": [""]}`, "no authority"}, // which the start refuses, too
		{`{"me:secret": ["127.0.0.1:80"]}`, "users.json:1: .*no anchors"},
	} {
		require.NoError(t, os.WriteFile(s.users, []byte(bad.users), 0o600))
		reload <- syscall.SIGHUP
		s.err.Find(t, `reload failed, keeping the old users.*`+bad.why)
		says(t, local)
	}

	require.NoError(t, os.WriteFile(s.users, []byte(`{"you:secret": [""]}`), 0o600))
	require.NoError(t, os.Remove(s.key))
	reload <- syscall.SIGHUP
	old := s.fingerprint
	s.fingerprint = s.err.Find(t, `(?s)users reloaded.*certificate reloaded" fingerprint=(SHA256:\S+)`)
	require.NotEqual(t, old, s.fingerprint)
	c.err.Find(t, `session lost, reconnecting.*no longer valid`)
	c = start(t, s.client("you:secret", "0:"+at)...)
	says(t, c.err.Find(t, `msg=listening .*address=(\S+)`))
}

// Standard input and output carry a connection, and nothing else is written there.
func TestStdio(t *testing.T) {
	code, out, said := piped(t, "hello", serve(t, everyone).client("me:secret", "stdio:"+testenv.Target(t, testenv.Echo))...)
	require.Equal(t, exitOK, code, said)
	require.Equal(t, "hello", out)
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

// Seconds that no time can hold are the longest that one can.
func TestSecondsDoNotComeAround(t *testing.T) {
	require.Equal(t, 7*time.Second, inSeconds(7))
	require.Greater(t, inSeconds(math.MaxInt), 60*365*24*time.Hour)
}
