package kcp

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math"
	"net"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/wire"
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
		{"MTU", Config{MTU: 57, FEC: FEC{Data: 10, Parity: 3}}},
		{"MTU", Config{MTU: 1199, TLS: &tls.Config{}}},
		{"MaxMTU", Config{MaxMTU: 65508}},
		{"SendWindow", Config{SendWindow: 65536}}, {"ReceiveWindow", Config{ReceiveWindow: -1}},
		{"WriteBuffer", Config{WriteBuffer: 1}},
		{"MaxRate", Config{MaxRate: -1}},
		{"MaxRate", Config{MaxRate: minMaxRate - 1}},
		{"Tuning.MinRTO", Config{Tuning: Tuning{MinRTO: time.Hour}}},
		{"Tuning.Interval", Config{Tuning: Tuning{Interval: time.Millisecond}}},
		{"Tuning.NoDelay", Config{Tuning: Tuning{NoDelay: NoDelayTurbo + 1}}},
		{"AddressValidation", Config{AddressValidation: ValidateAlways + 1}},
		{"Tuning.DeadLink", Config{Tuning: Tuning{DeadLink: -1}}},
		{"Redundancy", Config{Redundancy: math.NaN()}},
		{"IdleTimeout", Config{IdleTimeout: 10*time.Millisecond - 1}},
		{"PeerTimeout", Config{PeerTimeout: 10*time.Millisecond - 1}},
		{"KeepAlive", Config{KeepAlive: 10*time.Millisecond - 1}},
		{"StallTimeout", Config{StallTimeout: 10*time.Millisecond - 1}},
		{"DialTimeout", Config{DialTimeout: time.Millisecond - 1}},
		{"Linger", Config{Linger: time.Millisecond - 1}},
		{"MaxLinger", Config{MaxLinger: time.Millisecond - 1}},
		{"IdleTimeout", Config{IdleTimeout: maxTimeout + 1}},
		{"MaxLinger", Config{MaxLinger: maxTimeout + 1}},
		{"Limits.Backlog", Config{Limits: Limits{Backlog: -1}}},
		{"Limits.MaxSessions", Config{Limits: Limits{MaxSessions: -5}}},
		{"Limits.MaxHalfOpen", Config{Limits: Limits{MaxHalfOpen: -1}}},
		{"Limits.MaxSessionsPerAddress", Config{Limits: Limits{MaxSessionsPerAddress: -1}}},
		{"Limits.MaxBuffered", Config{Limits: Limits{MaxBuffered: 1}}},
		{"Shards", Config{Shards: maxShards + 1}},
		{"StreamReceiveBuffer", Config{StreamReceiveBuffer: 1}},
		{"StreamWriteBuffer", Config{StreamWriteBuffer: 1}},
		{"FEC", Config{FEC: FEC{Data: 1}}},
		{"FEC", Config{FEC: FEC{Parity: 1}}},
		{"FEC", Config{FEC: FEC{Data: 200, Parity: 100}}},
		{"StatelessResetKey", Config{StatelessResetKey: make([]byte, 15)}},
		{"LegacyPeers", Config{LegacyPeers: LegacyRefuse + 1}},
		{"TLS.MinVersion", Config{TLS: &tls.Config{MinVersion: tls.VersionTLS12}}},
		{"TLS.MaxVersion", Config{TLS: &tls.Config{MaxVersion: tls.VersionTLS12}}},
		{"TLS", Config{TLS: &tls.Config{}, LegacyPeers: LegacyAllow}},
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
	const silence, wait = 10 * time.Millisecond, time.Millisecond
	shortest := Config{
		PeerTimeout: silence, KeepAlive: silence, IdleTimeout: silence, StallTimeout: silence,
		DialTimeout: wait, Linger: wait, MaxLinger: wait,
	}
	never := Config{PeerTimeout: -1, KeepAlive: -1, StallTimeout: -1, DialTimeout: -1, Linger: -1, MaxLinger: -1}
	for _, good := range []Config{{}, LowLatency(), Classic(), {MTU: 50}, {MaxMTU: -1}, {Tuning: Tuning{FastResend: -1, FastResendLimit: -1}}, {Redundancy: 4}, {MaxRate: minMaxRate}, *secured(Config{MTU: 1200}), shortest, longestTimeouts, never} {
		require.NoError(t, good.Validate())
	}
	require.NoError(t, (*Config)(nil).Validate())

	k := machine.New(1, func([]byte) {})
	for _, err := range []error{
		k.SetMTU(49), k.SetMTU(65536), k.SetWindow(0, 128), k.SetWindow(128, 0),
		k.SetInterval(9), k.SetInterval(5001), k.SetMinRTO(0), k.SetMinRTO(60001),
	} {
		require.Error(t, err)
	}
}

