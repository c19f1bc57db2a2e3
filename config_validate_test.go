package kcp

import (
	"context"
	"crypto/tls"
	"math"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// wrongConfig is a Config with one field that is not valid.
type wrongConfig struct {
	field  string
	config Config
}

// wrongConfigs returns each way in which a Config may be wrong.
func wrongConfigs(t *testing.T) []wrongConfig {
	aead := testCiphers(t, 1)["aes-gcm"]
	return []wrongConfig{
		{"MTU", Config{MTU: 49}},
		{"MTU", Config{MTU: 60, Cipher: aead}},
		{"MTU", Config{MTU: 57, FEC: FEC{10, 3}}},
		{"MTU", Config{MTU: 1199, TLS: &tls.Config{}}},
		{"MaxMTU", Config{MaxMTU: 65508}},
		{"SendWindow", Config{SendWindow: 65536}},
		{"ReceiveWindow", Config{ReceiveWindow: -1}},
		{"WriteBuffer", Config{WriteBuffer: 1}},
		{"MinRTO", Config{MinRTO: time.Hour}},
		{"Interval", Config{Interval: time.Millisecond}},
		{"NoDelay", Config{NoDelay: NoDelayTurbo + 1}},
		{"AddressValidation", Config{AddressValidation: ValidateAlways + 1}},
		{"DeadLink", Config{DeadLink: -1}},
		{"Redundancy", Config{Redundancy: math.NaN()}},
		{"IdleTimeout", Config{IdleTimeout: -1}},
		{"Backlog", Config{Backlog: -1}},
		{"MaxSessions", Config{MaxSessions: -5}},
		{"MaxHalfOpen", Config{MaxHalfOpen: -1}},
		{"MaxSessionsPerAddress", Config{MaxSessionsPerAddress: -1}},
		{"MaxBuffered", Config{MaxBuffered: 1}},
		{"Shards", Config{Shards: maxShards + 1}},
		{"StreamReceiveBuffer", Config{StreamReceiveBuffer: 1}},
		{"StreamWriteBuffer", Config{StreamWriteBuffer: 1}},
		{"FEC", Config{FEC: FEC{Data: 1}}},
		{"FEC", Config{FEC: FEC{Parity: 1}}},
		{"FEC", Config{FEC: FEC{200, 100}}},
		{"FEC", Config{FEC: FEC{-1, 5}}},
		{"StatelessResetKey", Config{StatelessResetKey: make([]byte, 15)}},
		{"AllowLegacy", Config{AllowLegacy: true, RefuseLegacy: true}},
		{"TLS.MinVersion", Config{TLS: &tls.Config{MinVersion: tls.VersionTLS12}}},
		{"TLS.MaxVersion", Config{TLS: &tls.Config{MaxVersion: tls.VersionTLS12}}},
		{"TLS", Config{TLS: &tls.Config{}, AllowLegacy: true}},
		{"TLS", Config{TLS: &tls.Config{}, Cipher: aead}},
	}
}

// A bad setting is an error that names it; nothing is ignored in silence.
func TestConfigErrors(t *testing.T) {
	for _, wrong := range wrongConfigs(t) {
		config := wrong.config
		var ce *ConfigError
		require.ErrorAs(t, config.Validate(), &ce, wrong.field)
		require.Equal(t, wrong.field, ce.Field)
		_, err := Dial("udp", "127.0.0.1:1", &config)
		require.ErrorAs(t, err, &ce)
		_, err = Listen("udp", "127.0.0.1:0", &config)
		require.ErrorAs(t, err, &ce)
		_, err = NewEndpoint(nil, &config)
		require.ErrorAs(t, err, &ce)
		_, err = (&Dialer{Config: &config}).DialContext(context.Background(), "udp", "127.0.0.1:1")
		require.ErrorAs(t, err, &ce)
	}
	for _, good := range []Config{{}, LowLatency(), Classic(), {MTU: 50}, {MaxMTU: -1}, {FastResend: -1, FastResendLimit: -1}, {Redundancy: 4}, *secured(Config{MTU: 1200})} {
		require.NoError(t, good.Validate())
	}
	require.NoError(t, (*Config)(nil).Validate())

	k := New(1, nil)
	require.Error(t, k.SetMTU(49))
	require.Error(t, k.SetMTU(65536))
	require.Error(t, k.SetWindow(0, 128))
	require.Error(t, k.SetWindow(128, 0))
	require.Error(t, k.SetInterval(9))
	require.Error(t, k.SetInterval(5001))
	require.Error(t, k.SetMinRTO(0))
	require.Error(t, k.SetMinRTO(60001))
}

// openSockets is the sockets that are open. Those that Config.Control has seen
// are known on every system, and on Linux all descriptors of the process.
type openSockets struct {
	seen   []syscall.RawConn
	before map[string]bool
}

// control is Config.Control.
func (o *openSockets) control(_, _ string, c syscall.RawConn) error {
	o.seen = append(o.seen, c)
	return nil
}

// descriptors returns the sockets of the process on Linux, and nothing elsewhere.
func descriptors(t *testing.T) map[string]bool {
	t.Helper()
	if runtime.GOOS != "linux" {
		return nil
	}
	const dir = "/proc/self/fd/"
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	sockets := make(map[string]bool)
	for _, e := range entries {
		if to, err := os.Readlink(dir + e.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			sockets[to] = true
		}
	}
	return sockets
}

// requireNone checks that what was opened since before was set is closed.
func (o *openSockets) requireNone(t *testing.T) {
	t.Helper()
	for _, c := range o.seen {
		require.Error(t, c.Control(func(uintptr) {}), "an open socket")
	}
	for s := range descriptors(t) {
		require.True(t, o.before[s], "an open socket")
	}
}

// A call that fails leaves no socket open, whatever has failed.
func TestFailuresCloseTheirSockets(t *testing.T) {
	busy, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}) // never answers
	require.NoError(t, err)
	defer busy.Close()
	taken := busy.LocalAddr().String()
	server, err := Listen("udp4", "127.0.0.1:0", secured(Config{}))
	require.NoError(t, err)
	defer server.Endpoint().Close()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	second := func(control func(string, string, syscall.RawConn) error) func(string, string, syscall.RawConn) error {
		calls := 0
		return func(network, address string, c syscall.RawConn) error {
			if calls++; calls == 2 {
				return os.ErrPermission
			}
			return control(network, address, c)
		}
	}
	type failure struct {
		name string
		call func(c *Config) error
	}
	dial := func(ctx context.Context, network, address string, change func(*Config)) func(*Config) error {
		return func(c *Config) error {
			if c.DialTimeout = 20 * time.Millisecond; change != nil {
				change(c)
			}
			_, err := DialContext(ctx, network, address, c)
			return err
		}
	}
	listen := func(network, address string, change func(*Config)) func(*Config) error {
		return func(c *Config) error {
			if change != nil {
				change(c)
			}
			_, err := Listen(network, address, c)
			return err
		}
	}
	background := context.Background()
	failures := []failure{
		{"Listen, no certificate", listen("udp4", "127.0.0.1:0", func(c *Config) { c.TLS = &tls.Config{} })},
		{"Listen, no certificate, shards", listen("udp4", "127.0.0.1:0", func(c *Config) { c.TLS, c.Shards = &tls.Config{}, 3 })},
		{"Listen, network", listen("unix", "127.0.0.1:0", nil)},
		{"Listen, address", listen("udp4", "nonsense", nil)},
		{"Listen, address in use", listen("udp4", taken, nil)},
		{"Listen, address in use, shards", listen("udp4", taken, func(c *Config) { c.Shards = 2 })},
		{"Listen, second shard", listen("udp4", "127.0.0.1:0", func(c *Config) {
			c.Shards, c.Control = 2, second(c.Control)
			if runtime.GOOS != "linux" { // there is only one
				c.Control = func(string, string, syscall.RawConn) error { return os.ErrPermission }
			}
		})},
		{"Dial, network", dial(background, "unix", taken, nil)},
		{"Dial, address", dial(background, "udp4", "nonsense", nil)},
		{"Dial, no answer", dial(background, "udp4", taken, nil)},
		{"Dial, context", dial(ended, "udp4", taken, nil)},
		{"Dial, Control", dial(background, "udp4", taken, func(c *Config) {
			c.Control = func(string, string, syscall.RawConn) error { return os.ErrPermission }
		})},
		{"Dial, certificate", dial(background, "udp4", server.Addr().String(), func(c *Config) {
			c.TLS, c.DialTimeout = &tls.Config{ServerName: "test"}, 10*time.Second
		})},
		{"Dial, TLS required", dial(background, "udp4", server.Addr().String(), func(c *Config) { c.DialTimeout = 10 * time.Second })},
		{"Dialer, local address", func(c *Config) error {
			_, err := (&Dialer{Config: c, LocalAddr: busy.LocalAddr()}).DialContext(background, "udp4", "127.0.0.1:9")
			return err
		}},
		{"Dialer, kind of local address", func(c *Config) error {
			_, err := (&Dialer{Config: c, LocalAddr: &net.TCPAddr{}}).DialContext(background, "udp4", "127.0.0.1:9")
			return err
		}},
	}
	for _, wrong := range wrongConfigs(t) {
		failures = append(failures,
			failure{"Listen, " + wrong.field, listen("udp4", "127.0.0.1:0", func(c *Config) { *c = wrong.config })},
			failure{"Dial, " + wrong.field, dial(background, "udp4", taken, func(c *Config) { *c = wrong.config })})
	}
	for _, f := range failures {
		t.Run(f.name, func(t *testing.T) {
			o := openSockets{before: descriptors(t)}
			require.Error(t, f.call(&Config{Control: o.control}))
			o.requireNone(t)
		})
	}
}

