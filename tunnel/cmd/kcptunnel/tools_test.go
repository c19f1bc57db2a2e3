package main

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v3"
)

func TestVersionCommand(t *testing.T) {
	code, out, _ := piped(t, "", "version")
	require.Equal(t, exitOK, code)
	require.Regexp(t, `^kcptunnel version \S+.* go1\.\d+\S* \w+/\w+\n$`, out)
	_, flag, _ := piped(t, "", "-version")
	require.Equal(t, out, flag)
	code, _, said := piped(t, "", "version", "x")
	require.Equal(t, exitUsage, code)
	require.Contains(t, said, `"x"`)
}

// The manual page has every command, with all the flags that are shown, and what reads
// such pages finds nothing wrong with it.
func TestMan(t *testing.T) {
	code, page, _ := piped(t, "", "man")
	require.Equal(t, exitOK, code)
	p := &program{stdout: io.Discard, stderr: io.Discard}
	for _, c := range p.commands().Commands {
		_, text, ok := strings.Cut(page, "\n.SS kcptunnel "+roff(c.Name)+"\n")
		require.True(t, ok, c.Name)
		text = regexp.MustCompile(`(?m)^\.S[SH] `).Split(text, 2)[0]
		for _, f := range c.Flags {
			if f.(cli.VisibleFlag).IsVisible() {
				names := strings.ReplaceAll(roff("-"+strings.Join(f.Names(), ",-")), ",", `\fR, \fB`)
				require.Contains(t, text, `\fB`+names+`\fR`, c.Name)
			}
		}
	}
	require.Contains(t, page, `does not exist (default: "server.pem")`)
	for _, r := range page {
		require.Less(t, r, rune(0x80), "not ASCII")
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("there is no groff")
	}
	cmd := exec.Command(groff, "-man", "-ww", "-z", "-Kutf8")
	cmd.Stdin = strings.NewReader(page)
	found, err := cmd.CombinedOutput()
	require.NoError(t, err)
	require.Empty(t, string(found))
}

// A hash that the command prints stands in place of the password, and lets the client
// in that shows the password.
func TestHashCommand(t *testing.T) {
	at := testenv.Target(t, testenv.Echo)
	code, out, said := piped(t, "se:cret\n", "hash", "-cost", "4", "me")
	require.Equal(t, exitOK, code, said)
	require.Regexp(t, `^me:\$2a\$04\$[./A-Za-z0-9]{53}\n$`, out)
	s := serve(t, fmt.Sprintf(`{%q: [""]}`, strings.TrimSpace(out)))
	c := start(t, s.client("me:se:cret", "0:"+at)...)
	says(t, c.err.Find(t, `msg=listening .*address=(\S+)`))

	code, out, _ = piped(t, "x", "hash")
	require.Equal(t, exitOK, code)
	require.Regexp(t, `^\$2a\$10\$`, out)
	for _, bad := range []struct{ in, user, cost, want string }{
		{"", "me", "4", "empty"}, {"\n", "me", "4", "empty"}, {strings.Repeat("x", 73), "me", "4", "72"}, {"x", "me:secret", "4", "colon"}, {"x", "me", "31", "cost 31"},
	} {
		code, out, said := piped(t, bad.in, "hash", "-cost", bad.cost, bad.user)
		require.Equal(t, exitUsage, code)
		require.Empty(t, out)
		require.Contains(t, said, bad.want)
		require.NotContains(t, said, "secret")
	}
}

