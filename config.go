package kcp

import (
	"crypto/tls"
	"log/slog"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/liveness"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/wakeup"
	"github.com/arqnet/kcp/stats"
)

// Config holds the settings of sessions. The zero value, and nil, mean the defaults,
// which suit today's internet. Cipher and TLS must be the same at both ends; nothing else
// has to match. A Config may be shared, but must not be changed while it is in use. What
// to change for which traffic: docs/settings.md.
type Config struct {
	// MessageMode preserves the boundaries of what WriteMessage sends; the default is a
	// byte stream. Read and Write work in both modes, and with peers in either.
	MessageMode bool
	// Cipher encrypts every packet; nil means none. See package crypt.
	Cipher crypt.Cipher
	// TLS turns on TLS 1.3 in the packets (WIRE.md §8); nil means none. Both ends must
	// have it, and Cipher must be nil. Dial verifies the peer as tls.Dial does; Listen
	// needs Certificates, GetCertificate or GetConfigForClient. If one end has
	// NextProtos, the other must have one of them too. MTU must be 1200 at least. The
	// peer may have ten certificates, with 64 KiB.
	TLS *tls.Config
	// StatelessResetKey lets peers of sessions with TLS learn at once that this end was
	// restarted (stateless reset, RFC 9000 §10.3): their calls return ErrReset. It is
	// secret, of at least 16 bytes, the same after the restart, as must be the socket's
	// address, and of this server alone. Default nil: none.
	StatelessResetKey []byte
	// FEC adds parity packets to what is sent; the zero value adds none. The peer must
	// understand them: kcp-go does, the C reference does not. What the peer sends is
	// understood in any case. One remote address should then have one session.
	FEC FEC

	// MTU is the largest UDP payload sent, in bytes, with what Cipher and FEC add: 50 to
	// 65507, default 1400. Sessions with extended peers discover what the path takes
	// (DPLPMTUD, RFC 8899). In a black hole MTU falls to 1200, with legacy peers for
	// good.
	MTU int
	// MaxMTU is how far a session may raise its MTU, up to 65507 bytes, and never less
	// than MTU; negative means not at all. The default is 1472 over IPv4 and 1452 over
	// IPv6 with system sockets on Linux, and elsewhere MTU. If it is set, the
	// net.PacketConn must not fragment.
	MaxMTU int
	// SendWindow is the most segments in flight: 1 to 65535, default 16384. The peer's
	// receive window and congestion control limit it further.
	SendWindow int
	// ReceiveWindow is the most segments held for Read: up to 65535; less than 128 is
	// raised to 128. The default is 2048, and grows to 16384 while the application reads
	// as fast as that allows. It takes at most two windows of memory.
	ReceiveWindow int
	// WriteBuffer is how many bytes may be written ahead of the peer's acknowledgements
	// before Write blocks: 4096 to 1 GiB. Each segment counts 64 more. The default is 4
	// MiB, or twice what is in flight, 32 MiB at most (docs/settings.md).
	WriteBuffer int

	// Tuning says when segments are retransmitted.
	Tuning Tuning
	// Redundancy is how many bytes of redundant copies of small segments may be sent for
	// each byte sent otherwise: 0 to 4. With 0, the default, such copies are sent only
	// after losses, and no more than acknowledgements that are left out have saved.
	Redundancy float64
	// CongestionControl returns the congestion controller of a new session; nil means
	// congestion.NewBBR. A controller runs with the session's lock held, so it must not
	// call the Conn.
	CongestionControl func() congestion.Control
	// MaxRate caps the rate at which each session sends, in bytes a second: 1000 or more;
	// 0, the default, means no cap. Conn.SetMaxRate says what counts.
	MaxRate int

	// PeerTimeout is how long a peer may send nothing at all after something was sent
	// that it has to answer, before it is lost: 10 ms to a year (8760 h), default 30 s;
	// negative means never. Read and Write then return a *PeerLostError.
	PeerTimeout time.Duration
	// KeepAlive is the silence after which the peer is asked for a sign of life (RFC 9293
	// §3.8.4); the accepting side waits 1.5 times as long. 10 ms to a year, default 25 s,
	// or half of a PeerTimeout of less than 30 s, at least 500 ms; negative means never.
	KeepAlive time.Duration
	// IdleTimeout, if positive, ends a session with a *PeerLostError if no data has
	// passed over it for so long (RFC 9000 §10.1): 10 ms to a year. The other end gets
	// ErrReset. Default 0: off.
	IdleTimeout time.Duration
	// StallTimeout ends a session with a *PeerLostError if the peer, which still sends
	// packets, has accepted none of the written data for so long: 10 ms to a year. The
	// peer gets ErrReset. Default 30 min; negative means never.
	StallTimeout time.Duration
	// DialTimeout is how long Dial waits for the peer's answer, without the lookup of a
	// name: 1 ms to a year, default 10 s. Negative means that Dial does not wait: later
	// calls return its errors, and a *PeerLostError if the peer does not answer.
	DialTimeout time.Duration
	// Linger is how long Close waits for the peer to acknowledge more of the written
	// data: 1 ms to a year, default 5 s. Negative means that Close does not wait;
	// delivery then goes on in the background until nothing is acknowledged for 30 s.
	Linger time.Duration
	// MaxLinger bounds the total time that a closed session keeps delivering: 1 ms to a
	// year, and less than Linger counts as Linger. The default is what a full WriteBuffer
	// takes at 32 KiB/s, and at least 2 minutes. Negative means no limit.
	MaxLinger time.Duration

	// SharedConvs says that programs choose conversation ids, which are not unique:
	// sessions are told apart by address and id together. No session migrates then.
	SharedConvs bool
	// Limits bounds what peers can cause.
	Limits Limits
	// AddressValidation is when a new peer must return a cookie before any state is kept
	// for it. Legacy peers cannot. Default ValidateUnderPressure.
	AddressValidation AddressValidation
	// LegacyPeers is whether peers without signals, such as kcp-go, may open sessions.
	// Default LegacyDefault.
	LegacyPeers LegacyPeers

	// Shards is how many sockets Listen opens on its one port, each with a goroutine that
	// reads it (SO_REUSEPORT): 1 to 256, default 1. Elsewhere than on Linux there is one.
	Shards int
	// Control, if not nil, is called for each socket that Dial and Listen open, as
	// net.ListenConfig.Control is, and at any time for those that only ask for a route.
	// If it returns an error, the socket is not opened.
	Control func(network, address string, c syscall.RawConn) error
	// SocketBuffer is the requested size of the receive and the send buffer of each
	// socket, in bytes; of one given to NewEndpoint only if it is positive. Default 4
	// MiB; negative leaves the system's default.
	SocketBuffer int

	// StreamReceiveBuffer is how many bytes of a stream may wait to be read, or for what
	// is missing, before its sender has to stop: 64 KiB to 1 GiB. Each segment counts 128
	// more. A message has to fit. The default is 1 MiB, and grows to 16 MiB, 32 MiB for
	// all streams of a session, while the application reads as fast as that allows.
	StreamReceiveBuffer int
	// StreamWriteBuffer is how many bytes of a stream may wait to be sent for the first
	// time before its Write blocks: 4096 to 1 GiB, default 256 KiB. Each segment counts
	// 128 more. All streams of a session share WriteBuffer, or this if it is larger.
	StreamWriteBuffer int

	// Logger, if not nil, receives debug records of every session that begins and ends,
	// at most 100 a second, and warnings, at most one a second of each kind. It must not
	// block.
	Logger *slog.Logger
	// HandshakeFailed, if not nil, is called with the address of the peer, which may be
	// forged, and a *HandshakeError when the TLS handshake of an accepted session fails.
	// Calls run without locks, one after another. While 16 wait, further ones are left
	// out.
	HandshakeFailed func(remote net.Addr, err error)
	// Tracer, if not nil, is called once for every session, before it has sent or
	// received anything, and returns its hooks; nil: none. It may call the methods of the
	// Conn that do not wait; the hooks must not. Hooks of different sessions run at the
	// same time.
	Tracer func(*Conn) *Trace

	// Repetition, if not nil, makes runs of a test repeat: netsim.NewRepetition makes it.
	// Whoever knows its seed can predict ids, tokens, cookies and secrets.
	Repetition *wakeup.Run
}

