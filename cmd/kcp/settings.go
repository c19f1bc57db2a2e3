package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
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

// setting is a flag that changes a kcp.Config. Without arg it is a switch.
type setting struct {
	name, arg string
	help      string // as of option
	field     string // of the Config, by which its errors name the flag; empty: none
	apply     func(c *kcp.Config, value string) error
}

// field returns the apply of a setting that sets a field.
func field[T any](parse func(string) (T, error), of func(*kcp.Config) *T) func(*kcp.Config, string) error {
	return func(c *kcp.Config, value string) error { return parsed(of(c), parse)(value) }
}

// sessionSettings are the flags of a session.
func sessionSettings() []setting {
	return []setting{
		{"mtu", "BYTES", "largest UDP payload to send: 50 to 65507",
			"MTU", field(within(50, 65507), func(c *kcp.Config) *int { return &c.MTU })},
		{"sndwnd", "SEGMENTS", "maximum segments in flight: 1 to 65535",
			"SendWindow", field(within(1, 65535), func(c *kcp.Config) *int { return &c.SendWindow })},
		{"rcvwnd", "SEGMENTS", "maximum segments held for the reader: 1 to 65535",
			"ReceiveWindow", field(within(1, 65535), func(c *kcp.Config) *int { return &c.ReceiveWindow })},
		{"nodelay", "MODE", "retransmission time-outs: off (longest), on, or turbo\n(shortest)",
			"Tuning.NoDelay", field(noDelays.parse, func(c *kcp.Config) *kcp.NoDelay { return &c.Tuning.NoDelay })},
		{"minrto", "DURATION", "minimum retransmission time-out: 1ms to 1m",
			"Tuning.MinRTO", field(positiveDuration, func(c *kcp.Config) *time.Duration { return &c.Tuning.MinRTO })},
		{"interval", "DURATION", "minimum variance that time-outs allow for: 10ms to 5s",
			"Tuning.Interval", field(positiveDuration, func(c *kcp.Config) *time.Duration { return &c.Tuning.Interval })},
		{"resend", "N", "fast retransmit: send a segment again once N later\nones are acknowledged; 0: only after its time-out",
			"Tuning.FastResend", field(orOff(within(0, math.MaxInt32)), func(c *kcp.Config) *int { return &c.Tuning.FastResend })},
		{"cc", "NAME", "congestion control: bbr, cubic, reference or none",
			"", field(controls.parse, func(c *kcp.Config) *func() congestion.Control { return &c.CongestionControl })},
		{"stream", "", "byte stream, in which small writes share a segment;\nthe default, except with -profile classic", "", messageMode(false)},
		{"message", "", "message mode: writes do not share segments", "", messageMode(true)},
		{"peer-timeout", "DURATION", "fail if data is unacknowledged and nothing arrives\nfrom the peer for this long; 0: never; default 30s",
			"PeerTimeout", field(orOff(parseDuration), func(c *kcp.Config) *time.Duration { return &c.PeerTimeout })},
		{"keepalive", "DURATION", "ask a silent peer for an answer this often, so that a\nlost one is noticed without data too; the\nlistener waits 1.5 times as long; 0: never;\ndefault 25s, or half of a -peer-timeout below 30s",
			"KeepAlive", field(orOff(parseDuration), func(c *kcp.Config) *time.Duration { return &c.KeepAlive })},
		{"linger", "DURATION", "maximum wait for acknowledgements at the end;\ndefault 5s",
			"Linger", field(orOff(parseDuration), func(c *kcp.Config) *time.Duration { return &c.Linger })},
		{"write-buffer", "SIZE", "maximum amount written but not acknowledged:\n4kB to 1GB; default 4MiB",
			"WriteBuffer", field(parseBuffer, func(c *kcp.Config) *int { return &c.WriteBuffer })},
		{"fec", "D/P", "forward error correction: after every D packets send\nP parity packets, such as 10/3",
			"FEC", field(parseFEC, func(c *kcp.Config) *kcp.FEC { return &c.FEC })},
	}
}

// messageMode returns the apply of -stream or -message.
func messageMode(message bool) func(*kcp.Config, string) error {
	return func(c *kcp.Config, value string) error {
		on, err := parseSwitch(value)
		if on {
			c.MessageMode = message
		}
		return err
	}
}

// settings holds the flags that make a kcp.Config. They are applied after the
// profile, wherever -profile stands.
type settings struct {
	profile  profile
	given    []string // flags as typed, except -profile
	edits    []func(*kcp.Config) error
	envelope envelope
	debug    string    // address of the live page; empty: none
	traces   *qlog.Dir // where traces go; nil: nowhere
}

// config returns the Config that the flags make.
func (s *settings) config() (*kcp.Config, error) {
	if slices.Contains(s.given, "-stream") && slices.Contains(s.given, "-message") {
		return nil, usageErrorf("-stream and -message exclude each other")
	}
	cfg := s.profile.config()
	for _, edit := range s.edits {
		if err := edit(&cfg); err != nil {
			return nil, err
		}
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
	if !errors.As(err, &bad) {
		return err
	}
	all := sessionSettings()
	i := slices.IndexFunc(all, func(one setting) bool { return one.field == bad.Field })
	if i < 0 {
		return err
	}
	reason := strings.TrimSuffix(bad.Reason, ", or 0 for the default") // the default is to omit the flag
	reason = strings.Replace(reason, ", negative to turn", ", or 0 to turn", 1)
	value := bad.Value
	if f, ok := value.(kcp.FEC); ok {
		value = fmt.Sprintf("%d/%d", f.Data, f.Parity)
	}
	return usageErrorf("-%s is %v: it %s", all[i].name, value, reason)
}

// String returns a description in one line.
func (s *settings) String() string {
	text := "profile " + s.profile.name
	if len(s.given) > 0 {
		text += ", " + strings.Join(s.given, " ")
	}
	return text
}

// note keeps a flag for String.
func (s *settings) note(name, arg, value string) {
	if arg != "" {
		s.given = append(s.given, "-"+name+" "+value)
	} else if on, _ := parseSwitch(value); on {
		s.given = append(s.given, "-"+name)
	}
}

// option returns the flag of a setting.
func (s *settings) option(one setting) option {
	return option{one.name, one.arg, one.help, func(value string) error {
		if err := one.apply(new(kcp.Config), value); err != nil {
			return err
		}
		s.note(one.name, one.arg, value)
		s.edits = append(s.edits, func(c *kcp.Config) error { return one.apply(c, value) })
		return nil
	}}
}

// group returns the flags of the settings.
func (s *settings) group() optionGroup {
	all := []option{{"profile", "NAME", "settings to start from: default, lowlatency (no\ncongestion control) or classic (as in C KCP)", parsed(&s.profile, profiles.parse)}}
	for _, one := range sessionSettings() {
		all = append(all, s.option(one))
	}
	return optionGroup{"Session settings", append(append(all, s.traceOption(), s.debugOption()), s.envelopeOptions()...)}
}

// only returns those flags of the settings that have the names.
func (s *settings) only(names ...string) optionGroup {
	g := s.group()
	g.options = slices.DeleteFunc(g.options, func(o option) bool { return !slices.Contains(names, o.name) })
	return g
}
