package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// Files as kcptun's users have them, for both ends, in pairs. Each is read as kcptun does
// it, and carries a transfer. What has no effect is in one record of the log.
func TestFilesOfKcptun(t *testing.T) {
	at := testenv.Target(t, testenv.Echo)
	for name, pair := range map[string]struct {
		server, client string // with the target, the port of the server, where to listen
		idle           string // what the log of the client has
	}{
		"the least": {
			`{"listen": ":@port", "target": "@target", "key": "test"}`,
			`{"localaddr": "127.0.0.1:0", "remoteaddr": "127.0.0.1:@port", "key": "test"}`, "",
		},
		"as in the examples of kcptun, but for QPP": {
			`{"listen": ":@port", "target": "@target", "key": "PASSWORD", "crypt": "aes-128", "qpp": false, "qpp-count": 61, "mode": "fast3",
			"mtu": 1400, "sndwnd": 2048, "rcvwnd": 2048, "datashard": 10, "parityshard": 3, "dscp": 46, "nocomp": true, "acknodelay": false,
			"nodelay": 1, "interval": 40, "resend": 2, "nc": 1, "sockbuf": 16777217, "smuxver": 2, "smuxbuf": 16777217, "streambuf": 2097152,
			"keepalive": 10, "pprof": false, "quiet": false, "tcp": false}`,
			`{"localaddr": "127.0.0.1:0", "remoteaddr": "127.0.0.1:@port", "key": "PASSWORD", "crypt": "aes-128", "qpp": false, "qpp-count": 61,
			"mode": "fast3", "mtu": 1400, "ratelimit": 1048576, "sndwnd": 128, "rcvwnd": 1024, "datashard": 10, "parityshard": 3, "dscp": 46,
			"nocomp": true, "acknodelay": false, "nodelay": 1, "interval": 40, "resend": 2, "nc": 1, "sockbuf": 16777217, "smuxver": 2,
			"smuxbuf": 16777217, "streambuf": 2097152, "keepalive": 10, "autoexpire": 300, "quiet": false, "tcp": false}`,
			`settings=qpp-count`,
		},
		"null, twice, and something behind": {
			`{"listen": ":1", "listen": ":@port", "target": "@target", "key": "k", "mode": null, "snmplog": null, "comment": {"by": ["panel", 1]}} trailing`,
			`{"localaddr": "127.0.0.1:0", "remoteaddr": "127.0.0.1:1", "remoteaddr": "127.0.0.1:@port", "key": "k", "mode": null, "comment": {"by": ["panel", 1]}}`,
			`settings=comment`,
		},
		"a cipher and a mode that kcptun does not know": {
			`{"listen": ":@port", "target": "@target", "key": "k", "crypt": "chacha20", "mode": "turbo", "nodelay": 1, "interval": 10, "resend": 2, "nc": 1}`,
			`{"localaddr": "127.0.0.1:0", "remoteaddr": "127.0.0.1:@port", "key": "k", "crypt": "aes", "mode": "turbo", "nodelay": 1, "interval": 10, "resend": 2, "nc": 1}`,
			`settings="mode turbo, which is manual"`,
		},
		"the longest names, with a mark of byte order": {
			"\ufeff" + `{"listen": "[::]:@port", "target": "@target", "key": "` + strings.Repeat("long ", 50) + `", "crypt": "sm4", "smuxver": 2, "log": "", "pprof": false}`,
			`{"localaddr": "127.0.0.1:0", "remoteaddr": "127.0.0.1:@port", "key": "` + strings.Repeat("long ", 50) + `", "crypt": "sm4", "smuxver": 2, "log": "", "acknodelay": true}`,
			"settings=acknodelay",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, port, _ := net.SplitHostPort(testenv.FreeAddress(t))
			fill := strings.NewReplacer("@port", port, "@target", at).Replace
			s := start(t, "kcptun-server", "-c", file(t, "server.json", fill(pair.server)))
			s.err.Find(t, `msg=listening`)
			c := start(t, "kcptun-client", "-v", "-c", file(t, "client.json", fill(pair.client)))
			local := c.err.Find(t, `listening address=(\S+)`)
			for range 3 {
				exchange(t, local, 300_000)
			}
			if pair.idle != "" {
				require.Equal(t, 1, strings.Count(c.err.String(), "settings without effect"))
				require.Contains(t, c.err.String(), pair.idle)
			} else {
				require.NotContains(t, c.err.String(), "settings without effect")
			}
		})
	}
}

