package kcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/stats"
)

// echoAfter answers each message of b, after a time, until the session ends.
func echoAfter(b *Conn, think time.Duration) {
	buf := make([]byte, 64)
	for {
		if _, err := io.ReadFull(b, buf); err != nil {
			return
		}
		time.Sleep(think)
		if _, err := b.Write(buf); err != nil {
			return
		}
	}
}

// exchange sends n messages, each a while after the answer to the one before has
// come.
func exchange(t *testing.T, a *Conn, n int, pause time.Duration) {
	buf := make([]byte, 64)
	for range n {
		writeAll(t, a, buf)
		_, err := io.ReadFull(a, buf)
		require.NoError(t, err)
		time.Sleep(pause)
	}
}

// An exchange takes two packets, as ACKs ride with the answer and with the next
// message, but for the few ACKs that do not wait. One that leaves alone is of a
// side that says nothing for longer than an ACK may wait. Round-trip samples stay
// those of the path.
func TestPacketsPerExchange(t *testing.T) {
	const ms = time.Millisecond
	const n = 2 * recovery.UndelayedShare // exchanges
	cases := []struct {
		oneWay, think, pause time.Duration
		client, server       uint64 // packets in n exchanges
	}{
		{0, 0, 0, n, n},
		{50 * time.Microsecond, 0, 0, n, n},
		{50 * time.Microsecond, 5 * ms, 0, n, n + 2},
		{ms, 15 * ms, 0, n, n + 2},
		{ms, 0, 15 * ms, n + 2, n},
		{ms, 10 * ms, 10 * ms, n + 2, n + 2},
		{20 * ms, 0, 0, n, n},
		{20 * ms, 15 * ms, 0, n, n + 2},
		{20 * ms, 0, 16 * ms, n + 2, n},
		{50 * time.Microsecond, 0, 50 * ms, n + 2, n}, // 20 messages a second
		{ms, 20 * ms, 50 * ms, n + 2, n + 2},
		{40 * ms, 50 * ms, 80 * ms, n + 2, n + 2},
		{ms, 110 * ms, 110 * ms, 2 * n, 2 * n},
	}
	for i, c := range cases {
		config := Config{}
		if i%2 == 1 {
			config = LowLatency()
		}
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			inWorld(t, uint64(i/2), netsim.LinkConfig{Delay: c.oneWay}, func(t *testing.T, w *world) {
				a, b, _ := w.pair(&config, &config)
				go echoAfter(b, c.think)
				exchange(t, a, recovery.FirstReplies+5, c.pause)
				before, answered := a.Stats().PacketsSent, b.Stats().PacketsSent
				exchange(t, a, n, c.pause)
				require.Equal(t, c.client, a.Stats().PacketsSent-before)
				require.Equal(t, c.server, b.Stats().PacketsSent-answered)
				for _, s := range []stats.Conn{a.Stats(), b.Stats()} {
					require.Zero(t, s.Retransmits()+s.Repeats)
					most := 2*c.oneWay + min(recovery.MaxAckDelay*ms, max(recovery.MinAckDelay*ms, c.oneWay)) + ms
					require.LessOrEqual(t, s.RTT, most)
				}
			})
		})
	}
}

// ACKs wait for answers once the peer is known to be one of this package.
func TestOnlyExtendedPeersWaitForACKs(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b, l := w.pair(nil, nil)
		for _, c := range []*Conn{a, b, newConn(l.ep, session.Key{}, nil, false)} {
			c.mu.Lock()
			require.Equal(t, c == a || c == b, c.session.Inside().Machine().Inspect().Extensions.AwaitReplies)
			c.mu.Unlock()
		}
	})
}

// What a CLOSE carries counts only if the CLOSE does, once, and if it is neither
// too short nor too long.
func TestForgedCloseReasons(t *testing.T) {
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		b.mu.Lock()
		defer func() { _ = a.Abort(0, "") }()
		defer b.mu.Unlock()
		token, next := ourToken(b), b.session.Inside().Machine().Position().Received
		forge := func(token uint32, payload []byte) {
			p := make([]byte, wire.HeaderSize+len(payload))
			wire.Signal{Code: wire.Close, SN: uint32(next), TS: token}.Encode(wire.Header{Conv: b.Conv(), Wnd: 128}, p)
			wire.PutPayload(p, payload)
			require.NoError(t, b.session.Inside().Machine().Input(p))
		}
		forge(token+1, content(1, closing.ReasonCode)) // with another token it is nothing
		_, said := b.session.Inside().Reasons()
		require.False(t, said)
		require.False(t, b.session.Inside().Closing().Read == closing.ReadClosed)
		forge(token, content(1, closing.ReasonCode-1))
		forge(token, content(1, closing.ReasonCode+closing.MaxReasonText+1))
		_, said = b.session.Inside().Reasons()
		require.False(t, said)
		require.True(t, b.session.Inside().Closing().Read == closing.ReadClosed)
		forge(token, append(make([]byte, closing.ReasonCode), "first"...))
		forge(token, append(make([]byte, closing.ReasonCode), "second"...))
		text, _ := b.session.Inside().Reasons()
		require.Equal(t, "first", text)
	})
}

// A peer that has not announced that it takes reasons gets a CLOSE without.
func TestCloseReasonOfEarlierPeer(t *testing.T) {
	inWorld(t, 3, netsim.LinkConfig{Delay: 5 * time.Millisecond}, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		a.mu.Lock()
		*a.session.Inside().Capabilities() &^= session.CapReason
		a.mu.Unlock()
		require.NoError(t, a.CloseWithError(9, "not for you"))
		_, err := b.Read(make([]byte, 1))
		require.True(t, errors.Is(err, io.EOF), "%v", err)
		require.NoError(t, b.Close())
	})
}

