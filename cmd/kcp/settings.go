package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/arqnet/kcp"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/qlog"
)

// profile is a kcp.Config to start from, with its name.
type profile struct {
	name   string
	config func() kcp.Config
}

var (
	defaultProfile    = profile{name: "default", config: func() kcp.Config { return kcp.Config{} }}
	lowLatencyProfile = profile{name: "lowlatency", config: kcp.LowLatency}
	classicProfile    = profile{name: "classic", config: kcp.Classic}
)

// The values of -profile, -nodelay and -cc.
var (
	profiles = choices[profile]{
		{"default", defaultProfile}, {"lowlatency", lowLatencyProfile}, {"classic", classicProfile},
	}
	noDelays = choices[kcp.NoDelay]{{"off", kcp.NoDelayOff}, {"on", kcp.NoDelayOn}, {"turbo", kcp.NoDelayTurbo}}
	controls = choices[func() congestion.Control]{
		{"bbr", congestion.NewBBR}, {"cubic", congestion.NewCubic}, {"reference", congestion.NewReference}, {"none", congestion.NewNone},
	}
)

// settings holds the flags that make a kcp.Config. They are applied after the
// profile, wherever -profile stands.
type settings struct {
	profile         profile
	given           []string // flags as typed, except -profile
	edits           []func(*kcp.Config)
	stream, message bool
	envelope        envelope
	debug           string    // address of the live page; empty: none
	traces          *qlog.Dir // where traces go; nil: nowhere
}

// configFlags names the flag for each field of kcp.Config that has one.
var configFlags = map[string]string{
	"MTU": "mtu", "SendWindow": "sndwnd", "ReceiveWindow": "rcvwnd", "WriteBuffer": "write-buffer",
	"NoDelay": "nodelay", "MinRTO": "minrto", "Interval": "interval", "FastResend": "resend",
	"PeerTimeout": "peer-timeout", "KeepAlive": "keepalive", "Linger": "linger", "FEC": "fec",
}

// config returns the Config that the flags make.
func (s *settings) config() (*kcp.Config, error) {
	if s.stream && s.message {
		return nil, usageErrorf("-stream and -message exclude each other")
	}
	cfg := s.profile.config()
	for _, edit := range s.edits {
		edit(&cfg)
	}
	if s.stream || s.message {
		cfg.MessageMode = s.message
	}
	if err := s.envelope.apply(&cfg); err != nil {
		return nil, err
	}
	if err := validate(&cfg); err != nil {
		return nil, err
	}
	return &cfg, nil
}

// validate is Config.Validate with an error that names flags.
func validate(cfg *kcp.Config) error {
	if cfg.TLS != nil && cfg.Cipher != nil {
		return usageErrorf("-cipher and TLS exclude each other")
	}
	err := cfg.Validate()
	var bad *kcp.ConfigError
	if errors.As(err, &bad) && configFlags[bad.Field] != "" {
		reason := strings.TrimSuffix(bad.Reason, ", or 0 for the default") // the default is to omit the flag
		reason = strings.Replace(reason, ", negative to turn", ", or 0 to turn", 1)
		return usageErrorf("-%s is %v: it %s", configFlags[bad.Field], typed(bad.Value), reason)
	}
	return err
}

// typed returns a value of a kcp.Config as one types it.
func typed(value any) any {
	if f, ok := value.(kcp.FEC); ok {
		return fmt.Sprintf("%d/%d", f.Data, f.Parity)
	}
	return value
}

// bare reports whether a session's packet counts are its socket's, too. With
// FEC or a cipher they are not: parity packets, and duplicates that a cipher
// detects, do not reach the session.
func (s *settings) bare() bool {
	cfg, err := s.config()
	return err == nil && cfg.Cipher == nil && cfg.TLS == nil && cfg.FEC == kcp.FEC{}
}

// String returns a description in one line.
func (s *settings) String() string {
	text := "profile " + s.profile.name
	if len(s.given) > 0 {
		text += ", " + strings.Join(s.given, " ")
	}
	return text
}

// edit returns a setter that records a change of the kcp.Config.
func edit[T any](s *settings, name string, parse func(string) (T, error), apply func(*kcp.Config, T)) setFunc {
	return func(value string) error {
		v, err := parse(value)
		if err != nil {
			return err
		}
		s.given = append(s.given, "-"+name+" "+value)
		s.edits = append(s.edits, func(c *kcp.Config) { apply(c, v) })
		return nil
	}
}