// What kcptun would refuse, or do differently, is refused, with the key and the file.
func TestFilesOfKcptunRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "invalid JSON",
		"{":                             "invalid JSON",
		"[]":                            "want an object",
		`"key"`:                         "want an object",
		`{"key": "k"`:                   "invalid JSON",
		`{"mtu": "large"}`:              "mtu",
		`{"mtu": 1.5}`:                  "mtu",
		`{"mtu": [1]}`:                  "mtu: want one value",
		`{"mtu": 99999999999999999999}`: "mtu",
		`{"nocomp": {}}`:                "nocomp: want one value",
		`{"tcp": true}`:                 "-tcp",
		`{"qpp": true}`:                 "QPP",
		`{"mtu": 9000}`:                 "9000",
	} {
		path := file(t, "c.json", text)
		code, said := exit(t, "kcptun-client", "-l", "127.0.0.1:0", "-c", path)
		require.Equal(t, exitUsage, code, text)
		require.Contains(t, said, want, text)
	}
	for address, want := range map[string]string{
		"host:9-1": "range", "host:0-5": "range", "host:1-65536": "range", "host:": "port", "host": "HOST:PORT", "host:1-2-3": "range", "host:0": "port of a server",
	} {
		code, said := exit(t, "kcptun-client", "-l", "127.0.0.1:0", "-r", address)
		require.Equal(t, exitUsage, code, address)
		require.Contains(t, said, want, address)
	}
	code, said := exit(t, "kcptun-server", "-l", ":1000-65000")
	require.Equal(t, exitUsage, code)
	require.Contains(t, said, "64001 ports")
}

// theirs is what kcptun decodes a file into.
type theirs struct {
	LocalAddr, RemoteAddr, Listen, Target, Key, Crypt, Mode, Log string

	Conn, AutoExpire, ScavengeTTL, MTU, SndWnd, RcvWnd, DataShard, ParityShard, DSCP int
	NoDelay, Interval, Resend, NC, SockBuf, SmuxVer, SmuxBuf, StreamBuf, KeepAlive   int

	NoComp, Quiet, TCP, QPP bool
}

// What kcptun reads is read here, with the same values. It may have been refused only for
// what a value is.
func FuzzFileOfKcptun(f *testing.F) {
	for _, text := range []string{
		`{"localaddr": ":1", "key": "k", "conn": 2, "nocomp": true, "qpp": false}`, `{"Key": "a", "KEY": null, "scavengettl": -1}`, `{"mtu": 1e3}`,
		`{"x": {"y": []}, "crypt": "rot13"}`, "\ufeff{}", `{"key":"\ud800"} x`, `[]`, `{"":""}`, `{"c": "x", "help": true, "l": "y"}`,
	} {
		f.Add([]byte(text))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(dir, fmt.Sprintf("%x.json", sha256.Sum256(text)))
		require.NoError(t, os.WriteFile(path, text, 0o600))
		defer os.Remove(path)
		p := &program{stdout: io.Discard, stderr: io.Discard}
		c := p.kcptunClient()
		_, err := applyKcptunFile(c, path)
		var want theirs
		// Numbers that kcptun cannot take make it fail; null and unknown keys do not.
		if json.Unmarshal(text, &want) != nil || err != nil {
			return
		}
		if want.Key != "" {
			require.Equal(t, want.Key, c.String("key"))
		}
		if want.MTU != 0 {
			require.Equal(t, want.MTU, c.Int("mtu"))
		}
		if want.ScavengeTTL != 0 {
			require.Equal(t, want.ScavengeTTL, c.Int("scavengettl"))
		}
		require.Equal(t, want.NoComp, c.Bool("nocomp"))
		require.Equal(t, want.QPP, c.Bool("QPP"))
	})
}

// The file of -config, whatever it has, is read or refused.
func FuzzConfigFile(f *testing.F) {
	for _, text := range []string{
		"server: a:1\nremote: [a, b]\n", `{"server": ["a:1"], "v": true}`, "a: &x [*x]\n", "- a\n", "v: yes\n", "udp-timeout: 1m\n", "? {a: b}\n: c\n",
		"a: !!binary x\n", "<<: {v: true}\n", "v: true\n---\nv: false\n",
	} {
		f.Add([]byte(text))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(dir, fmt.Sprintf("%x.yaml", sha256.Sum256(text)))
		require.NoError(t, os.WriteFile(path, text, 0o600))
		defer os.Remove(path)
		p := &program{stdout: io.Discard, stderr: io.Discard}
		for _, c := range []string{"client", "server"} {
			command := p.client()
			if c == "server" {
				command = p.server()
			}
			err := applyFile(command, path)
			var usage *usageError
			if err != nil {
				require.ErrorAs(t, err, &usage)
			}
		}
	})
}