// Tuning says when segments are retransmitted.
type Tuning struct {
	// NoDelay is how the retransmission time-out is bounded and backed off. Default
	// NoDelayOn.
	NoDelay NoDelay
	// MinRTO is the minimum retransmission time-out: 1 ms to 60 s. The default is as in
	// NoDelay.
	MinRTO time.Duration
	// Interval is the least variance term of the retransmission time-out: 10 ms to 5 s,
	// default 30 ms. Unlike the reference's flush interval, it delays no packet.
	Interval time.Duration
	// FastResend is how many acknowledgements of later segments cause a segment to be
	// retransmitted before its time-out (RFC 5681 §3.2). Default 2; negative means never.
	FastResend int
	// FastResendLimit is the number of transmissions after which a segment is
	// retransmitted only at its time-out. Default 5; negative means no limit.
	FastResendLimit int
	// DeadLink, if positive, is the number of transmissions of one segment, with nothing
	// arriving from the peer, after which the peer is lost. Default 0: off.
	DeadLink int
}

// Limits bounds what peers can cause; SECURITY.md says what follows at each.
type Limits struct {
	// Backlog is the most sessions waiting for Accept: default 128. While it is full no
	// new ones are created, and Dial of their peers returns *NoAnswerError in the end.
	Backlog int
	// MaxSessions is the most sessions of one endpoint, dialled and accepted. Default
	// 65536.
	MaxSessions int
	// MaxHalfOpen is the most accepted sessions whose peers have not yet validated their
	// addresses (RFC 9000 §8), and besides the most TLS handshakes with others. Default
	// 1024. Beyond it, the oldest of the network with most is evicted.
	MaxHalfOpen int
	// MaxSessionsPerAddress is the most sessions with one IPv4 address, or one IPv6
	// network of 64 bits; peers behind a NAT share one. The default is half of
	// MaxSessions if that is 64 or more, and otherwise no limit.
	MaxSessionsPerAddress int
	// MaxBuffered is how much memory, in bytes, all sessions together may hold because of
	// what their peers have sent: 64 KiB to 2 GiB, default 1 GiB. Beyond it, sessions
	// that hold most for each byte that has arrived lately are ended with
	// ErrMemoryPressure.
	MaxBuffered int
	// MaxStreams is the most streams that a peer may have in a session; its OpenStream
	// waits for room. Default 256; negative means that the session takes and opens none.
	MaxStreams int
}