// group returns the flags of the settings.
func (s *settings) group() optionGroup {
	return optionGroup{"Session settings", append([]option{
		{"profile", "NAME", "settings to start from: default, lowlatency (no\ncongestion control) or classic (as in C KCP)",
			profiles.listed(parsed(&s.profile, profiles.parse))},
		{"mtu", "BYTES", "largest UDP payload to send: 50 to 65507",
			edit(s, "mtu", within(50, 65507), func(c *kcp.Config, v int) { c.MTU = v })},
		{"sndwnd", "SEGMENTS", "maximum segments in flight: 1 to 65535",
			edit(s, "sndwnd", within(1, 65535), func(c *kcp.Config, v int) { c.SendWindow = v })},
		{"rcvwnd", "SEGMENTS", "maximum segments held for the reader: 1 to 65535",
			edit(s, "rcvwnd", within(1, 65535), func(c *kcp.Config, v int) { c.ReceiveWindow = v })},
		{"nodelay", "MODE", "retransmission time-outs: off (longest), on, or turbo\n(shortest)",
			noDelays.listed(edit(s, "nodelay", noDelays.parse, func(c *kcp.Config, v kcp.NoDelay) { c.NoDelay = v }))},
		{"minrto", "DURATION", "minimum retransmission time-out: 1ms to 1m",
			edit(s, "minrto", positiveDuration, func(c *kcp.Config, v time.Duration) { c.MinRTO = v })},
		{"interval", "DURATION", "minimum variance that time-outs allow for: 10ms to 5s",
			edit(s, "interval", positiveDuration, func(c *kcp.Config, v time.Duration) { c.Interval = v })},
		{"resend", "N", "fast retransmit: send a segment again once N later\nones are acknowledged; 0: only after its time-out",
			edit(s, "resend", parseCount, func(c *kcp.Config, v int) { c.FastResend = orOff(v) })},
		{"cc", "NAME", "congestion control: bbr, cubic, reference or none",
			controls.listed(edit(s, "cc", controls.parse, func(c *kcp.Config, v func() congestion.Control) { c.CongestionControl = v }))},
		{"stream", "", "byte stream, in which small writes share a segment;\nthe default, except with -profile classic", s.mode("-stream", &s.stream)},
		{"message", "", "message mode: writes do not share segments", s.mode("-message", &s.message)},
		{"peer-timeout", "DURATION", "fail if data is unacknowledged and nothing arrives\nfrom the peer for this long; 0: never; default 30s",
			edit(s, "peer-timeout", parseDuration, func(c *kcp.Config, v time.Duration) { c.PeerTimeout = orOff(v) })},
		{"keepalive", "DURATION", "ask a silent peer for a sign of life this often, so\nthat a lost one is noticed without data too; the\nlistener waits 1.5 times as long; 0: never;\ndefault 25s, or half of a -peer-timeout below 30s",
			edit(s, "keepalive", parseDuration, func(c *kcp.Config, v time.Duration) { c.KeepAlive = orOff(v) })},
		{"linger", "DURATION", "maximum wait for acknowledgements at the end;\ndefault 5s",
			edit(s, "linger", parseDuration, func(c *kcp.Config, v time.Duration) { c.Linger = orOff(v) })},
		{"write-buffer", "SIZE", "maximum amount written but not acknowledged:\n4kB to 1GB; default 4MiB",
			edit(s, "write-buffer", parseBuffer, func(c *kcp.Config, v int) { c.WriteBuffer = v })},
		s.traceOption(),
		s.debugOption(),
	}, s.envelopeOptions()...)}
}

// only returns those flags of the settings that have the names.
func (s *settings) only(names ...string) optionGroup {
	g := s.group()
	g.options = slices.DeleteFunc(g.options, func(o option) bool { return !slices.Contains(names, o.name) })
	return g
}

// mode returns the setter of -stream or -message.
func (s *settings) mode(name string, to *bool) setFunc {
	set := toggle(to)
	return func(value string) error {
		err := set(value)
		if err == nil && *to {
			s.given = append(s.given, name)
		}
		return err
	}
}

// orOff turns an explicit 0 into -1: in a kcp.Config 0 means the default, and a
// negative value off.
func orOff[T int | time.Duration](v T) T {
	if v == 0 {
		return -1
	}
	return v
}

// within returns a parser of an integer from least to most. 0, which would mean
// the default in a kcp.Config, is not a valid one.
func within(least, most int) func(string) (int, error) {
	return func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < least || n > most {
			return 0, fmt.Errorf("want a whole number from %d to %d", least, most)
		}
		return n, nil
	}
}

func positiveDuration(s string) (time.Duration, error) {
	d, err := parseDuration(s)
	if err == nil && d == 0 {
		err = errors.New("must not be 0")
	}
	return d, err
}

func parseBuffer(s string) (int, error) {
	n, err := parseSize(s)
	switch {
	case err != nil:
		return 0, err
	case n == 0 || n > math.MaxInt32:
		return 0, errors.New("want 4096 bytes to 1GB")
	}
	return int(n), nil
}
