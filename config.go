package kcp

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/fec"
)

// Config holds the settings of sessions. The zero value, and nil, mean the
// defaults, which suit the internet of today: low latency, windows that do not
// throttle, congestion control on. A Config must not be changed while it is in
// use; it may be shared.
type Config struct {
	// Settings that must match the peer's.

	// MessageMode keeps the boundaries of what WriteMessage sends. The default
	// is a byte stream, in which writes may share a segment and there are no
	// boundaries. Read and Write work in both modes and with peers of both:
	// kcp-go's SetStreamMode(true) is our default, its default our MessageMode.
	MessageMode bool
	// Cipher encrypts every packet; nil means none. See package crypt.
	Cipher crypt.Cipher
	// FEC adds parity packets to what is sent. The zero value adds none. The
	// peer need not send any itself, nor be told the ratio, but it has to
	// understand them: kcp-go does, the C reference does not. What the peer
	// sends is understood in any case. With FEC, one remote address should
	// have one session: parity packets name no conversation, and while there
	// are several they are not used.
	FEC FEC

	// Local tuning. The peer needs none of it.

	// MTU is the largest UDP payload sent, in bytes, with what Cipher and FEC
	// add: 50 to 65507, default 1400. With peers of this package, a session
	// begins with it and finds out what the path takes: it falls back to 1200,
	// and searches from there, where larger packets are swallowed. With other
	// peers MTU is what the path has to take.
	MTU int
	// MaxMTU is how far a session may raise its MTU, once it has sent 64 full
	// segments: up to 65507 bytes, negative for not at all, and never less than
	// MTU. The default is what Ethernet's 1500 bytes leave, 1472 over IPv4 and
	// 1452 over IPv6, where the system can keep probes from being fragmented:
	// on Linux, with sockets of the system. With an explicit MaxMTU there are
	// probes in any case, and it is up to the net.PacketConn not to fragment.
	// The peer's larger segments make its windows larger: see ReceiveWindow.
	MaxMTU int
	// SendWindow is the most segments in flight: 1 to 65535, default 2048. The
	// peer's receive window and congestion control limit it further.
	SendWindow int
	// ReceiveWindow is the most segments held for Read: up to 65535, default
	// 2048. Less than 128 is taken for 128, which holds the longest message.
	// In memory that is at most two windows, one waiting for Read and one behind
	// a gap, of segments as large as the peer's MTU, which the peer may raise up to
	// its MaxMTU, in buffers of up to three times that, and 40 bytes a segment.
	// MaxBuffered bounds it in any case.
	ReceiveWindow int
	// WriteBuffer is how much may be written ahead of the peer's
	// acknowledgements before Write blocks, in bytes; each segment counts 64
	// more. Default 4 MiB.
	WriteBuffer int

	// NoDelay is how the retransmission time-out is bounded and backed off.
	// Default NoDelayOn.
	NoDelay NoDelay
	// MinRTO is the least retransmission time-out: 1 ms to 60 s. The default
	// is that of NoDelay.
	MinRTO time.Duration
	// Interval is the least variance that the retransmission time-out allows
	// for: 10 ms to 5 s, default 30 ms. With less, the jitter of ordinary paths
	// causes time-outs of what was not lost. The reference's flush interval,
	// which has the same role there, delays packets too; here nothing waits.
	Interval time.Duration
	// FastResend is how many acknowledgements of later segments make one be
	// sent again before its time-out. Default 2; negative means never.
	FastResend int
	// FastResendLimit is up to how many transmissions a segment is resent
	// early. Default 5; negative means without limit.
	FastResendLimit int
	// Redundancy is how many bytes of small segments, of up to 256 bytes, may be
	// repeated for each byte sent otherwise, in packets that leave anyway and
	// have room, while there is no more data to send: 0 to 4. A lost message then
	// comes again with the next packet instead of a round trip later. Any peer
	// takes repetitions for duplicates and drops them. 1 makes game input nearly
	// immune to random loss. The default, 0, repeats only after losses, and no
	// more bytes than are saved by leaving out acknowledgements.
	Redundancy float64
	// CongestionControl returns the congestion controller of a new session: nil
	// means NewBBR; the others are NewCubic, NewReferenceControl, which KCP users
	// know, and NewNoControl.
	CongestionControl func() CongestionControl

	// PeerTimeout is how long a peer may leave data unacknowledged and send
	// nothing at all before it is taken for lost: Read and Write then return a
	// *PeerLostError. Default 30 s; negative means never.
	PeerTimeout time.Duration
	// DeadLink, if positive, takes a peer for lost as soon as one segment was
	// transmitted so many times while nothing came from the peer, which may be
	// much sooner than PeerTimeout. Default 0: off.
	DeadLink int
	// KeepAlive is the silence after which the peer is asked for a sign of
	// life, which keeps NATs open and finds out that a peer is gone where
	// nobody writes: PeerTimeout then runs as for unacknowledged data. The
	// accepting side waits half as long again, so one exchange serves both.
	// Every KCP peer answers. Default 25 s; negative means never.
	KeepAlive time.Duration
	// IdleTimeout, if positive, ends a session with a *PeerLostError over which
	// no data has gone for so long: none that is new has come in order, none was
	// acknowledged, and there was no datagram in either direction. What a peer
	// repeats, or sends without content, does not count. Default 0: off.
	IdleTimeout time.Duration
	// StallTimeout ends a session with a *PeerLostError whose peer takes nothing
	// of what was written for so long, because its application does not read,
	// while it gives signs of life. Default 30 min; negative means never.
	StallTimeout time.Duration
	// DialTimeout is how long Dial waits for the peer's answer, if its context
	// does not end before. Default 10 s; negative means that Dial does not wait.
	DialTimeout time.Duration
	// Linger is for how long Close waits for the peer to acknowledge more of
	// what was written: on a slow path that goes on, Close takes its time.
	// Default 5 s; negative means that Close does not wait, and delivery goes
	// on in the background, until nothing is acknowledged for 30 s.
	Linger time.Duration
	// MaxLinger bounds the time for which a closed session goes on to deliver
	// what was written, in all, whether Close waits or not: a peer that takes
	// little at a time could hold it for hours. It is never less than Linger.
	// The default is 2 minutes, or more where WriteBuffer is more than 3.75 MiB:
	// as long as a full one takes at 32 KiB a second, which is 128 s for the
	// default of 4 MiB. Negative means without limit.
	MaxLinger time.Duration

	// Limits on what strangers can cause.

	// Backlog is the most sessions waiting for Accept. Further ones are not
	// created until there is room. Default 128.
	Backlog int
	// MaxSessions is the most sessions of one endpoint, dialled and accepted.
	// Default 65536.
	MaxSessions int
	// MaxHalfOpen is the most accepted sessions whose peers have not yet shown
	// that they get what is sent to their addresses: with a token, or peers
	// without signals by an ACK of something that was written to them. Beyond
	// it, one that has been silent makes room for a new one once it has had its
	// chance. Such a session is sent three times as much as has come from it at
	// most (RFC 9000 §8.1), and holds little of what it has received. Default 1024.
	MaxHalfOpen int
	// MaxSessionsPerAddress is the most accepted and dialled sessions with one
	// IPv4 address, or one IPv6 network of 64 bits; peers behind a NAT share
	// one. Sessions of peers that have not yet shown that they get what is sent
	// to their addresses do not count against those that have. At the limit,
	// new peers are asked for a cookie. Default: half of MaxSessions where that
	// is 64 or more, so that no one can have all of them; else no limit.
	MaxSessionsPerAddress int
	// MaxBuffered is how much memory, in bytes, all sessions together may hold
	// because of what their peers have sent: all that EndpointStats.Buffered
	// counts. Beyond it, a session that holds more than its share takes only what
	// can be read at once, and no datagrams; shares are equal, and 64 KiB at
	// least. A session is ended with ErrMemoryPressure if it has held for 10
	// seconds what cannot be read, because something before it is missing. When
	// the limit is exceeded by an eighth, who holds most is ended: of those whose
	// data has not moved for a second, else of all that hold more than their
	// share. 64 KiB to 2 GiB, default 1 GiB.
	MaxBuffered int
	// AddressValidation is when a peer must show, before anything is kept for
	// it, that it gets what is sent to its address. Peers without signals
	// cannot. Default ValidateUnderPressure.
	AddressValidation AddressValidation
	// RefuseLegacy lets only peers with signals open sessions: other peers'
	// first packets, which anybody can forge, are dropped.
	// With a Cipher that authenticates it is so anyway, unless AllowLegacy is set.
	RefuseLegacy bool
	// AllowLegacy lets peers without signals, such as kcp-go, open sessions also
	// with a Cipher that authenticates (see crypt.Authenticated). kcp-go's format
	// has nothing that shows when a packet was made: whoever has recorded the
	// first packets of a session can open it again by sending them again, and
	// the data in them is read once more. Peers with signals show that they are
	// there now, so without AllowLegacy that is impossible. It does nothing
	// without such a Cipher, and excludes RefuseLegacy.
	AllowLegacy bool
	// Shards is how many sockets Listen opens on its one port, each with a
	// goroutine that reads it, so that several processors take part: 1 to 256,
	// default 1. The system shares the peers out among them by their addresses
	// (SO_REUSEPORT). Where it does not do so, which is everywhere but on
	// Linux, there is one.
	Shards int
	// SocketBuffer is the size asked of the system for the receive and the
	// send buffer of a socket that Dial or Listen opens, in bytes. The system
	// may grant less. Default 4 MiB; negative leaves the system's default.
	SocketBuffer int

	// Logger, if not nil, is told of sessions that begin (debug) and of socket
	// errors (warn, at most one a second).
	Logger *slog.Logger
	// Trace, if not nil, holds hooks that are called for every session.
	Trace *Trace
}

