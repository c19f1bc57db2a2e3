package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
)

const pathDelay = 20 * time.Millisecond // one way

// swarm is many players in one loop, in virtual time, and the server.
type swarm struct {
	t       *testing.T
	network *netsim.Network
	start   time.Time // of the server
	ends    map[string]*kcp.Endpoint
	group   *kcp.Group
	members map[*kcp.Conn]*member
	all     []*member // in the order of their numbers, from 1
}

// member is a player of a swarm, and what it has got.
type member struct {
	host   string
	conn   *kcp.Conn
	chat   *kcp.Stream
	worlds map[uint32][]byte // by tick
	oldest time.Duration     // of the worlds, when they came
	lines  []string
}

// inSwarm runs f in virtual time, with a server and a player on each of the hosts.
func inSwarm(t *testing.T, hosts []string, f func(t *testing.T, s *swarm)) {
	synctest.Test(t, func(t *testing.T) {
		s := &swarm{
			t: t, group: kcp.NewGroup(), ends: make(map[string]*kcp.Endpoint), members: make(map[*kcp.Conn]*member),
			network: netsim.NewNetwork(1, netsim.LinkConfig{Delay: pathDelay}),
		}
		c := config()
		c.Repetition = kcp.NewRepetition(1)
		open := func(addr string) *kcp.Endpoint {
			pc, err := s.network.Listen(addr)
			require.NoError(t, err)
			e, err := kcp.NewEndpoint(pc, c)
			require.NoError(t, err)
			t.Cleanup(func() { _ = e.Close() })
			return e
		}
		server := open("10.0.0.1:4000")
		l, err := server.Listen()
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		s.start = time.Now()
		go func() { served <- newServer(io.Discard).run(ctx, l) }()
		t.Cleanup(func() {
			for conn := range s.members {
				_ = conn.Abort() // it may have ended
			}
			_ = s.group.Close() // it is open
			stop()
			require.NoError(t, <-served)
		})
		s.group.ReportStreams()
		for i, host := range hosts {
			if s.ends[host] == nil {
				s.ends[host] = open(host + ":0")
			}
			conn, err := s.ends[host].Dial(t.Context(), server.LocalAddr())
			require.NoError(t, err)
			require.NoError(t, s.group.Add(conn))
			chat, err := conn.TryOpenStream(chatOptions)
			require.NoError(t, err)
			require.NoError(t, chat.TryWriteMessage(fmt.Append(nil, i)))
			m := &member{host: host, conn: conn, chat: chat, worlds: make(map[uint32][]byte)}
			s.members[conn], s.all = m, append(s.all, m)
		}
		f(t, s)
	})
}

// run takes what comes to the players for some time.
func (s *swarm) run(d time.Duration) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	events := make([]kcp.Event, 64)
	for ctx.Err() == nil {
		n, _ := s.group.Wait(ctx, events) // the error is that of ctx
		for _, e := range events[:n] {
			s.take(e)
		}
	}
}

func (s *swarm) take(e kcp.Event) {
	m := s.members[e.Conn]
	switch {
	case e.Kind != kcp.EventMessage:
	case e.Stream == m.chat:
		m.lines = append(m.lines, string(e.Data))
	default:
		w, ok := parseWorld(e.Data)
		require.True(s.t, ok)
		require.NotContains(s.t, m.worlds, w.tick)
		m.worlds[w.tick] = bytes.Clone(e.Data)
		m.oldest = max(m.oldest, time.Since(s.start)-time.Duration(w.tick)*tick)
	}
}

// A world that is late does not come any more, whatever a path loses, and newer ones
// do. What is said comes to all, in order. One player's path is no other's matter.
func TestLateWorlds(t *testing.T) {
	const server, clean, lossy, cut = "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"
	const ticks, cutTicks = 100, 20
	inSwarm(t, []string{clean, lossy, cut, clean, lossy}, func(t *testing.T, s *swarm) {
		s.run(time.Second) // all have joined
		for _, m := range s.all {
			m.oldest = 0 // what came while others joined was not taken at once
		}
		bad := netsim.LinkConfig{Delay: pathDelay, Loss: 0.2}
		s.network.SetLink(server, lossy, bad)
		s.network.SetLink(lossy, server, bad)
		s.network.Cut(server, cut)
		first := uint32(time.Since(s.start)/tick) + 1
		speaker := s.all[0]
		var said []string
		for i := range ticks {
			if i == cutTicks {
				s.network.Heal(server, cut)
			}
			if i < width {
				at := position{uint16(i), 4}
				require.NoError(t, speaker.conn.SendDatagram(appendPosition(nil, uint32(i+1), at)))
			}
			said = append(said, fmt.Sprintf("0: line %d", i))
			require.NoError(t, speaker.chat.TryWriteMessage([]byte(said[i][len("0: "):])))
			s.run(tick)
		}
		s.run(time.Second)

		last, ok := parseWorld(speaker.worlds[first+ticks])
		require.True(t, ok)
		require.Len(t, last.players, len(s.all))
		require.Equal(t, position{width - 1, 4}, last.players[1])
		for x := range width {
			require.EqualValues(t, 1, last.trail[4*width+x])
		}
		late := 0 // worlds that a player on a bad path did not get
		for _, m := range s.all {
			require.Equal(t, said, m.lines[len(m.lines)-ticks:], m.host)
			got := 0
			for n := range uint32(ticks) {
				if w := m.worlds[first+n]; w != nil {
					require.Equal(t, speaker.worlds[first+n], w)
					got++
				}
			}
			t.Logf("%s: %d worlds of %d, the oldest %v old", m.host, got, ticks, m.oldest)
			require.LessOrEqual(t, m.oldest, worldLifetime+pathDelay, m.host)
			switch m.host {
			case clean:
				require.Equal(t, ticks, got)
				require.InDelta(t, pathDelay, m.oldest, float64(time.Millisecond))
			case lossy:
				require.Greater(t, got, ticks/2)
				late += ticks - got
			case cut:
				// What was not too old at the end of the cut may still have come.
				require.InDelta(t, ticks-cutTicks, got, 3)
			}
		}
		require.Positive(t, late, "some were given up")
	})
}