// AddressValidation says when new peers must return a cookie, which costs them
// a round trip (address validation, RFC 9000 §8.1).
type AddressValidation uint8

const (
	// ValidateUnderPressure asks for cookies while half of Limits.MaxHalfOpen (with TLS
	// an eighth) or half of Limits.MaxSessions is reached, or while the peer's address
	// has as many sessions as it may.
	ValidateUnderPressure AddressValidation = iota
	// ValidateAlways asks every extended peer. Legacy peers cannot be asked; LegacyRefuse
	// keeps those out.
	ValidateAlways
)

// LegacyPeers says whether legacy peers, such as kcp-go and the C reference, may open
// sessions with an endpoint. Anyone can forge their first packets, unless Config.Cipher
// authenticates them; then anyone who has recorded them can replay the session. It does
// not limit Dial.
type LegacyPeers uint8

const (
	// LegacyDefault lets legacy peers open sessions, but not with a Cipher that
	// authenticates (see crypt.Authenticated), and not with TLS.
	LegacyDefault LegacyPeers = iota
	// LegacyAllow lets them, with every Cipher. Validate refuses it together with TLS.
	LegacyAllow
	// LegacyRefuse lets only extended peers open sessions.
	LegacyRefuse
)

// FEC is a ratio: every Data packets are followed by Parity packets.
type FEC = stats.Ratio

// ofSessions returns what sessions have to know.
func (c *Config) ofSessions() session.Config {
	return session.Config{
		MTU: c.MTU, MaxMTU: c.MaxMTU, SendWindow: c.SendWindow, ReceiveWindow: c.ReceiveWindow,
		WriteBuffer: c.WriteBuffer, MaxBuffered: c.Limits.MaxBuffered, MaxStreams: c.Limits.MaxStreams,
		StreamReceiveBuffer: c.StreamReceiveBuffer, StreamWriteBuffer: c.StreamWriteBuffer,
		MaxRate: c.MaxRate, MessageMode: c.MessageMode, Redundancy: c.Redundancy, FEC: c.FEC, TLS: c.TLS,
		CongestionControl: c.CongestionControl,
		NoDelay:           machine.NoDelay(c.Tuning.NoDelay), MinRTO: c.Tuning.MinRTO, Interval: c.Tuning.Interval,
		FastResend: c.Tuning.FastResend, FastResendLimit: c.Tuning.FastResendLimit, DeadLink: c.Tuning.DeadLink,
		KeepAlive: c.KeepAlive, PeerTimeout: c.PeerTimeout, IdleTimeout: c.IdleTimeout, StallTimeout: c.StallTimeout,
		Linger: c.Linger, MaxLinger: c.MaxLinger,
	}
}