// AddressValidation says when new peers have to return a cookie, which costs
// them a round trip.
type AddressValidation uint8

const (
	// ValidateUnderPressure asks for cookies while half of Config.MaxHalfOpen or
	// of Config.MaxSessions is reached, or an address has as many sessions as
	// it may.
	ValidateUnderPressure AddressValidation = iota
	// ValidateAlways asks every peer with signals. Peers without them cannot be
	// asked: RefuseLegacy keeps those out. Whatever is set, an address that is
	// not validated is sent three times as much as has come from it at most.
	ValidateAlways
)

// FEC is a ratio of forward error correction: after every Data packets follow
// Parity packets, from which as many lost ones can be recovered without being
// sent again. It costs Parity/Data of bandwidth.
type FEC struct {
	Data   int // 1 to 255
	Parity int // 1 to 255; 256 at most with Data
}

func (f FEC) enabled() bool { return f != FEC{} }

// overhead returns the room that packets need around their content.
func (c *Config) overhead() (o overhead) {
	if c.Cipher != nil {
		o.cipherHead, o.tail = c.Cipher.Overhead()
	}
	if c.FEC.enabled() {
		o.fecHead = fec.HeaderSize
	}
	return o
}

// Defaults of Config.
const (
	defaultConfigMTU     = 1400
	defaultWindow        = 2048
	defaultWriteBuffer   = 4 << 20
	defaultFastResend    = 2
	defaultVariance      = 30 * time.Millisecond
	defaultPeerTimeout   = 30 * time.Second
	defaultKeepAlive     = 25 * time.Second
	defaultStallTimeout  = 30 * time.Minute
	defaultDialTimeout   = 10 * time.Second
	defaultLinger        = 5 * time.Second
	defaultMaxLinger     = 2 * time.Minute
	leastDrainRate       = 32 << 10 // of MaxLinger, in bytes per second
	defaultMaxHalfOpen   = 1024
	defaultMaxBuffered   = 1 << 30
	defaultBacklog       = 128
	defaultMaxSessions   = 65536
	defaultSocketBuffer  = 4 << 20
	minSharedSessions    = 64
	maxUDPPayload        = 65507
	maxShards            = 256
	maxRedundancy        = 4
	sessionMaxRTO        = 5 * time.Second
	zeroWindowProbeWait  = 200 * time.Millisecond
	writeCostPerSegment  = 64
	minWriteBuffer       = 4096
	minMaxBuffered       = 1 << 16
	maxConfigWriteBuffer = 1 << 30
	forever              = 100 * 365 * 24 * time.Hour
)