// NewEndpoint does not close the socket of its caller, and no call that fails
// does. An error of the settings comes as it is, in Listen too.
func TestFailuresLeaveTheCallersSocket(t *testing.T) {
	open := func() *net.UDPConn {
		pc, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(t, err)
		t.Cleanup(func() { _ = pc.Close() })
		return pc
	}
	requireUsable := func(pc *net.UDPConn) {
		_, err := pc.WriteTo([]byte("x"), pc.LocalAddr())
		require.NoError(t, err)
		require.NoError(t, pc.SetReadDeadline(time.Now().Add(30*time.Second)))
		_, _, err = pc.ReadFrom(make([]byte, 1))
		require.NoError(t, err)
	}
	pc := open()
	for _, wrong := range wrongConfigs(t) {
		_, err := NewEndpoint(pc, &wrong.config)
		_, bare := err.(*ConfigError)
		require.True(t, bare, "%v", err)
	}
	requireUsable(pc)

	e, err := NewEndpoint(pc, &Config{TLS: &tls.Config{}, DialTimeout: 20 * time.Millisecond})
	require.NoError(t, err)
	_, err = e.Listen()
	require.Equal(t, &ConfigError{"TLS.Certificates", "empty", "must have one to listen, unless GetCertificate or GetConfigForClient is set"}, err)
	_, fromListen := Listen("udp4", "127.0.0.1:0", &Config{TLS: &tls.Config{}})
	require.Equal(t, err, fromListen)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, o := range []DialOptions{{}, {Quiet: true}, {Conv: 7}} {
		_, err = e.DialWith(ctx, pc.LocalAddr(), o)
		require.ErrorIs(t, err, context.Canceled)
	}
	_, err = e.Dial(context.Background(), open().LocalAddr())
	var silent *NoAnswerError
	require.ErrorAs(t, err, &silent)
	require.NoError(t, e.Close())
	requireUsable(pc)
}
