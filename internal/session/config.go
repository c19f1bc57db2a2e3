package session

import (
	"crypto/tls"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/stats"
)

// Config is the settings of the sessions of an endpoint, all of which are valid. It
// is what Config has of sessions, with the defaults in place of what is not set.
type Config struct {
	MTU, MaxMTU                            int // bytes of UDP payload
	SendWindow, ReceiveWindow              int // segments
	WriteBuffer                            int // bytes
	MaxBuffered                            int // bytes that all sessions hold
	MaxStreams                             int
	StreamReceiveBuffer, StreamWriteBuffer int // bytes
	MaxRate                                int // bytes a second; 0: no cap
	MessageMode                            bool
	Redundancy                             float64
	FEC                                    stats.Ratio
	TLS                                    *tls.Config // nil: none
	CongestionControl                      func() congestion.Control

	NoDelay                     machine.NoDelay
	MinRTO, Interval            time.Duration
	FastResend, FastResendLimit int
	DeadLink                    int

	KeepAlive, PeerTimeout, IdleTimeout, StallTimeout time.Duration
	Linger, MaxLinger                                 time.Duration
}

// Defaults and limits of the settings, in bytes but for times.
const (
	DefaultLinger      = 5 * time.Second
	DefaultStreamWrite = 256 << 10
	DefaultWriteBuffer = 4 << 20
	MaxStreamReceive   = 16 << 20 // of a buffer that grows
	MaxUDPPayload      = 65507
	mostWriteBuffer    = 32 << 20 // of one that grows
	SessionMaxRTO      = 5 * time.Second
)