// LowLatency returns a Config for traffic that must arrive soon and is small
// against the path: games, voice, remote control. It has no congestion
// control, as KCP users mostly run it, and a window that bounds the damage.
func LowLatency() Config {
	return Config{
		NoDelay:           NoDelayTurbo,
		Interval:          10 * time.Millisecond,
		FastResend:        1,
		SendWindow:        512,
		CongestionControl: NewNoControl,
	}
}

// Classic returns a Config with the settings that the reference implementation
// starts with, for comparisons and for peers on very slow paths.
func Classic() Config {
	return Config{
		MessageMode:   true,
		NoDelay:       NoDelayOff,
		Interval:      defaultInterval * time.Millisecond,
		FastResend:    -1,
		SendWindow:    defaultSndWnd,
		ReceiveWindow: minRcvWnd,

		CongestionControl: NewReferenceControl,
	}
}

// ConfigError reports a setting that cannot be.
type ConfigError struct {
	Field  string // name of the field of Config
	Value  any    // what it was
	Reason string // what it must be
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("kcp: Config.%s is %v: %s", e.Field, e.Value, e.Reason)
}

// Validate reports the first setting that cannot be, as a *ConfigError. Dial,
// Listen and NewEndpoint call it.
func (c *Config) Validate() error {
	if c == nil {
		return nil
	}
	if err := c.validateRanges(); err != nil {
		return err
	}
	if c.FEC.enabled() {
		if _, err := fec.NewEncoder(c.FEC.Data, c.FEC.Parity); err != nil {
			return &ConfigError{"FEC", c.FEC, err.Error()}
		}
	}
	mtu := c.MTU
	setDefault(&mtu, defaultConfigMTU)
	if room := c.overhead().total(); mtu-room < minMTU {
		return &ConfigError{"MTU", mtu, fmt.Sprintf("must leave %d bytes beside the %d that Cipher and FEC add", minMTU, room)}
	}
	if !(c.Redundancy >= 0 && c.Redundancy <= maxRedundancy) {
		return &ConfigError{"Redundancy", c.Redundancy, fmt.Sprintf("must be in [0, %d]", maxRedundancy)}
	}
	if c.NoDelay > NoDelayTurbo {
		return &ConfigError{"NoDelay", c.NoDelay, "is not one of the NoDelay modes"}
	}
	if c.AddressValidation > ValidateAlways {
		return &ConfigError{"AddressValidation", c.AddressValidation, "is not one of the modes"}
	}
	if c.AllowLegacy && c.RefuseLegacy {
		return &ConfigError{"AllowLegacy", true, "excludes RefuseLegacy"}
	}
	if c.DeadLink < 0 {
		return &ConfigError{"DeadLink", c.DeadLink, "must not be negative"}
	}
	if c.IdleTimeout < 0 {
		return &ConfigError{"IdleTimeout", c.IdleTimeout, "must not be negative"}
	}
	return nil
}