// The fingerprint of a key that is there already, without a server.
func TestFingerprintCommand(t *testing.T) {
	s := serve(t, everyone)
	code, out, said := piped(t, "", "fingerprint", s.key)
	require.Equal(t, exitOK, code, said)
	require.Equal(t, s.fingerprint+"\n", out)

	missing := filepath.Join(t.TempDir(), "none.pem")
	code, _, said = piped(t, "", "fingerprint", missing)
	require.Equal(t, exitFailed, code)
	require.Contains(t, said, missing)
	require.NoFileExists(t, missing, "it makes no key")
	code, _, said = piped(t, "", "fingerprint", file(t, "no.pem", "x"))
	require.Equal(t, exitFailed, code)
	require.Contains(t, said, "neither a key nor a certificate")
	for name, one := range keysOfOthers(t) {
		_, ofKey, said := piped(t, "", "fingerprint", file(t, name, string(pem.EncodeToMemory(one.key))))
		_, ofCert, _ := piped(t, "", "fingerprint", file(t, name, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: one.cert}))))
		require.Regexp(t, `^SHA256:\S{43}\n$`, ofKey, said)
		require.Equal(t, ofKey, ofCert)
	}
}

// foreignKey is a key with its certificate.
type foreignKey struct {
	key  *pem.Block
	cert []byte
}

// keysOfOthers returns keys as other programs write them.
func keysOfOthers(t *testing.T) map[string]foreignKey {
	t.Helper()
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	ecText, err := x509.MarshalECPrivateKey(ec)
	require.NoError(t, err)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	certificate := func(key crypto.Signer) []byte {
		template := &x509.Certificate{SerialNumber: big.NewInt(1)}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		require.NoError(t, err)
		return der
	}
	return map[string]foreignKey{
		"ec.pem":  {&pem.Block{Type: "EC PRIVATE KEY", Bytes: ecText}, certificate(ec)},
		"rsa.pem": {&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(rsaKey)}, certificate(rsaKey)},
	}
}

// A file with secrets that everybody can read, or change, is warned of. So is one of
// -config or -c: always if everybody can change it, and if everybody can read it, when it
// holds secrets.
func TestWarningOfReadableConfigs(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the modes of files say nothing there")
	}
	users := file(t, "users.json", everyone)
	key := filepath.Join(t.TempDir(), "k")
	server := file(t, "server.yaml", "auth: "+users+"\nkey: "+key+"\nlisten: 127.0.0.1:0\n")
	client := file(t, "client.yaml", "auth: me:secret\nserver: 127.0.0.1:1\nremote: 0:127.0.0.1:1\n")
	bare := file(t, "bare.yaml", "server: 127.0.0.1:1\nremote: 0:127.0.0.1:1\n")
	secret := file(t, "kcptun.json", `{"key": "mine", "localaddr": "127.0.0.1:0", "remoteaddr": "127.0.0.1:1"}`)
	plain := file(t, "plain.json", `{"localaddr": "127.0.0.1:0", "remoteaddr": "127.0.0.1:1"}`)
	for _, c := range []struct {
		args []string // the file is the last one
		mode os.FileMode
		want string
	}{
		{[]string{"client", "-config", client}, 0o640, ""},
		{[]string{"client", "-config", client}, 0o644, "can read the file.*flag=config.*mode=0644 better=0640"},
		{[]string{"client", "-auth", "me:secret", "-config", bare}, 0o644, ""},
		{[]string{"client", "-auth", "me:secret", "-config", bare}, 0o666, "can change the file.*flag=config.*better=0660"},
		{[]string{"server", "-key", key, "127.0.0.1:0", "-auth", users}, 0o644, "can read the file.*flag=auth.*mode=0644 better=0640"},
		{[]string{"server", "-key", key, "127.0.0.1:0", "-auth", users}, 0o666, "can change the file.*mode=0666 better=0660"},
		{[]string{"server", "-config", server}, 0o602, "can change the file.*flag=config.*better=0600"},
		{[]string{"kcptun-client", "-c", secret}, 0o644, "can read the file.*flag=c "},
		{[]string{"kcptun-client", "-key", "mine", "-c", plain}, 0o644, ""},
		{[]string{"kcptun-client", "-key", "mine", "-c", plain}, 0o622, "can change the file.*flag=c "},
	} {
		require.NoError(t, os.Chmod(c.args[len(c.args)-1], c.mode))
		s := start(t, c.args...)
		s.err.Find(t, `msg=listening`)
		require.NoError(t, os.Chmod(c.args[len(c.args)-1], 0o600))
		if c.want == "" {
			require.NotContains(t, s.err.String(), "everybody", "%v %#o", c.args, c.mode)
		} else {
			s.err.Find(t, c.want)
		}
	}
}