// No text of a peer brings control characters into the text of an error, where it
// would pass for lines of a log. What prints is left as it is.
func TestTextsOfPeersPrint(t *testing.T) {
	for text, shown := range map[string]string{
		"going down: back at 9 o'clock, 3 °C": "going down: back at 9 o'clock, 3 °C",
		"bye\nlevel=ERROR msg=forged":         `"bye\nlevel=ERROR msg=forged"`,
		"\x1b[2J\u202egpj.exe":                `"\x1b[2J\u202egpj.exe"`,
	} {
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			require.NoError(t, a.CloseWithError(9, text))
			_, err := b.Read(make([]byte, 1))
			var reason *PeerCloseError
			require.ErrorAs(t, err, &reason)
			require.Equal(t, PeerCloseError{Code: 9, Text: text}, *reason)
			require.ErrorIs(t, err, ErrPeerClosed)
			require.ErrorContains(t, err, "kcp: session closed by the peer with code 9: "+shown)
			require.NoError(t, b.Close())
		})
	}
}

// signalsOf returns the signals of a packet.
func signalsOf(p []byte) (all []wire.Signal) {
	for len(p) >= wire.HeaderSize {
		h := wire.DecodeHeader(p)
		if s, ok := h.Signal(); ok {
			all = append(all, s)
		}
		p = p[wire.HeaderSize+int(h.Len):]
	}
	return all
}

// A bad packet that begins with a signal from outside says nothing of the good
// one that comes after it.
func TestGoodPacketAfterABadOne(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&Config{KeepAlive: -1}, &Config{KeepAlive: -1})
		time.Sleep(time.Minute)
		from, to := b.LocalAddr().(*net.UDPAddr).AddrPort(), a.LocalAddr().(*net.UDPAddr).AddrPort()
		outside, bad := make([]byte, wire.HeaderSize), make([]byte, wire.HeaderSize)
		wire.Signal{Code: wire.Reset, SN: 1, TS: 2}.Encode(wire.Header{Conv: a.Conv()}, outside)
		h := wire.Header{Conv: a.Conv(), Cmd: wire.CmdWins, Una: 1000} // acknowledges what was never sent
		h.Encode(bad)
		w.net.Inject(from, to, append(outside, bad...))
		writeAll(t, b, []byte("good"))
		time.Sleep(time.Second)
		synctest.Wait()
		a.mu.Lock()
		defer a.mu.Unlock()
		require.EqualValues(t, 1, a.session.Inside().Drops().Una)
		require.Greater(t, a.session.Inside().LastHeard(), time.Minute)
	})
}

// The peer has ended in order, its last answers were lost, and it has forgotten the
// session since. RESET says so, of whichever request it comes first; of PING, too, the
// session has ended in order.
func TestResetOfPingAfterClose(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		readAll(b)
		time.Sleep(time.Second) // until all is acknowledged
		from, to := b.LocalAddr().(*net.UDPAddr).AddrPort(), a.LocalAddr().(*net.UDPAddr).AddrPort()
		w.net.SetFilter(func(_, at netip.AddrPort, _ []byte) bool { return at != to })
		closed := make(chan error, 1)
		go func() { closed <- a.Close() }()
		time.Sleep(2 * time.Second)
		a.mu.Lock()
		ping := a.session.Inside().Opening().Of(opening.Ping).Signal
		require.True(t, a.session.Inside().Opening().Asked(opening.Ping))
		require.NotZero(t, a.session.Inside().Opening().Unanswered&opening.Finish)
		a.mu.Unlock()
		w.net.SetFilter(nil)
		w.net.Inject(from, to, packetOf(a.Conv(), bytesOf(wire.Signal{Code: wire.Reset, SN: ping.SN, TS: ping.TS})))
		synctest.Wait()
		require.NoError(t, <-closed)
		require.ErrorIs(t, a.Err(), net.ErrClosed)
	})
}

// AbortWithError ends the session at the peer on the way of one packet, with the reason,
// whatever waits to be delivered; also while Close lingers. Old data is read before.
func TestAbortWithError(t *testing.T) {
	for _, lingers := range []bool{false, true} {
		inWorld(t, 1, slow, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			_, err := a.Write(content(1, 3<<20)) // more than the receive window
			require.NoError(t, err)
			time.Sleep(time.Second)
			if lingers {
				go func() { _ = a.Close() }()
				time.Sleep(time.Second)
			}
			begin := time.Now()
			require.NoError(t, a.Abort(7, "full"))
			<-b.Done()
			require.LessOrEqual(t, time.Since(begin), oneWay+oneWay/4)
			want := &PeerCloseError{Code: 7, Text: "full", Aborted: true}
			require.Equal(t, want, b.Err())
			require.ErrorIs(t, b.Err(), ErrReset)
			require.NotErrorIs(t, b.Err(), ErrPeerClosed)
			require.EqualError(t, b.Err(), "kcp: session aborted by the peer with code 7: full")
			_, err = b.Write([]byte("late"))
			var reason *PeerCloseError
			require.ErrorAs(t, err, &reason)
			require.Equal(t, want, reason)
			got, err := io.ReadAll(b)
			require.ErrorAs(t, err, &reason)
			require.Equal(t, want, reason)
			require.NotEmpty(t, got)
			require.Less(t, len(got), 3<<20)
			require.Equal(t, net.ErrClosed, a.Err())
			require.ErrorIs(t, a.Abort(8, ""), net.ErrClosed)
		})
	}
}