// validateRanges is Validate for the numbers that have to be within bounds.
func (c *Config) validateRanges() error {
	ints := []struct {
		field    string
		value    int
		min, max int
	}{
		{"MTU", c.MTU, minMTU, maxUDPPayload},
		{"SendWindow", c.SendWindow, 1, maxWindow},
		{"ReceiveWindow", c.ReceiveWindow, 1, maxWindow},
		{"WriteBuffer", c.WriteBuffer, minWriteBuffer, maxConfigWriteBuffer},
		{"Backlog", c.Backlog, 1, maxInt32},
		{"MaxSessions", c.MaxSessions, 1, maxInt32},
		{"Shards", c.Shards, 1, maxShards},
		{"MaxHalfOpen", c.MaxHalfOpen, 1, maxInt32},
		{"MaxSessionsPerAddress", c.MaxSessionsPerAddress, 1, maxInt32},
		{"MaxBuffered", c.MaxBuffered, minMaxBuffered, maxInt32},
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
		{"MinRTO", c.MinRTO, time.Millisecond, rtoMax * time.Millisecond},
		{"Interval", c.Interval, minInterval * time.Millisecond, maxInterval * time.Millisecond},
	}
	for _, f := range durations {
		if f.value != 0 && (f.value < f.min || f.value > f.max) {
			return &ConfigError{f.field, f.value, fmt.Sprintf("must be in [%v, %v], or 0 for the default", f.min, f.max)}
		}
	}
	if c.MaxMTU > maxUDPPayload {
		return &ConfigError{"MaxMTU", c.MaxMTU, fmt.Sprintf("must be at most %d", maxUDPPayload)}
	}
	return nil
}

