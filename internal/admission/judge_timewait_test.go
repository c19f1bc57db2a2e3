package admission

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/stretchr/testify/require"
)

// What was recorded is dropped before anything is answered, and a recorded HELLO before
// any session is asked.
func TestReplayedFirstPackets(t *testing.T) {
	for i, packet := range [][]byte{packetOf(hello, put(info(false))), ping, packetOf(hello, segment(200, 0, 0, 0, 0, 0))} {
		g := newGate("aead", 1)
		if i == 0 {
			g.add(elsewhere, Idle)
		}
		got, _ := g.judged(t, sealed(g.scheme.Outside, packet), true) // the filter knows what this end has sealed
		require.Equal(t, "replay", got)
	}
}

// What each kind of packet of an ended session is answered.
func TestVerdictsInTimeWait(t *testing.T) {
	aborted := Ended{Token: token, Own: 5, Una: 9, Aborted: true}
	orderly := Ended{Token: token, Own: 5, Una: 9}
	fin := signal(wire.Fin, 0, 5)
	for _, test := range []struct {
		name   string
		wires  string
		end    Ended
		at     netip.AddrPort
		shared bool
		packet []byte
		want   string
	}{
		{"data", "plain aead", orderly, from, false, later, "ended, INFO@9, seen"},
		{"data that is missing", "plain aead", Ended{Token: token, Own: 5, Una: 1, End: 7}, from, false, later, "ended, CLOSE@1, seen"},
		{"data of a legacy peer", "plain", Ended{}, from, false, later, "ended, seen"},
		{"FIN", "plain aead", orderly, from, false, fin, "ended, FIN'@9, seen"},
		{"PING", "plain aead", orderly, from, false, ping, "ended, CLOSE@9, seen"},
		{"an answer", "plain aead", orderly, from, false, signal(wire.Pong, 1, 2), "ended, seen"},
		{"aborted", "plain aead", aborted, from, false, later, "ended, ABORT@9, seen"},
		{"from elsewhere", "aead", orderly, elsewhere, false, fin, "ended, FIN'@9, seen"},
		{"from elsewhere, plain", "plain", orderly, elsewhere, false, fin, "unknown, RESET, seen"},
		{"HELLO", "plain aead", orderly, from, false, hello, "ended, seen"},
		{"HELLO, aborted", "plain aead", aborted, from, false, hello, "ended, seen"},
		{"HELLO, dropped", "plain aead", Ended{Token: token, Aborted: true, Dropped: true}, from, false, hello, "ended, ABORT, seen"},
		{"HELLO from elsewhere", "aead", orderly, elsewhere, false, hello, "open"},
		{"keys of another process", "aead", Ended{Mute: true}, from, false, ping, "ended, RESET, seen"},
		{"data, keys of another process", "aead", Ended{Mute: true}, from, false, later, "ended, seen"},
		{"shared, HELLO of another", "plain", Ended{Token: 1}, from, true, hello, "open"},
		{"shared, first data", "plain", Ended{}, from, true, first, "open, offered"},
		{"shared, first data again", "plain", orderly, from, true, first, "ended, seen"},
		{"shared, FIN that shows the token", "plain", orderly, from, true, fin, "ended, FIN'@9, seen"},
		{"shared, CONFIRM that shows it", "plain", orderly, from, true, signal(wire.Confirm, 5, 0), "ended, CONFIRM'@9, seen"},
		{"shared, FIN of another", "plain", Ended{Token: token, Own: 6}, from, true, fin, "ended, seen"},
	} {
		for _, setup := range strings.Fields(test.wires) {
			g := newGate(setup, 1)
			if g.SharedConvs = test.shared; test.shared {
				g.Migrates = false
			}
			g.end(test.at, test.end)
			packet := bytes.Clone(test.packet)
			if setup == "aead" {
				packet = sealed(g.scheme.Outside, packet)
				g.scheme.Forget()
			}
			got, _ := g.judged(t, packet, false)
			require.Equal(t, test.want, got, "%s, %s", test.name, setup)
			if strings.Contains(got, "seen") && setup == "aead" && wire.Code(test.packet[5]) != wire.Hello {
				got, _ = g.judged(t, packet, false)
				require.Equal(t, "replay", got[:6], "%s again", test.name)
			}
			g.now += TimeWait
			again, _ := g.judged(t, test.packet, false)
			require.NotContains(t, again, "ended", "it is over")
		}
	}
}

// Packets of ended sessions with TLS: under its keys, under those of its handshake, or
// when another process had them.
func TestVerdictsOfSealedInTimeWait(t *testing.T) {
	crypto := segment(wire.CmdWins, wire.Crypto, 0, 0, 0, 30)
	for _, test := range []struct {
		name    string
		level   protect.Level // of the keys that were left
		packet  protect.Level
		content []byte
		change  func(*Ended)
		damage  bool
		want    string
	}{
		{"data", protect.Application, protect.Application, later, nil, false, "ended, INFO@9"},
		{"PING", protect.Application, protect.Application, ping, nil, false, "ended, CLOSE@9"},
		{"aborted", protect.Application, protect.Application, later, func(e *Ended) { e.Aborted = true }, false, "ended, ABORT@9"},
		{"damaged", protect.Application, protect.Application, later, nil, true, "cipher"},
		{"of another session inside", protect.Application, protect.Application, packetOf([]byte{1}, later[1:]), nil, false, "unknown"},
		{"short inside", protect.Application, protect.Application, later[:20], nil, false, "short"},
		{"malformed inside", protect.Application, protect.Application, segment(200, 0, 0, 0, 0, 0), nil, false, "ended"},
		{"handshake under other keys", protect.Application, protect.Handshake, crypto, nil, false, "cipher"},
		{"mute", protect.Application, protect.Application, later, func(e *Ended) { e.Mute = true }, false, "ended, a reset, stateless"},
		{"within the handshake", protect.Handshake, protect.Handshake, crypto, nil, false, "ended, ABORT"},
		{"damaged within the handshake", protect.Handshake, protect.Handshake, crypto, nil, true, "ended, cipher"},
		{"an answer within the handshake", protect.Handshake, protect.Handshake, signal(wire.Abort, 1, 0), nil, false, "ended"},
		{"data within the handshake", protect.Handshake, protect.Application, later, nil, false, "ended, ABORT"},
		{"little data within the handshake", protect.Handshake, protect.Application, ping, nil, false, "ended"},
	} {
		g := newGate("tls", 1)
		ours, theirs := g.pair(test.level)
		if test.packet != test.level {
			_, theirs = g.pair(test.packet)
		}
		e := Ended{Token: token, Own: 5, Una: 9, Shaking: test.level == protect.Handshake, Protection: ours}
		if test.change != nil {
			test.change(&e)
		}
		g.end(from, e)
		packet := sealed(theirs, test.content)
		if test.damage {
			packet[len(packet)-1]++
		}
		got, _ := g.judged(t, packet, false)
		require.Equal(t, test.want, strings.TrimSuffix(got, ", seen"), test.name)
	}
}
