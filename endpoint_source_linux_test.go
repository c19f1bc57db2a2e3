package kcp

import (
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/stretchr/testify/require"
)

// atAddress returns the address of a listener on all addresses of the host, at one of
// 127.0.0.0/8.
func atAddress(l *Listener, last byte) *net.UDPAddr {
	return &net.UDPAddr{IP: net.IPv4(127, 0, 0, last).To4(), Port: l.Addr().(*net.UDPAddr).Port}
}

// After a takeover, sessions that stay in the old process, new ones, and answers of
// either process outside of sessions leave from the address that was asked.
func TestTakeoverAnswersFromAskedAddress(t *testing.T) {
	for name, config := range map[string]*Config{
		"plain": {}, "AES-GCM": {Cipher: testenv.AEAD(t)}, "TLS": secured(Config{}), "Shards": {Shards: 2},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := Listen("udp4", "0.0.0.0:0", config)
			require.NoError(t, err)
			g := serves(t, "g0", l)
			var clients []*client
			for _, next := range []string{"g1", "g2"} {
				for last := range byte(3) {
					clients = append(clients, dials(t, atAddress(g.l, 1+last), config, g.name))
				}
				g = g.handsOver(t, next, config)
				for _, c := range clients {
					c.echoes(t, 50_000)
				}
			}
			require.Equal(t, len(clients), g.l.Stats().PredecessorSessions)
			dials(t, atAddress(g.l, 2), config, "g2").echoes(t, 50_000)
		})
	}
}

// What a process remembers of an old session answers from the address that was asked,
// after a takeover too.
func TestTakeoverTimeWaitAnswersFromAskedAddress(t *testing.T) {
	l, err := Listen("udp4", "0.0.0.0:0", nil)
	require.NoError(t, err)
	g0 := serves(t, "g0", l)
	keeps := dials(t, atAddress(l, 1), nil, "g0")
	pc, err := net.DialUDP("udp4", nil, atAddress(l, 2))
	require.NoError(t, err)
	defer pc.Close()
	e, err := NewEndpoint(pc, nil)
	require.NoError(t, err)
	c, err := e.Dial(t.Context(), pc.RemoteAddr())
	require.NoError(t, err)
	g1 := g0.handsOver(t, "g1", nil)
	require.NoError(t, c.Close())
	await.True(t, func() bool { return g1.l.Stats().PredecessorSessions == 1 })
	require.NoError(t, e.Close())
	answers := func(nonce uint32) {
		_, err = pc.Write(packetOf(c.Conv(), bytesOf(signal{sigPing, nonce, 2})))
		require.NoError(t, err)
		b := make([]byte, 2000)
		for n := 0; !slices.Contains(signalsOf(b[:n]), signal{sigPing | sigAnswer, nonce, 2}); { // others may be late
			n, err = pc.Read(b)
			require.NoError(t, err)
		}
	}
	answers(1) // beside the old process
	require.NoError(t, keeps.Close())
	require.NoError(t, <-g0.left)
	answers(2) // and without
}

// redirect makes packets come from another port, and go to another address of the
// server, as a NAT in front of both may. Answers from elsewhere are lost.
func (r *rebinder) redirect(t *testing.T, to *net.UDPAddr) {
	back, err := net.DialUDP("udp4", nil, to)
	require.NoError(t, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.back.Close()
	r.back, r.to = back, nil
	go func() {
		b := make([]byte, 65536)
		for {
			n, err := back.Read(b)
			if err != nil {
				return
			}
			r.mu.Lock()
			_, _ = r.front.WriteToUDP(b[:n], r.peer)
			r.mu.Unlock()
		}
	}()
}

// A session that migrates goes on at the address that its peer sends to from then on, in
// a process that has handed its sockets over too.
func TestMigrationFollowsAskedAddress(t *testing.T) {
	for name, config := range map[string]*Config{"AES-GCM": {Cipher: testenv.AEAD(t)}, "TLS": secured(Config{})} {
		for _, takeover := range []bool{false, true} {
			t.Run(fmt.Sprint(name, takeover), func(t *testing.T) {
				l, err := Listen("udp4", "0.0.0.0:0", config)
				require.NoError(t, err)
				g := serves(t, "g0", l)
				relay := newRebinder(t, atAddress(l, 1))
				c := dials(t, relay.addr(), config, "g0")
				var server *Conn
				for s := range l.Endpoint().Sessions() {
					server = s
				}
				require.Equal(t, atAddress(l, 1), server.LocalAddr())
				if takeover {
					g = g.handsOver(t, "g1", config)
				}
				for _, last := range []byte{2, 2, 3} {
					relay.redirect(t, atAddress(g.l, last))
					c.echoes(t, 50_000)
					require.Equal(t, atAddress(g.l, last), server.LocalAddr())
				}
			})
		}
	}
}
