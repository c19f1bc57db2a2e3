package main

import (
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"

	"github.com/arqnet/kcp/congestion"
)

func parseSettings(t *testing.T, initial profile, args string) (*settings, *kcp.Config) {
	t.Helper()
	s := &settings{profile: initial}
	o := optionSet{synopsis: "test", groups: []optionGroup{s.group()}}
	_, err := o.parse(streams{out: io.Discard, err: io.Discard}, strings.Fields(args), 0)
	require.NoError(t, err, args)
	cfg, err := s.config()
	require.NoError(t, err, args)
	return s, cfg
}

// comparable returns a Config without the constructor of the congestion
// control, which is replaced by the window of what it constructs.
func comparable(cfg kcp.Config) (kcp.Config, int) {
	window := 0
	if cfg.CongestionControl != nil {
		window = cfg.CongestionControl().Window()
	}
	cfg.CongestionControl = nil
	return cfg, window
}

func TestSettings(t *testing.T) {
	unlimited := congestion.NewNone().Window()
	with := func(base kcp.Config, edit func(*kcp.Config)) kcp.Config {
		edit(&base)
		return base
	}
	for _, test := range []struct {
		args string
		want kcp.Config
	}{
		{"", kcp.Config{}},
		{"-profile lowlatency", kcp.LowLatency()},
		{"-profile classic", kcp.Classic()},
		{"-profile CLASSIC -stream", with(kcp.Classic(), func(c *kcp.Config) { c.MessageMode = false })},
		{"-message", kcp.Config{MessageMode: true}},
		{"-mtu 500 -sndwnd 64 -rcvwnd 256", kcp.Config{MTU: 500, SendWindow: 64, ReceiveWindow: 256}},
		{"-nodelay turbo", kcp.Config{Tuning: kcp.Tuning{NoDelay: kcp.NoDelayTurbo}}},
		{"-minrto 50ms -interval 20ms", kcp.Config{Tuning: kcp.Tuning{MinRTO: 50 * time.Millisecond, Interval: 20 * time.Millisecond}}},
		{"-resend 0", kcp.Config{Tuning: kcp.Tuning{FastResend: -1}}},
		{"-cc none", kcp.Config{CongestionControl: congestion.NewNone}},
		{"-cc reference", kcp.Config{CongestionControl: congestion.NewReference}},
		{"-peer-timeout 3s -linger 2s", kcp.Config{PeerTimeout: 3 * time.Second, Linger: 2 * time.Second}},
		{"-peer-timeout 0 -linger 0s", kcp.Config{PeerTimeout: -1, Linger: -1}},
		{"-write-buffer 1MiB", kcp.Config{WriteBuffer: 1 << 20}},
		{"-sndwnd 99 -profile lowlatency", with(kcp.LowLatency(), func(c *kcp.Config) { c.SendWindow = 99 })},
		{"-cc reference -profile lowlatency", with(kcp.LowLatency(), func(c *kcp.Config) { c.CongestionControl = congestion.NewReference })},
	} {
		_, cfg := parseSettings(t, defaultProfile, test.args)
		got, gotWindow := comparable(*cfg)
		want, wantWindow := comparable(test.want)
		require.True(t, reflect.DeepEqual(want, got), "%s: want %+v, got %+v", test.args, want, got)
		require.Equal(t, wantWindow, gotWindow, test.args)
	}
	_, window := comparable(kcp.LowLatency())
	require.Equal(t, unlimited, window)
}

func TestSettingsDescribeThemselves(t *testing.T) {
	for args, want := range map[string]string{
		"":                                  "profile default",
		"-sndwnd 64":                        "profile default, -sndwnd 64",
		"-sndwnd 64 -profile classic":       "profile classic, -sndwnd 64",
		"-message -cc none -resend 0":       "profile default, -message -cc none -resend 0",
		"-stream=false -profile lowlatency": "profile lowlatency",
	} {
		s, _ := parseSettings(t, defaultProfile, args)
		require.Equal(t, want, s.String(), args)
	}
}

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int64{
		"0": 0, "1": 1, "1000b": 1000, "8MB": 8_000_000, "8mb": 8_000_000, "8 MB": 8_000_000, "8M": 8_000_000,
		"1.5k": 1500, "512kB": 512_000, "4KiB": 4096, "64MiB": 64 << 20, "2Gi": 2 << 30, "1TB": 1e12,
	} {
		got, err := parseSize(s)
		require.NoError(t, err, s)
		require.Equal(t, want, got, s)
	}
	for _, s := range []string{"", "MB", "-1", "1.5", "8XB", "8MBB", "NaN", "Inf", "1e30", "99999999TB", "0x10", "8MB8"} {
		_, err := parseSize(s)
		require.Error(t, err, s)
	}
}

func TestParsePercent(t *testing.T) {
	for s, want := range map[string]float64{
		"10%": 0.1, "10": 0.1, "0.1": 0.1, "0": 0, "0%": 0, "0.5%": 0.005, "1%": 0.01, "1.5": 0.015,
		"100": 1, "100%": 1, "12.5": 0.125, "10 %": 0.1,
	} {
		got, err := parsePercent(s)
		require.NoError(t, err, s)
		require.InDelta(t, want, got, 1e-12, s)
	}
	for _, s := range []string{"", "%", "-1", "-0.1", "1", "1.0", "101", "100.1%", "ten", "NaN", "Inf", "10%%"} {
		_, err := parsePercent(s)
		require.Error(t, err, s)
	}
}

func TestParsePatience(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"3s": 3 * time.Second, "3": 3 * time.Second, "0": 0, "0.5": 500 * time.Millisecond, "-1": -time.Second,
		"-1s": -time.Second, "250ms": 250 * time.Millisecond,
	} {
		got, err := parsePatience(s)
		require.NoError(t, err, s)
		require.Equal(t, want, got, s)
	}
	for _, s := range []string{"", "soon", "1e300", "NaN", "-5s", "-2", "-1ms"} {
		_, err := parsePatience(s)
		require.Error(t, err, s)
	}
}

func TestFormats(t *testing.T) {
	for n, want := range map[float64]string{
		0: "0 B", 999: "999 B", 1000: "1.0 kB", 8e6: "8.0 MB", 1.25e9: "1.2 GB", 3e12: "3.0 TB",
	} {
		require.Equal(t, want, formatBytes(n))
	}
	require.Equal(t, "0 bytes, 1 byte, 2 bytes", plural(int64(0), "byte")+", "+plural(int64(1), "byte")+", "+plural(int64(2), "byte"))
	require.Equal(t, "12.5%", formatShare(1, 8))
	require.Equal(t, "0.0%", formatShare(0, 0))
	require.Equal(t, "12ms", formatTime(12*time.Millisecond+300*time.Microsecond))
	require.Equal(t, "1.50s", formatTime(1500*time.Millisecond))
	require.Equal(t, "2m5s", formatTime(125*time.Second+300*time.Millisecond))
}

func TestParseSeedTakesAll64Bits(t *testing.T) {
	got, err := parseSeed("18446744073709551615")
	require.NoError(t, err)
	require.Equal(t, uint64(math.MaxUint64), got)
}
