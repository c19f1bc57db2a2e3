package kcp

import (
	"crypto/tls"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/stats"
)

// sessionConfig is the settings of the sessions of an endpoint, all of which are valid. It
// is what Config has of sessions, with the defaults in place of what is not set.
type sessionConfig struct {
	mtu, maxMTU                            int // bytes of UDP payload
	sendWindow, receiveWindow              int // segments
	writeBuffer                            int // bytes
	maxBuffered                            int // bytes that all sessions hold
	maxStreams                             int
	streamReceiveBuffer, streamWriteBuffer int // bytes
	maxRate                                int // bytes a second; 0: no cap
	messageMode                            bool
	redundancy                             float64
	fec                                    stats.Ratio
	tls                                    *tls.Config // nil: none
	congestionControl                      func() congestion.Control

	noDelay                     machine.NoDelay
	minRTO, interval            time.Duration
	fastResend, fastResendLimit int
	deadLink                    int

	keepAlive, peerTimeout, idleTimeout, stallTimeout time.Duration
	linger, maxLinger                                 time.Duration
}

// Defaults and limits of the settings, in bytes but for times.
const (
	defaultLinger      = 5 * time.Second
	defaultStreamWrite = 256 << 10
	defaultWriteBuffer = 4 << 20
	maxStreamReceive   = 16 << 20 // of a buffer that grows
	maxUDPPayload      = 65507
	mostWriteBuffer    = 32 << 20 // of one that grows
	sessionMaxRTO      = 5 * time.Second
)
