package kcp

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/packetkeys"
	"github.com/stretchr/testify/require"
)

// What of a handshake arrives at an end. More than the last has nothing else.
const (
	firstPacket   = iota // the first packet
	initialLevel         // what is under the initial keys
	handshakeKeys        // and under the handshake keys
)

// tlsStates are the states of a server's session with TLS while its client
// knows nothing of it beyond a level, and what becomes of the client's call once
// packets arrive again: Dial, or what goes on over the session that it has
// returned.
//   - served: that session
//   - anew: Dial begins anew, and succeeds
//   - reset: ErrReset
//   - lost: nothing is known; NoAnswerError, or PeerLostError
var tlsStates = []struct {
	name           string
	server, client int           // what has arrived
	outage         time.Duration // after that
	restart        bool          // the server knows nothing of the session any more

	stays, moves string // the client is at its address, or has moved during the outage
}{
	{"half open, initial", firstPacket, -1, time.Second, false, "served", "served"},
	{"handshake running, initial", initialLevel, -1, time.Second, false, "served", "served"},
	{"handshake running, ServerHello in part", initialLevel, firstPacket, time.Second, false, "served", "anew"},
	{"handshake running, handshake", initialLevel, initialLevel, time.Second, false, "served", "anew"},
	{"handshake running, application", initialLevel, handshakeKeys, time.Second, false, "served", "served"},
	{"not accepted, application", handshakeKeys, handshakeKeys, time.Second, false, "served", "served"},

	{"dropped when half open, initial", firstPacket, -1, outageTime, false, "anew", "served"},
	{"dropped, initial", initialLevel, -1, outageTime, false, "anew", "served"},
	{"dropped, ServerHello in part", initialLevel, firstPacket, outageTime, false, "anew", "anew"},
	{"dropped, handshake", initialLevel, initialLevel, outageTime, false, "anew", "anew"},
	{"dropped, application", initialLevel, handshakeKeys, outageTime, false, "reset", "reset"},

	{"forgotten, initial", initialLevel, -1, time.Second, true, "served", "served"},
	{"forgotten, ServerHello in part", initialLevel, firstPacket, time.Second, true, "anew", "anew"},
	{"forgotten, handshake", initialLevel, initialLevel, time.Second, true, "lost", "lost"},
	{"forgotten, application", initialLevel, handshakeKeys, time.Second, true, "lost", "lost"},
}

// A client learns at once what a server has left of its session, at whatever
// level it is, from wherever it asks, with a key of stateless resets and without.
func TestTLSStates(t *testing.T) {
	for _, test := range tlsStates {
		for _, moved := range []bool{false, true} {
			want, name := test.stays, test.name
			if moved {
				want, name = test.moves, name+", moved"
			}
			t.Run(name, func(t *testing.T) {
				outageConfigs(t, func(t *testing.T, config *Config) {
					inWorld(t, 1, clean, func(w *world) {
						w.passUpTo(test.server, test.client)
						l, server := w.server(config)
						e, pc := w.endpoint("10.0.0.2:5000", config)
						dialled := make(chan dialOutcome, 1)
						go func() {
							c, err := e.Dial(context.Background(), udpAddr(serverAddr))
							dialled <- dialOutcome{c, err}
						}()
						time.Sleep(100 * time.Millisecond)
						w.net.SetFilter(func(netip.AddrPort, netip.AddrPort, []byte) bool { return false })
						if moved {
							require.NoError(t, pc.Rebind("10.0.0.3:6000"))
						}
						time.Sleep(test.outage)
						if test.restart {
							l = w.restarted(server, config)
						}
						w.net.SetFilter(nil)
						healed := time.Now()
						got := w.becomes(l, <-dialled)
						if n := e.Stats().Dialled; got == "served" && n > 1 {
							got = "anew"
						}
						require.Equal(t, want, got)
						if moved && test.name == "handshake running, handshake" {
							return // it is told when the server gives up
						}
						if want != "lost" {
							require.Less(t, time.Since(healed), maxRequestWait+6*roundTrip)
						}
					})
				})
			})
		}
	}
}

// dialOutcome is what Dial has returned.
type dialOutcome struct {
	c   *Conn
	err error
}

// passUpTo lets through what a state says has arrived at the server, and at the
// client.
func (w *world) passUpTo(server, client int) {
	seen := make(map[netip.AddrPort]int)
	w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
		seen[to]++
		upTo := client
		if to.String() == serverAddr {
			upTo = server
		}
		switch packetkeys.LevelOf(p) {
		case packetkeys.Clear:
			return upTo >= initialLevel || upTo == firstPacket && seen[to] == 1
		case packetkeys.Handshake:
			return upTo >= handshakeKeys
		}
		return false
	})
}

// becomes returns what becomes of a dialled session.
func (w *world) becomes(l *Listener, d dialOutcome) string {
	var none *NoAnswerError
	var lost *PeerLostError
	if errors.As(d.err, &none) {
		return "lost"
	}
	require.NoError(w.t, d.err)
	go func() {
		if b, err := l.AcceptKCP(context.Background()); err == nil {
			_, _ = b.Write([]byte("served"))
		}
	}()
	_, err := d.c.Write([]byte("x"))
	require.NoError(w.t, err)
	b := make([]byte, 6)
	n, err := d.c.Read(b)
	switch {
	case errors.Is(err, ErrReset):
		return "reset"
	case errors.As(err, &lost):
		return "lost"
	}
	require.NoError(w.t, err)
	return string(b[:n])
}
