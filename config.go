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
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/liveness"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/wakeup"
	"github.com/arqnet/kcp/stats"
)

// Config holds the settings of sessions. The zero value, and nil, mean the defaults,
// which suit today's internet: low latency, windows that do not throttle, congestion
// control on. Cipher and TLS must be the same at both ends, and a peer must understand
// FEC if that is set. Nothing else has to match. A Config may be shared, but must not
// be changed while it is in use. Its fields are, in order: what travels; sizes;
// retransmission and congestion control; time-outs; limits on what unknown peers can
// cause; sockets; streams; what shows what happens; tests. docs/settings.md says what
// to change for which traffic.
type Config struct {
	// Settings that must match the peer's.

	// MessageMode preserves the boundaries of what WriteMessage sends. The default is a
	// byte stream. Read and Write work in both modes, and with peers in either. kcp-go's
	// SetStreamMode(true) is our default; its default is our MessageMode.
	MessageMode bool
	// Cipher encrypts every packet; nil means none. See package crypt.
	Cipher crypt.Cipher
	// TLS turns on TLS 1.3: every packet is encrypted and authenticated under keys of its
	// session, which the ends agree on by certificates (WIRE.md §8). nil means no TLS.
	// Both ends must have it, and Cipher must be nil. Dial verifies the peer as tls.Dial
	// does; Listen needs Certificates, GetCertificate or GetConfigForClient. Client
	// certificates and tickets work as with crypto/tls. ALPN works as in QUIC: if one end
	// has NextProtos, the other must have one of them too. There is no early data. MTU
	// must be 1200 at least, and the peer may have ten certificates, with 64 KiB.
	// docs/settings.md has more.
	TLS *tls.Config
	// StatelessResetKey lets peers of sessions with TLS learn at once that this end was
	// restarted (stateless reset, RFC 9000 §10.3): their calls return ErrReset. It is
	// secret, of at least 16 bytes, better 32 at random, must be the same after the
	// restart, as must the address of the socket, and must not be shared by servers.
	// With nil, the default, they learn that a session was given up, but not of a
	// restart.
	StatelessResetKey []byte
	// FEC adds parity packets to what is sent. The zero value adds none. The peer need
	// not send any itself, nor know the ratio, but it must understand them: kcp-go does,
	// the C reference does not. What the peer sends is understood in any case. With FEC,
	// one remote address should have one session: parity packets name no conversation.
	FEC FEC

	// Local tuning. The peer need not match any of it.

	// MTU is the size of the largest UDP payload sent, in bytes, including what Cipher
	// and FEC add: 50 to 65507, default 1400. With a peer of this package a session
	// begins with it and discovers what the path takes (DPLPMTUD, RFC 8899); in a black
	// hole it falls back to 1200. On Linux no packet of system sockets is fragmented on
	// its way (DF), and what the interface refuses makes it smaller at once. With other
	// peers the size falls to 1200 in a black hole, and stays there. What cannot be
	// smaller then is sent without DF: see docs/settings.md. Elsewhere a path must take
	// 1200 bytes, or MTU if that is less, and MTU bytes with other peers.
	MTU int
	// MaxMTU is how far a session may raise its MTU once it has sent 64 full segments: up
	// to 65507 bytes, and never less than MTU. Negative means not at all. The default is
	// 1472 over IPv4 and 1452 over IPv6, if the system can keep probes from being
	// fragmented: on Linux, with system sockets. With an explicit MaxMTU probes are sent
	// in any case, and the net.PacketConn must not fragment.
	MaxMTU int
	// SendWindow is the most segments in flight: 1 to 65535, default 16384. The peer's
	// receive window and congestion control limit it further.
	SendWindow int
	// ReceiveWindow is the most segments held for Read: up to 65535. The default is 2048,
	// and grows to 16384 while the application reads as fast as that allows (dynamic
	// right-sizing). A window set here, or by SetWindow, stays as it is. Less
	// than 128 is raised to 128, which holds the longest message. It takes at most two
	// windows of memory, one waiting for Read and one behind a gap, in buffers of up to
	// three times the peer's MTU. MaxBuffered bounds all of it.
	ReceiveWindow int
	// WriteBuffer is how many bytes may be written ahead of the peer's acknowledgements
	// before Write blocks: 4096 to 1 GiB. Each segment counts 64 more than its payload.
	// The default is 4 MiB, or twice what is in flight, 32 MiB at most. It is less while the sessions of the endpoint together have
	// more than 64 MiB written ahead (see docs/settings.md; compare Linux tcp_mem). What
	// waits in all streams of a session may take as much memory again; see
	// StreamWriteBuffer. While streams are open, at most 64 KiB of what the session
	// itself writes waits to be sent for the first time, as it has its place before them.
	WriteBuffer int

	// Tuning says when segments are retransmitted.
	Tuning Tuning
	// Redundancy is how many bytes of redundant copies may be sent for each byte sent
	// otherwise: 0 to 4. Packets that leave anyway and have room carry copies of recent
	// segments of up to 256 bytes, which any peer drops as duplicates. With 1, game input
	// is nearly immune to random loss; a peer of this package is sent two or three copies
	// of each then. With 0, the default, such copies are sent only after losses, and no
	// more bytes than are saved by leaving out acknowledgements.
	Redundancy float64
	// CongestionControl returns the congestion controller of a new session. nil means
	// congestion.NewBBR. The others are congestion.NewCubic, congestion.NewReference,
	// which KCP users know, and congestion.NewNone. A controller runs with the session's
	// lock held, so it must not call the Conn.
	CongestionControl func() congestion.Control

	// MaxRate caps the rate at which each session sends, in bytes a second: 1000 or more;
	// 0, the default, means no cap. Conn.SetMaxRate, which says what counts, changes it.
	// It is not shared by the sessions of the endpoint. Congestion control may send less.
	MaxRate int

	// PeerTimeout is how long a peer may send nothing at all after something was sent
	// that it has to answer (no datagram), before it is lost: Read and Write then return
	// a *PeerLostError. What waits to be sent, as for MaxRate or for a window, does not
	// count. Nor does the time for which this process was frozen, if it was an eighth of
	// PeerTimeout or more. 10 ms to a year (8760 h). Default 30 s; negative means never.
	PeerTimeout time.Duration
	// KeepAlive is the silence after which the peer is asked for a sign of life
	// (keep-alive, RFC 9293 §3.8.4). It keeps NAT bindings open, and detects a lost peer
	// even if the application does not write: PeerTimeout then runs as for unacknowledged
	// data. The accepting side waits 1.5 times as long. 10 ms to a year. Default 25 s,
	// or half of a PeerTimeout of less than 30 s, but then at least 500 ms. Negative
	// means never.
	KeepAlive time.Duration
	// IdleTimeout, if positive, ends a session with a *PeerLostError if no data has
	// passed over it for so long (idle timeout, RFC 9000 §10.1): nothing new arrived in
	// order, nothing was acknowledged, and there was no datagram either way. 10 ms to a
	// year. The other end gets ErrReset; if both have the same IdleTimeout, either may
	// get either error. Default 0: off.
	IdleTimeout time.Duration
	// StallTimeout ends a session with a *PeerLostError if the peer has accepted none of
	// the written data for so long, because its application does not read, although it
	// still sends packets. The peer gets ErrReset. 10 ms to a year. Default 30 min;
	// negative means never.
	StallTimeout time.Duration
	// DialTimeout is how long Dial waits for the peer's answer, unless its context ends
	// first. Only the context bounds the lookup of a name before. 1 ms to a year. Default
	// 10 s; negative means that Dial does not wait: what would be an error of Dial then
	// is returned by a later Read or Write. It is ErrRefused, ErrTLSRequired, ErrNoTLS
	// or a *HandshakeError, and a *PeerLostError if the peer does not answer.
	DialTimeout time.Duration
	// Linger is how long Close waits for the peer to acknowledge more of the written
	// data. As long as the peer does, Close keeps waiting. 1 ms to a year, default 5 s.
	// Negative means that Close does not wait; delivery then continues in the background
	// until nothing is acknowledged for 30 s.
	Linger time.Duration
	// MaxLinger bounds the total time that a closed session keeps delivering written
	// data, whether Close waits or not: 1 ms to a year, and less than Linger counts as
	// Linger. The default is what a full WriteBuffer takes at 32 KiB/s, and at least
	// 2 minutes. Negative means no limit.
	MaxLinger time.Duration

	// SharedConvs says that conversation ids are not unique, because programs choose
	// them: sessions are told apart by address and id together. It is for peers that do
	// not draw their ids at random, as endpoints of this package and kcp-go's Dial do. No
	// session migrates then. A peer that opens a session with the id of one that has just
	// ended should wait for as long as the path may delay packets.
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
	// reads it: 1 to 256, default 1. The system distributes the peers among them by
	// address (SO_REUSEPORT), on Linux only; elsewhere there is one socket. More may pay
	// off on many processors; see docs/settings.md.
	Shards int
	// Control, if not nil, is called for each socket that Dial and Listen open, before it
	// is bound or connected, as net.ListenConfig.Control is: to set options such as DSCP
	// or SO_BINDTODEVICE. If it returns an error, the socket is not opened. It is also
	// called for sockets that only ask for the route of a session of Dial, perhaps often
	// and at any time, and send nothing.
	Control func(network, address string, c syscall.RawConn) error
	// SocketBuffer is the requested size of the receive and the send buffer of each
	// socket that Dial or Listen opens, in bytes; if it is positive, also of a system
	// socket of NewEndpoint. The system may grant less. Default 4 MiB; negative leaves
	// the system's default. If several peers send at once, the windows advertised to them
	// share the receive buffer.
	SocketBuffer int

	// Streams of the session; see Conn.OpenStream.

	// StreamReceiveBuffer is how many bytes of a stream may wait to be read, or for what
	// is missing, before its sender has to stop: 64 KiB to 1 GiB. Each segment counts 128
	// more. A message has to fit. The default is 1 MiB, and grows to 16 MiB, 32 MiB for
	// all streams of a session, while the application reads as fast as that allows
	// (dynamic right-sizing). A size set here stays as it is.
	StreamReceiveBuffer int
	// StreamWriteBuffer is how many bytes of a stream may wait to be sent for the first
	// time before its Write blocks: 4096 to 1 GiB, default 256 KiB. Each segment counts
	// 128 more. WriteBuffer bounds what waits in all streams of a session; a larger size
	// set here takes its place.
	StreamWriteBuffer int

	// Logger, if not nil, receives debug records of every session that begins and ends,
	// at most 100 a second, and warnings: of socket errors, of sessions ended under
	// memory pressure and of failed TLS handshakes at most one a second each, and of
	// packets that Cipher does not open one every 10 seconds. It may be called from the
	// goroutine that reads the socket, and must not block.
	Logger *slog.Logger
	// HandshakeFailed, if not nil, is called with the address of the peer and a
	// *HandshakeError when the TLS handshake of a session fails that a peer has opened.
	// Anybody can cause such calls, and may have forged the address. They run without
	// locks, one after another, on a goroutine of their own. While 16 wait, further ones
	// are left out; stats.Endpoint.HandshakeErrors counts all.
	HandshakeFailed func(remote net.Addr, err error)
	// Tracer, if not nil, is called once for every session, before it has sent or
	// received anything, and returns the hooks for that one; nil: none. No lock is held,
	// so it may call the methods of the Conn that do not wait, but the hooks themselves
	// must not. It may run on the goroutine that reads the socket. Hooks of different
	// sessions run at the same time. The last call is State with trace.SessionEnded.
	Tracer func(*Conn) *Trace

	// Repetition, if not nil, makes runs of a test repeat: netsim.NewRepetition makes it,
	// for tests in virtual time over package netsim alone. Whoever knows its seed can
	// predict ids, tokens, cookies and secrets; TLS still draws from crypto/rand.
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
	// default 30 ms. With less, the jitter of ordinary paths causes spurious time-outs.
	// Unlike the reference's flush interval, it delays no packet.
	Interval time.Duration
	// FastResend is how many acknowledgements of later segments cause a segment to be
	// retransmitted before its time-out (fast retransmission, RFC 5681 §3.2). Default 2;
	// negative means never.
	FastResend int
	// FastResendLimit is the number of transmissions after which a segment is no longer
	// retransmitted early, but only at its time-out. Default 5; negative means no limit.
	FastResendLimit int
	// DeadLink, if positive, is the number of transmissions of one segment, with nothing
	// arriving from the peer, after which the peer is considered lost. That may be much
	// sooner than PeerTimeout. Default 0: off.
	DeadLink int
}