var longestTimeouts = Config{
	PeerTimeout: maxTimeout, KeepAlive: maxTimeout, IdleTimeout: maxTimeout, StallTimeout: maxTimeout,
	DialTimeout: maxTimeout, Linger: maxTimeout, MaxLinger: maxTimeout, Tuning: Tuning{DeadLink: math.MaxInt, FastResend: math.MaxInt, FastResendLimit: math.MaxInt},
}

// With the longest time-outs a session carries data, rests without a packet, and ends.
// What the machine holds in 32 bits is clamped.
func TestLongestTimeouts(t *testing.T) {
	inWorld(t, 8, clean, func(t *testing.T, w *world) {
		config := &longestTimeouts
		a, b, _ := w.pair(config, config)
		bothWays(t, a, b, content(1, 100<<10), content(2, 100<<10))
		time.Sleep(20 * time.Second)
		seen := w.watched()
		time.Sleep(30 * 24 * time.Hour)
		require.Less(t, len(seen.all(w)), 100)
		bothWays(t, a, b, content(3, 100<<10), content(4, 100<<10))
		var ce *ConfigError
		require.ErrorAs(t, a.SetLinger(math.MaxInt64), &ce)
		require.NoError(t, a.SetLinger(maxTimeout))
		go func() { _, _ = io.Copy(io.Discard, b) }()
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		k := machine.New(1, func([]byte) {})
		whole := config.withDefaults()
		settled := whole.ofSessions()
		settled.Apply(k, 0)
		require.EqualValues(t, maxInt32, k.Inspect().DeadLink)
		require.EqualValues(t, maxInt32, k.Inspect().FastResend)
	})
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
	for _, o := range []DialOptions{{}, {Quiet: true}, {Conv: id(7)}} {
		_, err = e.Dial(ctx, pc.LocalAddr(), &o)
		require.ErrorIs(t, err, context.Canceled)
	}
	_, err = e.Dial(context.Background(), open().LocalAddr(), nil)
	var silent *NoAnswerError
	require.ErrorAs(t, err, &silent)
	require.NoError(t, e.Close())
	requireUsable(pc)
}

