package kcp

import (
	"crypto/tls"
	"fmt"
	"time"

	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/wire"
)

// ConfigError reports an invalid setting, or with TakeOver and HandOver one that differs.
type ConfigError struct {
	Field  string // name of the field of Config, or as in TLS.MinVersion
	Value  any    // its value
	Reason string // what it must be
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("kcp: Config.%s is %v: %s", e.Field, e.Value, e.Reason)
}

// maxInt32 bounds numbers of things.
const maxInt32 = 1<<31 - 1

// minResetKey is the size of the shortest Config.StatelessResetKey, in bytes.
const minResetKey = 16

// validateFor is Validate for an endpoint of sockets of the system, or of others.
func (c *Config) validateFor(system bool) error {
	switch err := c.Validate(); {
	case err != nil || c == nil || c.Repetition == nil:
		return err
	case system:
		return &ConfigError{"Repetition", "set", "must be nil with a socket of the system, as virtual time needs package netsim"}
	case c.Repetition.IsSpent():
		return &ConfigError{"Repetition", "of an earlier run", "must be made in the run that it serves, as each run begins its numbers again"}
	}
	return nil
}

// Validate returns the first invalid setting as a *ConfigError, or nil. Dial,
// Listen and NewEndpoint call it.
func (c *Config) Validate() error {
	if c == nil {
		return nil
	}
	if err := c.validateRanges(); err != nil {
		return err
	}
	if err := c.validateTLS(); err != nil {
		return err
	}
	if c.FEC != (FEC{}) {
		if _, err := fec.NewEncoder(c.FEC.Data, c.FEC.Parity); err != nil {
			return &ConfigError{"FEC", c.FEC, "must have at least 1 of each, and at most 256 in all"}
		}
	}
	mtu := c.MTU
	setDefault(&mtu, defaultConfigMTU)
	if room := session.OverheadOf(c.Cipher, c.TLS != nil, c.FEC).Total; mtu-room < machine.MinMTU {
		return &ConfigError{"MTU", mtu, fmt.Sprintf("must leave at least %d bytes beside the %d that Cipher and FEC add", machine.MinMTU, room)}
	}
	if !(c.Redundancy >= 0 && c.Redundancy <= maxRedundancy) {
		return &ConfigError{"Redundancy", c.Redundancy, fmt.Sprintf("must be in [0, %d]", maxRedundancy)}
	}
	if c.Tuning.NoDelay > NoDelayTurbo {
		return &ConfigError{"Tuning.NoDelay", c.Tuning.NoDelay, "must be one of the NoDelay modes"}
	}
	if c.AddressValidation > ValidateAlways {
		return &ConfigError{"AddressValidation", c.AddressValidation, "must be one of the AddressValidation modes"}
	}
	if c.LegacyPeers > LegacyRefuse {
		return &ConfigError{"LegacyPeers", c.LegacyPeers, "must be one of the LegacyPeers modes"}
	}
	if n := len(c.StatelessResetKey); c.StatelessResetKey != nil && n < minResetKey {
		return &ConfigError{"StatelessResetKey", fmt.Sprintf("%d bytes", n), fmt.Sprintf("must have at least %d bytes", minResetKey)}
	}
	if err := validateRate(c.MaxRate); err != nil {
		return err
	}
	if c.Tuning.DeadLink < 0 {
		return &ConfigError{"Tuning.DeadLink", c.Tuning.DeadLink, "must not be negative"}
	}
	return c.validateTimeouts()
}

// The least time-outs of Config. They are for what was meant to have a unit: with less
// than minSilence the packets of a live peer come too late on any path.
const (
	minSilence = 10 * time.Millisecond // of those that end a session, and of KeepAlive
	minWait    = time.Millisecond      // of those that bound what a call waits for

	// maxTimeout is the longest: who wants more means never. So no sum of times
	// comes around.
	maxTimeout = 365 * 24 * time.Hour
)

// validateTimeouts is Validate for the time-outs that a negative value turns off.
func (c *Config) validateTimeouts() error {
	if c.IdleTimeout < 0 || c.IdleTimeout > 0 && c.IdleTimeout < minSilence {
		return &ConfigError{"IdleTimeout", c.IdleTimeout, fmt.Sprintf("must be at least %v, or 0 for never", minSilence)}
	}
	if c.IdleTimeout > maxTimeout {
		return &ConfigError{"IdleTimeout", c.IdleTimeout, fmt.Sprintf("must be at most %v, or 0 for never", maxTimeout)}
	}
	for _, f := range []struct {
		field      string
		value, min time.Duration
	}{
		{"PeerTimeout", c.PeerTimeout, minSilence},
		{"KeepAlive", c.KeepAlive, minSilence},
		{"StallTimeout", c.StallTimeout, minSilence},
		{"DialTimeout", c.DialTimeout, minWait},
		{"Linger", c.Linger, minWait},
		{"MaxLinger", c.MaxLinger, minWait},
	} {
		if err := validateTimeout(f.field, f.value, f.min); err != nil {
			return err
		}
	}
	return nil
}