// Defaults of Config.
const (
	defaultConfigMTU     = 1400
	defaultWindow        = 2048
	defaultFastResend    = 2
	defaultVariance      = 30 * time.Millisecond
	defaultPeerTimeout   = liveness.DefaultPeerTimeout
	defaultKeepAlive     = 25 * time.Second
	minKeepAlive         = 500 * time.Millisecond // of the default with a short PeerTimeout
	defaultStallTimeout  = 30 * time.Minute
	defaultDialTimeout   = 10 * time.Second
	defaultMaxLinger     = 2 * time.Minute
	leastDrainRate       = 32 << 10 // bytes per second; sets the default of MaxLinger
	defaultMaxHalfOpen   = 1024
	defaultMaxBuffered   = 1 << 30
	defaultBacklog       = 128
	defaultMaxSessions   = 65536
	defaultSocketBuffer  = 4 << 20
	defaultMaxStreams    = 256
	defaultStreamReceive = 1 << 20
	minSharedSessions    = 64
	maxShards            = 256
	maxRedundancy        = 4
	minWriteBuffer       = 4096
	minMaxBuffered       = 1 << 16
	maxConfigWriteBuffer = 1 << 30
	minMaxRate           = 1000 // bytes a second
	forever              = 100 * 365 * 24 * time.Hour
)

// LowLatency returns a Config for traffic that must arrive soon and is small compared
// with the path's capacity: games, voice, remote control. It has no congestion control,
// so it is not for bulk on shared links. At most SendWindow, 512 segments, are in flight.
// NoDelay is NoDelayTurbo, Interval 10 ms, FastResend 1.
func LowLatency() Config {
	return Config{
		Tuning:            Tuning{NoDelay: NoDelayTurbo, Interval: 10 * time.Millisecond, FastResend: 1},
		SendWindow:        512,
		CongestionControl: congestion.NewNone,
	}
}

// Classic returns a Config with the reference implementation's initial settings:
// MessageMode, NoDelayOff, an Interval of 100 ms, no fast retransmission, windows of 32
// and 128 segments, and the reference's congestion control.
func Classic() Config {
	return Config{
		MessageMode:   true,
		Tuning:        Tuning{NoDelay: NoDelayOff, Interval: machine.DefaultInterval * time.Millisecond, FastResend: -1},
		SendWindow:    machine.DefaultSndWnd,
		ReceiveWindow: machine.MinRcvWnd,

		CongestionControl: congestion.NewReference,
	}
}

// withDefaults returns a copy of c with the defaults filled in. What a negative
// value turns off becomes zero.
func (c *Config) withDefaults() Config {
	var d Config
	if c != nil {
		d = *c
	}
	if d.TLS != nil {
		d.TLS = d.TLS.Clone()
		d.TLS.MinVersion = tls.VersionTLS13
	}
	d.StatelessResetKey = slices.Clone(d.StatelessResetKey)
	setDefault(&d.MTU, defaultConfigMTU)
	setDefault(&d.SendWindow, machine.MostWindow)
	setDefault(&d.ReceiveWindow, defaultWindow)
	setDefault(&d.WriteBuffer, session.DefaultWriteBuffer)
	setDefault(&d.Tuning.NoDelay, NoDelayOn)
	setDefault(&d.Tuning.Interval, defaultVariance)
	setDefault(&d.Tuning.FastResend, defaultFastResend)
	setDefault(&d.Tuning.FastResendLimit, machine.DefaultFastLimit)
	setDefault(&d.PeerTimeout, defaultPeerTimeout)
	if d.PeerTimeout > 0 && d.PeerTimeout < defaultPeerTimeout {
		setDefault(&d.KeepAlive, max(d.PeerTimeout/2, minKeepAlive))
	}
	setDefault(&d.KeepAlive, defaultKeepAlive)
	setDefault(&d.StallTimeout, defaultStallTimeout)
	setDefault(&d.DialTimeout, defaultDialTimeout)
	setDefault(&d.Linger, session.DefaultLinger)
	setDefault(&d.Limits.MaxHalfOpen, defaultMaxHalfOpen)
	setDefault(&d.Limits.MaxBuffered, defaultMaxBuffered)
	setDefault(&d.Limits.Backlog, defaultBacklog)
	setDefault(&d.Limits.MaxSessions, defaultMaxSessions)
	setDefault(&d.SocketBuffer, defaultSocketBuffer)
	setDefault(&d.Shards, 1)
	setDefault(&d.Limits.MaxStreams, defaultMaxStreams)
	d.Limits.MaxStreams = max(d.Limits.MaxStreams, 0)
	setDefault(&d.StreamReceiveBuffer, defaultStreamReceive)
	setDefault(&d.StreamWriteBuffer, session.DefaultStreamWrite)
	if d.Limits.MaxSessions >= minSharedSessions {
		setDefault(&d.Limits.MaxSessionsPerAddress, d.Limits.MaxSessions/2)
	}
	d.Tuning.FastResend = min(max(d.Tuning.FastResend, 0), maxInt32)
	d.Tuning.FastResendLimit = min(max(d.Tuning.FastResendLimit, 0), maxInt32)
	d.Tuning.DeadLink = min(d.Tuning.DeadLink, maxInt32)
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
		d.CongestionControl = congestion.NewBBR
	}
	return d
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
