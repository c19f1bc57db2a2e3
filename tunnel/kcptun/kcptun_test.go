package kcptun

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/golang/snappy"
	"github.com/stretchr/testify/require"
)

// pair runs a server and a client, both ours, and returns where the client listens.
func pair(t *testing.T, target string, edit func(*Config)) string {
	t.Helper()
	s, c := ServerDefaults(), ClientDefaults()
	edit(&s)
	edit(&c)
	s.Listen, s.Target, c.Listen = "127.0.0.1:0", target, "127.0.0.1:0"
	c.Target = start(t, Serve, s)
	return start(t, Run, c)
}

func TestExchange(t *testing.T) {
	at := testenv.Target(t, testenv.Echo)
	for _, crypt := range Ciphers() {
		for i, edit := range []func(*Config){
			func(*Config) {},
			func(c *Config) { c.DataShard, c.ParityShard, c.NoComp, c.SmuxVer, c.Conn = 0, 0, true, 2, 3 },
		} {
			t.Run(fmt.Sprint(crypt, i), func(t *testing.T) {
				t.Parallel()
				local := pair(t, at, func(c *Config) {
					edit(c)
					c.Crypt = crypt
				})
				for range 4 {
					exchange(t, local, 100_000)
				}
			})
		}
	}
}

// Between our own ends one direction may end alone.
func TestHalfClose(t *testing.T) {
	local := pair(t, testenv.Target(t, func(conn *net.TCPConn) {
		b, _ := io.ReadAll(conn)
		_, _ = conn.Write(append(b, " end"...))
	}), func(*Config) {})
	conn, err := net.Dial("tcp", local)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "begin")
	require.NoError(t, err)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	b, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Equal(t, "begin end", string(b))
}

// early reports an end before the last bytes.
type early struct {
	io.Reader
	said bool
}

func (e *early) Read(b []byte) (int, error) {
	if !e.said {
		e.said = true
		return 0, io.EOF
	}
	return e.Reader.Read(b)
}

// Bytes behind an end that was reported too early are carried.
func TestEarlyEnd(t *testing.T) {
	b, err := io.ReadAll(ending{&early{Reader: strings.NewReader("last")}})
	require.NoError(t, err)
	require.Equal(t, "last", string(b))
}

// Behind the end of one direction, one that stays idle ends too.
func TestCloseWait(t *testing.T) {
	release := make(chan struct{})
	ended := make(chan error, 1)
	local := pair(t, testenv.Target(t, func(conn *net.TCPConn) {
		_ = conn.CloseWrite()
		_, err := conn.Read(make([]byte, 1))
		ended <- err
		<-release
	}), func(c *Config) { c.CloseWait = 100 * time.Millisecond })
	defer close(release)
	conn, err := net.Dial("tcp", local)
	require.NoError(t, err)
	defer conn.Close()
	_, _ = io.ReadAll(conn)
	<-ended
}

// A target that refuses ends the connection, and the log names it.
func TestRefusedTarget(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nobody := l.Addr().String()
	require.NoError(t, l.Close())
	var log testenv.Records
	local := pair(t, nobody, func(c *Config) { c.Logger = log.Logger() })
	conn, err := net.Dial("tcp", local)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "x")
	require.NoError(t, err)
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	testenv.Await(t, func() bool { return strings.Contains(log.String(), nobody) })
}

func TestSettingsRefused(t *testing.T) {
	for name, edit := range map[string]func(*Config){
		`crypt "foo"`: func(c *Config) { c.Crypt = "foo" },
		`mode "foo"`:  func(c *Config) { c.Mode = "foo" },
		"mtu 1501":    func(c *Config) { c.MTU = 1501 },
		"key":         func(c *Config) { c.Key = "" },
		"256":         func(c *Config) { c.DataShard = 255; c.ParityShard = 2 },
		"conn 0":      func(c *Config) { c.Conn = 0 },
		"smux":        func(c *Config) { c.SmuxVer = 3 },
		"keepalive":   func(c *Config) { c.KeepAlive = math.MaxInt64 },
		"closewait":   func(c *Config) { c.CloseWait = maxTime + 1 },
		"autoexpire":  func(c *Config) { c.AutoExpire = math.MaxInt64 },
		"scavengettl": func(c *Config) { c.ScavengeTTL = maxTime + 1 },
	} {
		c := ClientDefaults()
		edit(&c)
		var bad *SettingError
		for _, run := range []func(context.Context, Config) error{Serve, Run} {
			err := run(context.Background(), c)
			require.ErrorAs(t, err, &bad)
			require.ErrorContains(t, err, name)
		}
	}
}

// What arrives is decompressed to at most a block at a time, and ends truly.
func FuzzCompressed(f *testing.F) {
	var b bytes.Buffer
	w := snappy.NewBufferedWriter(&b)
	_, _ = w.Write(make([]byte, 100_000))
	_ = w.Close()
	f.Add(b.Bytes())
	f.Add([]byte("\xff\x06\x00\x00sNaPpY\xfe\xff\xff\xff"))
	f.Add([]byte("\xff\x06\x00\x00sNaPpY\x00\x08\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x0f"))
	f.Fuzz(func(t *testing.T, in []byte) {
		here, there := net.Pipe()
		go func() {
			_, _ = there.Write(in)
			_ = there.Close()
		}()
		r := compress(here)
		defer here.Close()
		n, err := io.Copy(io.Discard, struct{ io.Reader }{r})
		require.LessOrEqual(t, n, int64(len(in)+1)*65536)
		if err != nil {
			require.True(t, errors.Is(err, snappy.ErrCorrupt) || errors.Is(err, snappy.ErrUnsupported) || errors.Is(err, io.ErrUnexpectedEOF), "%v", err)
		}
	})
}