// validateTimeout returns a *ConfigError if d cannot be such a time-out.
func validateTimeout(field string, d, least time.Duration) error {
	if d > 0 && d < least || d > maxTimeout {
		return &ConfigError{field, d, fmt.Sprintf("must be in [%v, %v], negative to turn it off, or 0 for the default", least, maxTimeout)}
	}
	return nil
}

// validateRate returns a *ConfigError if rate cannot be a Config.MaxRate.
func validateRate(rate int) error {
	if rate != 0 && rate < minMaxRate {
		return &ConfigError{"MaxRate", rate, fmt.Sprintf("must be at least %d, or 0 for no cap", minMaxRate)}
	}
	return nil
}

// validateTLS is Validate for TLS.
func (c *Config) validateTLS() error {
	if c.TLS == nil {
		return nil
	}
	for _, f := range []struct {
		field   string
		version uint16
	}{{"TLS.MinVersion", c.TLS.MinVersion}, {"TLS.MaxVersion", c.TLS.MaxVersion}} {
		if f.version != 0 && f.version < tls.VersionTLS13 {
			return &ConfigError{f.field, tls.VersionName(f.version), "must be TLS 1.3 or later, or 0 for the default"}
		}
	}
	if c.MTU != 0 && c.MTU < handshake.PacketSize {
		return &ConfigError{"MTU", c.MTU, fmt.Sprintf("must be at least %d with TLS", handshake.PacketSize)}
	}
	for _, other := range []struct {
		set   bool
		field string
	}{{c.Cipher != nil, "Cipher"}, {c.LegacyPeers == LegacyAllow, "LegacyAllow"}} {
		if other.set {
			return &ConfigError{"TLS", "set", "must not be combined with " + other.field}
		}
	}
	return nil
}

// validateRanges is Validate for the numbers that have bounds.
func (c *Config) validateRanges() error {
	ints := []struct {
		field    string
		value    int
		min, max int
	}{
		{"MTU", c.MTU, machine.MinMTU, session.MaxUDPPayload},
		{"SendWindow", c.SendWindow, 1, wire.MaxWindow},
		{"ReceiveWindow", c.ReceiveWindow, 1, wire.MaxWindow},
		{"WriteBuffer", c.WriteBuffer, minWriteBuffer, maxConfigWriteBuffer},
		{"Limits.Backlog", c.Limits.Backlog, 1, maxInt32},
		{"Limits.MaxSessions", c.Limits.MaxSessions, 1, maxInt32},
		{"Shards", c.Shards, 1, maxShards},
		{"Limits.MaxHalfOpen", c.Limits.MaxHalfOpen, 1, maxInt32},
		{"Limits.MaxSessionsPerAddress", c.Limits.MaxSessionsPerAddress, 1, maxInt32},
		{"Limits.MaxBuffered", c.Limits.MaxBuffered, minMaxBuffered, maxInt32},
		{"StreamReceiveBuffer", c.StreamReceiveBuffer, streams.InitialCredit, maxConfigWriteBuffer},
		{"StreamWriteBuffer", c.StreamWriteBuffer, minWriteBuffer, maxConfigWriteBuffer},
	}
	for _, f := range ints {
		if f.value != 0 && (f.value < f.min || f.value > f.max) {
			return &ConfigError{f.field, f.value, fmt.Sprintf("must be in [%d, %d], or 0 for the default", f.min, f.max)}
		}
	}
	durations := []struct {
		field    string
		value    time.Duration
		min, max time.Duration
	}{
		{"Tuning.MinRTO", c.Tuning.MinRTO, time.Millisecond, machine.MaxRTO * time.Millisecond},
		{"Tuning.Interval", c.Tuning.Interval, machine.MinInterval * time.Millisecond, machine.MaxInterval * time.Millisecond},
	}
	for _, f := range durations {
		if f.value != 0 && (f.value < f.min || f.value > f.max) {
			return &ConfigError{f.field, f.value, fmt.Sprintf("must be in [%v, %v], or 0 for the default", f.min, f.max)}
		}
	}
	if c.MaxMTU > session.MaxUDPPayload {
		return &ConfigError{"MaxMTU", c.MaxMTU, fmt.Sprintf("must be at most %d", session.MaxUDPPayload)}
	}
	return nil
}

