package kcp

import (
	"time"

	engine "github.com/arqnet/kcp"
)

// Sizes of packets in bytes.
const (
	maxPacket = 1500 // largest UDP payload, as in kcp-go
	leastMTU  = 50   // least packet of the engine, without what cipher and FEC add
	fecHeader = 8    // what error correction adds to a packet
)

const (
	maxWindow = 65535 // segments; what the engine takes, and the wire can say

	// acceptBacklog is how many sessions wait for Accept.
	acceptBacklog = 128
	// mostSessions is how many sessions one socket has at most. kcp-go knows no
	// limit.
	mostSessions = 1 << 20
	// mostHalfOpen is how many of them may be of peers whose addresses are not
	// validated. Beyond it the silent ones make room. A peer with kcp-go that
	// was never sent anything counts.
	mostHalfOpen = 1 << 16

	// peerTimeout is how long a peer may be silent while data waits for its
	// acknowledgement. kcp-go waits forever, and keeps what was written. Ten
	// minutes are more than a computer is moved, or a server restarted.
	peerTimeout = 10 * time.Minute
)

// newConfig returns the settings of the sessions of a socket. What kcp-go sets
// for a session has its defaults. Keep-alives are off: kcp-go sends nothing
// while a session is idle.
func newConfig(block BlockCrypt, dataShards, parityShards int) *engine.Config {
	c := &engine.Config{
		MessageMode:   true,
		Cipher:        newCipher(block),
		MTU:           IKCP_MTU_DEF,
		MaxMTU:        -1,
		SendWindow:    IKCP_WND_SND,
		ReceiveWindow: IKCP_WND_RCV,
		Tuning:        engine.Tuning{NoDelay: engine.NoDelayOff, Interval: IKCP_INTERVAL * time.Millisecond, FastResend: -1},

		PeerTimeout:  peerTimeout,
		KeepAlive:    -1,
		StallTimeout: -1,
		Linger:       -1,

		SharedConvs:  true,
		Limits:       engine.Limits{Backlog: acceptBacklog, MaxSessions: mostSessions, MaxHalfOpen: mostHalfOpen, MaxSessionsPerAddress: mostSessions},
		SocketBuffer: -1,
	}
	if usesFEC(dataShards, parityShards) {
		c.FEC = engine.FEC{Data: dataShards, Parity: parityShards}
	}
	return c
}

// usesFEC reports whether a ratio means error correction. kcp-go takes any
// other for none.
func usesFEC(data, parity int) bool {
	const mostShards = 256
	return data > 0 && parity > 0 && data < mostShards && parity < mostShards && data+parity <= mostShards
}