// The key that kcptun has by default is warned of, as everybody knows it.
func TestWarningOfPublicKey(t *testing.T) {
	at := []string{"kcptun-client", "-localaddr", "127.0.0.1:0", "-remoteaddr", "127.0.0.1:1"}
	public := file(t, "public.json", `{"key": "it's a secrect"}`)
	for _, c := range []struct {
		args []string
		warn bool
	}{
		{nil, true}, {[]string{"-key", "it's a secrect"}, true}, {[]string{"-key", "mine", "-c", public}, true},
		{[]string{"-key", "mine"}, false}, {[]string{"-crypt", "null"}, false},
	} {
		s := start(t, append(at, c.args...)...)
		s.err.Find(t, `msg=listening`)
		require.Equal(t, c.warn, strings.Contains(s.err.String(), "the default of kcptun, which everybody knows"), "%q", c.args)
	}
	s := start(t, "kcptun-server", "-listen", "127.0.0.1:0", "-target", "127.0.0.1:1")
	s.err.Find(t, "the default of kcptun, which everybody knows")
}

// Flags, and keys of the file, set what sessions are like.
func TestSessionFlags(t *testing.T) {
	flags := map[string]string{
		"keepalive": "7s", "peer-timeout": "20s", "idle-timeout": "1h", "max-memory": "32MiB", "max-rate": "1.2MB/s", "max-sessions": "100", "max-sessions-per-address": "8",
	}
	want := &kcp.Config{KeepAlive: 7 * time.Second, PeerTimeout: 20 * time.Second, IdleTimeout: time.Hour, MaxRate: 1_200_000, Limits: kcp.Limits{MaxBuffered: 32 << 20, MaxSessions: 100, MaxSessionsPerAddress: 8}}
	configOf := func(args ...string) (got *kcp.Config) {
		p := &program{stdout: io.Discard, stderr: io.Discard}
		root := p.commands()
		for _, c := range root.Commands {
			c.Action = func(_ context.Context, c *cli.Command) error {
				if _, err := p.begin(c); err != nil {
					return err
				}
				got = sessionConfig(c)
				return nil
			}
		}
		require.NoError(t, root.Run(t.Context(), append([]string{"kcptunnel"}, args...)))
		return got
	}
	args, text := []string{"server"}, ""
	for name, value := range flags {
		args, text = append(args, "-"+name, value), text+name+": "+value+"\n"
	}
	require.Equal(t, want, configOf(args...))
	require.Equal(t, want, configOf("server", "-config", file(t, "server.yaml", text)))
	require.Equal(t, &kcp.Config{}, configOf("client"))
	require.Equal(t, &kcp.Config{KeepAlive: -1, PeerTimeout: -1}, configOf("client", "-keepalive", "0", "-peer-timeout", "0", "-idle-timeout", "0", "-max-rate", "0"))
	require.NoError(t, want.Validate())

	for text, size := range map[string]int{"65536": 65536, "64KiB": 65536, "64 KiB": 65536, "1MB": 1e6, "1.5M": 3 << 19, "1GiB": 1 << 30, "100000B": 100000} {
		n, err := memorySize(text)
		require.NoError(t, err, text)
		require.Equal(t, size, n)
	}
	for _, bad := range [][]string{
		{"-max-memory", "1KiB"}, {"-max-memory", "2GiB"}, {"-max-rate", "999"}, {"-max-rate", "1Mbit"}, {"-max-memory", "x"}, {"-max-memory", "NaN"}, {"-keepalive", "1ms"}, {"-keepalive", "-1s"}, {"-peer-timeout", "9000h"},
		{"-max-sessions", "0"}, {"-max-sessions-per-address", "-1"},
	} {
		code, _, said := piped(t, "", append([]string{"server"}, bad...)...)
		require.Equal(t, exitUsage, code, bad)
		require.Contains(t, said, strings.TrimPrefix(bad[0], "-"), bad)
	}
}