// withDefaults returns a copy of c in which nothing is left to default. What
// is switched off by a negative value becomes zero.
func (c *Config) withDefaults() Config {
	var d Config
	if c != nil {
		d = *c
	}
	setDefault(&d.MTU, defaultConfigMTU)
	setDefault(&d.SendWindow, defaultWindow)
	setDefault(&d.ReceiveWindow, defaultWindow)
	setDefault(&d.WriteBuffer, defaultWriteBuffer)
	setDefault(&d.NoDelay, NoDelayOn)
	setDefault(&d.Interval, defaultVariance)
	setDefault(&d.FastResend, defaultFastResend)
	setDefault(&d.FastResendLimit, defaultFastLimit)
	setDefault(&d.PeerTimeout, defaultPeerTimeout)
	setDefault(&d.KeepAlive, defaultKeepAlive)
	setDefault(&d.StallTimeout, defaultStallTimeout)
	setDefault(&d.DialTimeout, defaultDialTimeout)
	setDefault(&d.Linger, defaultLinger)
	setDefault(&d.MaxHalfOpen, defaultMaxHalfOpen)
	setDefault(&d.MaxBuffered, defaultMaxBuffered)
	setDefault(&d.Backlog, defaultBacklog)
	setDefault(&d.MaxSessions, defaultMaxSessions)
	setDefault(&d.SocketBuffer, defaultSocketBuffer)
	setDefault(&d.Shards, 1)
	if d.MaxSessions >= minSharedSessions {
		setDefault(&d.MaxSessionsPerAddress, d.MaxSessions/2)
	}
	d.FastResend = max(d.FastResend, 0)
	d.FastResendLimit = max(d.FastResendLimit, 0)
	d.PeerTimeout = max(d.PeerTimeout, 0)
	d.KeepAlive = max(d.KeepAlive, 0)
	d.StallTimeout = max(d.StallTimeout, 0)
	d.DialTimeout = max(d.DialTimeout, 0)
	d.Linger = max(d.Linger, 0)
	switch {
	case d.MaxLinger == 0:
		d.MaxLinger = max(defaultMaxLinger, time.Duration(d.WriteBuffer)*time.Second/leastDrainRate)
	case d.MaxLinger < 0:
		d.MaxLinger = forever
	}
	d.SocketBuffer = max(d.SocketBuffer, 0)
	if d.CongestionControl == nil {
		d.CongestionControl = NewBBR
	}
	return d
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// apply sets up a state machine for a session. The settings have passed
// Validate, so the setters cannot fail.
func (c *Config) apply(k *KCP) {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	must(k.SetMTU(c.MTU - c.overhead().total()))
	must(k.SetWindow(c.SendWindow, c.ReceiveWindow))
	must(k.SetInterval(uint32(c.Interval.Milliseconds())))
	k.SetNoDelay(c.NoDelay)
	if c.MinRTO > 0 {
		must(k.SetMinRTO(uint32(c.MinRTO.Milliseconds())))
	}
	k.SetFastResend(uint32(c.FastResend))
	k.SetFastResendLimit(uint32(c.FastResendLimit))
	k.SetDeadLink(uint32(c.DeadLink))
	k.SetStream(!c.MessageMode)
	k.SetTrace(c.Trace)
	k.SetCongestionControl(c.CongestionControl())

	// While the peer is silent it must be asked several times within
	// PeerTimeout, or silence would not mean anything.
	longest := sessionMaxRTO
	if c.PeerTimeout > 0 {
		longest = max(min(longest, c.PeerTimeout/4), time.Millisecond)
	}
	k.SetExtensions(Extensions{
		StrictRTT:         true,
		FreshFastAck:      true,
		FreshWindow:       true,
		PipeWindow:        true,
		PostponeTimeouts:  true,
		SendOrder:         true,
		RepeatAcks:        true,
		LimitToPeerWindow: true,
		SparseAcks:        true,
		MaxRTO:            uint32(longest.Milliseconds()),
		ProbeWait:         uint32(min(zeroWindowProbeWait, longest).Milliseconds()),
		MaxProbeWait:      uint32(longest.Milliseconds()),
		ThinAcks:          true,
		EarlyRetransmit:   true,
		TailProbe:         true,
		EarlyRepair:       true,
		OutageProbe:       uint32(min(zeroWindowProbeWait, longest).Milliseconds()),
		Redundancy:        uint32(c.Redundancy * 100),
		TakePieces:        true,
	})
}