// A setter refuses what Config would refuse, and changes nothing then. After
// Close it fails.
func TestSettersCheck(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		cfg := &Config{Cipher: testAEAD(t), FEC: FEC{Data: 3, Parity: 1}}
		a, b, _ := w.pair(cfg, cfg)
		room := session.OverheadOf(cfg.Cipher, cfg.TLS != nil, cfg.FEC).Total
		figures := func() machine.Settings {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.session.Inside().Machine().Inspect().Settings
		}
		config := figures()
		for _, n := range []int{-1, 1, machine.MinMTU, room + machine.MinMTU - 1, session.MaxUDPPayload + 1, math.MaxInt32, math.MinInt32} {
			requireConfigError(t, "MTU", a.SetMTU(n))
		}
		for _, n := range []int{-1, wire.MaxWindow + 1, math.MaxInt32, math.MinInt32} {
			requireConfigError(t, "SendWindow", a.SetWindow(n, 0))
			requireConfigError(t, "ReceiveWindow", a.SetWindow(1, n))
		}
		requireConfigError(t, "Tuning.NoDelay", a.SetNoDelay(NoDelayTurbo+1, 0, 0))
		for _, d := range []time.Duration{-1, 1, 10*time.Millisecond - 1, 5*time.Second + 1, math.MaxInt64, math.MinInt64} {
			requireConfigError(t, "Tuning.Interval", a.SetNoDelay(0, d, 1))
		}
		for _, n := range []int{-1, 1, minWriteBuffer - 1, maxConfigWriteBuffer + 1, math.MaxInt32} {
			requireConfigError(t, "WriteBuffer", a.SetWriteBuffer(n))
		}
		for _, n := range []int{-1, 1, minMaxRate - 1, math.MinInt32} {
			requireConfigError(t, "MaxRate", a.SetMaxRate(n))
		}
		for _, d := range []time.Duration{1, minSilence - 1, maxTimeout + 1, math.MaxInt64} {
			requireConfigError(t, "KeepAlive", a.SetKeepAlive(d))
			requireConfigError(t, "PeerTimeout", a.SetPeerTimeout(d))
		}
		require.Equal(t, config, figures())
		require.False(t, a.session.Inside().IsRare())

		require.NoError(t, a.SetPeerTimeout(2*time.Second))
		require.EqualValues(t, 500, figures().Extensions.MaxRTO, "the peer is asked often enough")
		require.NoError(t, a.SetPeerTimeout(0))
		require.Equal(t, config, figures())
		require.NoError(t, a.SetMTU(room+machine.MinMTU))
		require.NoError(t, a.SetWindow(1, 1))
		require.NoError(t, a.SetNoDelay(NoDelayTurbo, 5*time.Second, math.MaxInt32))
		require.NoError(t, a.SetNoDelay(NoDelayTurbo, 10*time.Millisecond, math.MinInt32))
		require.NoError(t, a.SetWriteBuffer(minWriteBuffer))
		w.move(a, b, 1, 5000)
		require.NoError(t, a.SetWindow(wire.MaxWindow, wire.MaxWindow))
		require.NoError(t, a.SetMTU(session.MaxUDPPayload))
		require.NoError(t, a.SetWriteBuffer(maxConfigWriteBuffer))
		require.NoError(t, a.SetMaxRate(math.MaxInt))
		w.move(a, b, 2, 200_000)
		w.move(b, a, 3, 200_000)

		setters := func(c *Conn) []error {
			return []error{
				c.SetMTU(1000), c.SetWindow(5, 5), c.SetNoDelay(NoDelayOn, 0, 0),
				c.SetCongestionControl(nil), c.SetMessageMode(true), c.SetWriteBuffer(0), c.SetMaxRate(5000),
				c.SetKeepAlive(time.Second), c.SetPeerTimeout(time.Second),
			}
		}
		require.NoError(t, a.Close())
		for _, err := range setters(a) {
			require.ErrorIs(t, err, net.ErrClosed)
		}
		require.NoError(t, errors.Join(setters(b)...), "it has ended, and is not closed")
		require.False(t, b.session.Inside().HasSettings())
	})
}

func requireConfigError(t *testing.T, field string, err error) {
	t.Helper()
	var bad *ConfigError
	require.ErrorAs(t, err, &bad)
	require.Equal(t, field, bad.Field)
}

// The receive window bounds what waits for Read. When it grows, the peer learns
// of it at once, and what had arrived behind the old one can be read.
func TestSetReceiveWindow(t *testing.T) {
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		require.NoError(t, b.SetWindow(0, 1)) // 128
		data := content(1, 600_000)
		writeAll(t, a, data)
		time.Sleep(time.Second)
		queued := func() int {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.session.Inside().Machine().Inspect().Queued
		}
		require.EqualValues(t, 128, queued())
		require.Zero(t, a.Stats().RemoteWindow)
		require.NoError(t, b.SetWindow(0, 300))
		time.Sleep(2*clean.Delay + time.Millisecond) // a window update, and what it lets go
		require.Greater(t, queued(), 128)
		time.Sleep(time.Second)
		require.EqualValues(t, 300, queued())
		require.NoError(t, b.SetWindow(0, 128)) // less than it holds
		receive(t, b, data)
		w.move(a, b, 2, 600_000)
		require.LessOrEqual(t, a.Stats().RemoteWindow, 128)
	})
}

// A WriteMessage that waits does not send part of a stream, if the mode changes.
func TestSetMessageModeDuringWrite(t *testing.T) {
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&Config{MessageMode: true, WriteBuffer: minWriteBuffer, SendWindow: 1}, nil)
		w.net.Cut("10.0.0.1", "10.0.0.2")
		writeAll(t, a, content(1, 4000))
		waiting := make(chan error, 1)
		go func() { waiting <- a.WriteMessage([]byte("message"), nil) }()
		time.Sleep(time.Second)
		require.NoError(t, a.SetMessageMode(false))
		w.net.Heal("10.0.0.1", "10.0.0.2")
		receive(t, b, content(1, 4000))
		require.ErrorIs(t, <-waiting, session.ErrNotMessageMode)
	})
}