// scrape returns what a command shows to Prometheus.
func scrape(t *testing.T, s *started) string {
	t.Helper()
	r, err := http.Get(s.err.Find(t, `metrics=(\S+)`))
	require.NoError(t, err)
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return string(body)
}

// Metrics say what users do, and what the process takes, and the live page has the user's
// name.
func TestMetrics(t *testing.T) {
	at := testenv.Target(t, testenv.Echo)
	s := serve(t, `{"me:secret": [""], "you:x": [""]}`, "-debug", "127.0.0.1:0")
	c, local := s.connect(t, "0:"+at, "-debug", "127.0.0.1:0")
	says(t, local)
	code, _ := exit(t, s.client("you:wrong", "stdio:"+at)...)
	require.Equal(t, exitAway, code)
	for _, want := range []string{
		`kcptunnel_sessions{user="me"} 1`, `kcptunnel_sessions{user="you"} 0`, `kcptunnel_connections_opened_total{user="me"} 1`,
		`kcptunnel_sent_bytes_total{user="me"} 6`, `kcptunnel_received_bytes_total{user="me"} 6`, `kcptunnel_flows_evicted_total{user="me"} 0`, `kcptunnel_logins_total{user="me"} 1`,
		`kcptunnel_wrong_passwords_total{user="you"} 1`, `kcptunnel_wrong_passwords_total{user=""} 0`, `kcptunnel_lockouts_total{user="you"} 0`,
		`kcptunnel_clients_turned_away_total{reason="wrong-identity"} 1`, `kcptunnel_clients_turned_away_total{reason="full"} 0`,
		"\nkcptunnel_build_info{", "\ngo_goroutines ", `kcp_sessions{endpoint="server"} `,
	} {
		require.Contains(t, scrape(t, s.started), want)
	}
	if runtime.GOOS == "linux" {
		require.Contains(t, scrape(t, s.started), "\nprocess_open_fds ")
		require.Contains(t, scrape(t, c), "\nprocess_cpu_seconds_total ")
	}
	page := strings.TrimSuffix(s.err.Find(t, `metrics=(\S+)`), "metrics")
	r, err := http.Get(page + "stats.json?q=me")
	require.NoError(t, err)
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.Contains(t, string(body), `"name":"me"`)
}

// The rules of Prometheus for the tunnel, and the dashboard, are about series that a server and a client show, with labels
// that they have.
func TestRulesOfTheTunnel(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("some series are of Linux")
	}
	s := serve(t, everyone, "-debug", "127.0.0.1:0")
	c, _ := s.connect(t, "-debug", "127.0.0.1:0", "0:127.0.0.1:1")
	shown := scrape(t, s.started) + scrape(t, c)
	text, err := os.ReadFile("../../../observe/prometheus/kcptunnel.rules.yml")
	require.NoError(t, err)
	dashboard, err := os.ReadFile("../../../observe/grafana/kcp.json")
	require.NoError(t, err)
	text = append(text, dashboard...)
	all := regexp.MustCompile(`((?:kcptunnel|process)_\w+)(?:\{(\w+)(!?=)"([^"]*)"\})?`).FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, all)
	for _, m := range all {
		switch m[3] {
		case "":
			require.Regexp(t, `(?m)^`+m[1]+`[ {]`, shown)
		case "=":
			require.Regexp(t, `(?m)^`+m[1]+`\{`+m[2]+`="`+m[4]+`"\}`, shown)
		default:
			require.Regexp(t, `(?m)^`+m[1]+`\{`+m[2]+`="`, shown)
		}
	}
}

// Records have durations as text, in JSON too, and no error that is none.
func TestRecordsAreText(t *testing.T) {
	for _, format := range []string{"json", "text"} {
		var w testenv.Records
		patient(&w).logger(format, true).Warn("x", "retry", 1500*time.Millisecond, "error", nil)
		w.Find(t, `retry"?[:=]"?1\.5s`)
		require.NotContains(t, w.String(), "error")
	}
}