// StreamOptions are the properties of a stream, in both directions. The zero value, and
// nil, mean ordered, reliable, of normal priority. If a stream is unordered or not
// reliable, each Write is a message.
type StreamOptions struct {
	// Unordered delivers each message when it is complete, whatever is missing before it.
	Unordered bool
	// MaxLifetime, if positive, is how long after it was written a message may be sent, 1
	// ms to 49 days. Then it is given up: the peer never sees it, and what follows does
	// not wait for it.
	MaxLifetime time.Duration
	// MaxRetransmits is how often each segment of a message may be sent again before the
	// message is given up: up to 65534. 0 means any number, negative none.
	MaxRetransmits int
	// Priority is -8 to 7, default 0, that of the session itself. Whatever a stream of
	// higher priority has to send leaves first; streams of equal priority share what is
	// left.
	Priority int
}

const (
	maxLifetime        = (1<<32 - 1) * time.Millisecond
	maxRetransmitLimit = 1<<16 - 2
)

// OptionError means that an option of a stream, a message or Dial is wrong.
type OptionError struct {
	Option string // as in StreamOptions.Priority
	Value  any    // its value
	Reason string // what it must be
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("kcp: %s is %v: %s", e.Option, e.Value, e.Reason)
}

// params returns what of the options the peer has to know.
func (o *StreamOptions) params() (p streams.Params, err error) {
	if o == nil {
		return p, nil
	}
	if o.Priority < streams.MinPriority || o.Priority > streams.MaxPriority {
		return p, &OptionError{"StreamOptions.Priority", o.Priority, fmt.Sprintf("must be in [%d, %d]", streams.MinPriority, streams.MaxPriority)}
	}
	if o.MaxLifetime > 0 && o.MaxLifetime < minWait {
		return p, &OptionError{"StreamOptions.MaxLifetime", o.MaxLifetime, fmt.Sprintf("must be at least %v, or 0 for no limit", minWait)}
	}
	if err := checkLimits("StreamOptions.MaxLifetime", o.MaxLifetime, "StreamOptions.MaxRetransmits", o.MaxRetransmits); err != nil {
		return p, err
	}
	return streams.Params{
		Unordered: o.Unordered, Priority: int8(o.Priority),
		Retransmits: session.Transmissions(o.MaxRetransmits), Lifetime: session.LifetimeMillis(o.MaxLifetime),
	}, nil
}

// check returns an *OptionError if an option is out of its range.
func (o *MessageOptions) check() error {
	if o == nil {
		return nil
	}
	return checkLimits("MessageOptions.Lifetime", o.Lifetime, "MessageOptions.MaxRetransmits", o.MaxRetransmits)
}

// call returns the call that writes b as a message with the options.
func (o *MessageOptions) call(b []byte) session.WriteCall {
	w := session.WriteCall{B: b, Message: true, Waits: o == nil || !o.NoWait}
	if o != nil && (o.Lifetime != 0 || o.MaxRetransmits != 0 || o.Done != nil) {
		w.Options = (*session.MessageOptions)(o)
	}
	return w
}

// checkLimits returns an *OptionError if a lifetime or a number of retransmissions, which
// are options of the given names, is out of its range.
func checkLimits(lifetimeOf string, lifetime time.Duration, retransmitsOf string, retransmits int) error {
	if lifetime < 0 || lifetime > maxLifetime {
		return &OptionError{lifetimeOf, lifetime, fmt.Sprintf("must be in [0s, %v]", maxLifetime)}
	}
	if retransmits > maxRetransmitLimit {
		return &OptionError{retransmitsOf, retransmits, fmt.Sprintf("must be at most %d", maxRetransmitLimit)}
	}
	return nil
}

// MessageOptions are the properties of one message of a stream or session.
type MessageOptions struct {
	// Lifetime and MaxRetransmits take the place of MaxLifetime and MaxRetransmits of the
	// stream, if they are not 0. For a message of the session itself 0 means no limit.
	Lifetime       time.Duration
	MaxRetransmits int
	// NoWait makes WriteMessage return ErrWouldBlock, and queue nothing, if the write
	// buffer has no room at all, or another goroutine is in a call that writes.
	NoWait bool
	// Done, if not nil, is called exactly once, if WriteMessage has returned nil: with
	// nil when the peer's endpoint has acknowledged the whole message. Otherwise the
	// argument says why that is not known: ErrMessageAbandoned, a *StreamError, or the
	// error with which the session ended. It runs without locks on a goroutine of the
	// session, one at a time: it may send, and wait.
	Done func(err error)
}