// Limits bounds what peers can cause.
type Limits struct {
	// Backlog is the most sessions waiting for Accept. While it is full no new ones are
	// created: peers repeat their first packets, and their Dial returns *NoAnswerError in
	// the end. Those whose peers had not finished the handshake when it filled are there
	// besides. Default 128.
	Backlog int
	// MaxSessions is the most sessions of one endpoint, dialled and accepted. Default
	// 65536.
	MaxSessions int
	// MaxHalfOpen is the most accepted sessions whose peers have not yet validated
	// their addresses (RFC 9000 §8), with a token or, if legacy, by an ACK of data
	// written to them. Default 1024. Beyond it, the oldest of the network with most, a
	// /48 of IPv6 or a /24 of IPv4, is evicted for a new one of another network; for
	// one of a network with as many, one that has been silent, and is at least 3
	// seconds old. A half-open session is sent at most three times as much as has
	// arrived from it (anti-amplification limit, RFC 9000 §8.1). With TLS, as many
	// handshakes besides may be in progress with validated peers, by the same rule.
	MaxHalfOpen int
	// MaxSessionsPerAddress is the most sessions with one IPv4 address, or one IPv6
	// network of 64 bits; peers behind a NAT share one. Half-open sessions do not count
	// against peers that have validated their addresses. At the limit, new peers are
	// asked for a cookie. The default is half of MaxSessions if that is 64 or more, and
	// otherwise no limit.
	MaxSessionsPerAddress int
	// MaxBuffered is how much memory, in bytes, all sessions together may hold because of
	// what their peers have sent, as stats.Endpoint.Buffered counts it: 64 KiB to 2 GiB,
	// default 1 GiB. Beyond it, a session that holds more than an equal share takes only
	// what can be read at once. Those that hold most for each byte that has arrived
	// lately are ended with ErrMemoryPressure. docs/settings.md has the order.
	MaxBuffered int
	// MaxStreams is the most streams that a peer may have in a session; its OpenStream
	// waits for room. A stream counts until the peer has ended it and the application
	// has called Close, or CloseWrite and read to the end. Default 256; negative means
	// that the session takes and opens none: the error of OpenStream and
	// AcceptStream then wraps errors.ErrUnsupported.
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
// sessions with an endpoint. Nothing in such a peer's format shows when a packet was
// made, or that the peer is present. Anyone can forge its first packets, unless
// Config.Cipher authenticates them; then anyone who has recorded them can replay the
// session.
//
// Without TLS legacy peers can be dialled, whatever this says, if they ignore frg of
// WASK and WINS, as kcp-go and the C reference do. A peer that fails at what it does
// not know, cannot be dialled, but can dial: see docs/calls.md.
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

// FEC is a ratio of forward error correction: every Data packets are followed by Parity
// packets. Its fields: go doc kcp/stats.Ratio.
type FEC = stats.Ratio

// overhead returns the bytes that a packet has around its content.
func (c *Config) overhead() (o overhead) {
	o.cipherHead, o.tail = protect.Overhead(c.Cipher, c.TLS != nil)
	if c.FEC != (FEC{}) {
		o.fecHead = fec.HeaderSize
	}
	o.head = o.cipherHead + o.fecHead
	o.total = o.head + o.tail
	return o
}

// Defaults of Config.
const (
	defaultConfigMTU     = 1400
	defaultWindow        = 2048
	defaultWriteBuffer   = 4 << 20
	mostWriteBuffer      = 32 << 20 // of one that grows
	defaultFastResend    = 2
	defaultVariance      = 30 * time.Millisecond
	defaultPeerTimeout   = liveness.DefaultPeerTimeout
	defaultKeepAlive     = 25 * time.Second
	minKeepAlive         = 500 * time.Millisecond // of the default with a short PeerTimeout
	defaultStallTimeout  = 30 * time.Minute
	defaultDialTimeout   = 10 * time.Second
	defaultLinger        = 5 * time.Second
	defaultMaxLinger     = 2 * time.Minute
	leastDrainRate       = 32 << 10 // bytes per second; sets the default of MaxLinger
	defaultMaxHalfOpen   = 1024
	defaultMaxBuffered   = 1 << 30
	defaultBacklog       = 128
	defaultMaxSessions   = 65536
	defaultSocketBuffer  = 4 << 20
	defaultMaxStreams    = 256
	defaultStreamReceive = 1 << 20
	maxStreamReceive     = 16 << 20 // of a buffer that grows
	defaultStreamWrite   = 256 << 10
	minSharedSessions    = 64
	maxUDPPayload        = 65507
	maxShards            = 256
	maxRedundancy        = 4
	sessionMaxRTO        = 5 * time.Second
	minWriteBuffer       = 4096
	minMaxBuffered       = 1 << 16
	maxConfigWriteBuffer = 1 << 30
	minMaxRate           = 1000 // bytes a second
	forever              = 100 * 365 * 24 * time.Hour
)

// LowLatency returns a Config for traffic that must arrive soon and is small compared
// with the path's capacity: games, voice, remote control. It has no congestion control,
// as KCP is mostly run, so it is not for bulk on shared links. At most SendWindow, 512
// segments, are in flight: 115 Mbit/s at a round trip of 50 ms. NoDelay is
// NoDelayTurbo, Interval 10 ms, FastResend 1. On most paths the default Config is as
// quick (see docs/settings.md). It is a value to change, of which Dial and Listen take
// the address.
func LowLatency() Config {
	return Config{
		Tuning:            Tuning{NoDelay: NoDelayTurbo, Interval: 10 * time.Millisecond, FastResend: 1},
		SendWindow:        512,
		CongestionControl: congestion.NewNone,
	}
}

// Classic returns a Config with the reference implementation's initial
// settings, for comparisons and for peers on very slow paths: MessageMode,
// NoDelayOff, an Interval of 100 ms, no fast retransmission, a SendWindow of 32 and a
// ReceiveWindow of 128 segments, and the reference's congestion control.
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
	setDefault(&d.WriteBuffer, defaultWriteBuffer)
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
	setDefault(&d.Linger, defaultLinger)
	setDefault(&d.Limits.MaxHalfOpen, defaultMaxHalfOpen)
	setDefault(&d.Limits.MaxBuffered, defaultMaxBuffered)
	setDefault(&d.Limits.Backlog, defaultBacklog)
	setDefault(&d.Limits.MaxSessions, defaultMaxSessions)
	setDefault(&d.SocketBuffer, defaultSocketBuffer)
	setDefault(&d.Shards, 1)
	setDefault(&d.Limits.MaxStreams, defaultMaxStreams)
	d.Limits.MaxStreams = max(d.Limits.MaxStreams, 0)
	setDefault(&d.StreamReceiveBuffer, defaultStreamReceive)
	setDefault(&d.StreamWriteBuffer, defaultStreamWrite)
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
