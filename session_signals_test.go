package kcp

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/delayedack"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/replyrhythm"
	"github.com/arqnet/kcp/netsim"
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
		_, err := a.Write(buf)
		require.NoError(t, err)
		_, err = io.ReadFull(a, buf)
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
	const n = 2 * replyrhythm.Sampled // exchanges
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
				exchange(t, a, replyrhythm.FirstReplies+5, c.pause)
				before, answered := a.Stats().PacketsSent, b.Stats().PacketsSent
				exchange(t, a, n, c.pause)
				require.Equal(t, c.client, a.Stats().PacketsSent-before)
				require.Equal(t, c.server, b.Stats().PacketsSent-answered)
				for _, s := range []ConnStats{a.Stats(), b.Stats()} {
					require.Zero(t, s.Retransmits()+s.Repeats)
					most := 2*c.oneWay + min(delayedack.MaxDelay*ms, max(delayedack.MinDelay*ms, c.oneWay)) + ms
					require.LessOrEqual(t, s.RTT, most)
				}
			})
		})
	}
}

// A loss is repaired as soon as if ACKs did not wait: that of a message by the
// client, and that of an answer when the message is repeated, as the ACK was in
// it.
func TestRepairOfExchanges(t *testing.T) {
	repair := func(t *testing.T, seed uint64, waits bool, lost string) (took time.Duration) {
		inWorld(t, seed, netsim.LinkConfig{Delay: time.Millisecond}, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			for _, c := range []*Conn{a, b} {
				c.mu.Lock()
				c.kcp.cfg.ext.AwaitReplies = waits
				c.mu.Unlock()
			}
			go echoAfter(b, 0)
			exchange(t, a, replyrhythm.FirstReplies+10, 50*time.Millisecond)
			a.mu.Lock()
			hold := a.kcp.rcv.ackPolicy.Replies.Hold
			a.mu.Unlock()
			require.Equal(t, waits, hold > 50)
			dropped := false
			w.net.SetFilter(func(from, to netip.AddrPort, packet []byte) bool {
				if dropped || from.Addr().String() != lost {
					return true
				}
				dropped = true
				return false
			})
			start := time.Now()
			exchange(t, a, 1, 0)
			took = time.Since(start)
			require.True(t, dropped)
			exchange(t, a, 5, 50*time.Millisecond)
			require.Equal(t, uint64(1), a.Stats().Retransmits())
			require.LessOrEqual(t, b.Stats().Retransmits(), uint64(1))
		})
		return took
	}
	for i, lost := range []string{"10.0.0.1", "10.0.0.2"} {
		t.Run(lost, func(t *testing.T) {
			plain, waits := repair(t, uint64(i), false, lost), repair(t, uint64(i), true, lost)
			require.LessOrEqual(t, waits, plain+2*time.Millisecond)
		})
	}
}

// ACKs wait for answers once the peer is known to be one of this package.
func TestOnlyExtendedPeersWaitForACKs(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b, l := w.pair(nil, nil)
		for _, c := range []*Conn{a, b, newConn(l.ep, sessionKey{}, nil)} {
			c.mu.Lock()
			require.Equal(t, c == a || c == b, c.kcp.cfg.ext.AwaitReplies)
			c.mu.Unlock()
		}
	})
}

// A wake-up whose reason has gone is moved, if the next is much later, or costs no
// step of the session. The timer after it goes off at its time, and so does what
// wake has asked for.
func TestNeedlessWakeUps(t *testing.T) {
	inWorld(t, 0, netsim.LinkConfig{Delay: 20 * time.Millisecond}, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		bothWays(t, a, b, content(1, 64), content(2, 64))
		time.Sleep(10 * time.Second)
		_, err := a.Write([]byte{1})
		require.NoError(t, err)
		receive(t, b, []byte{1})
		w.net.Cut("10.0.0.1", "10.0.0.2")
		_, err = b.Write([]byte{2}) // takes the ACK along
		require.NoError(t, err)
		b.mu.Lock()
		wakeAt, dueAt, now := b.timers.wakeAt, b.timers.dueAt, b.ep.now()
		timeout := time.Duration(b.kcp.firstTimeout(b.kcp.snd.oldest().rto)) * time.Millisecond
		b.wake(now + 25*time.Millisecond)
		b.timers.dueAt = dueAt   // its reason has gone
		b.live.Waits(now, false) // a step would tell the opposite
		before := b.live
		b.mu.Unlock()
		require.Equal(t, dueAt, wakeAt, "that of the delayed ACK stays")
		require.InDelta(t, now+timeout, dueAt, float64(2*time.Millisecond))
		time.Sleep(30 * time.Millisecond)
		b.mu.Lock()
		stepped, wakeAt := b.live != before, b.timers.wakeAt
		b.mu.Unlock()
		require.False(t, stepped)
		require.Equal(t, dueAt, wakeAt)
		time.Sleep(dueAt - b.ep.now() - 1)
		require.Zero(t, b.Stats().TimeoutRetransmits)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		require.Equal(t, uint64(1), b.Stats().TimeoutRetransmits)

		b.mu.Lock()
		now = b.ep.now()
		b.wake(now)
		b.schedule(now + 1)
		dueAt = b.timers.dueAt
		b.mu.Unlock()
		require.Equal(t, now, dueAt, "what wake was called for is forgotten")
	})
}

// A call is woken although two readers respond to its session at once, of which
// one holds the wake-up back.
func TestHeldWakeUps(t *testing.T) {
	inWorld(t, 3, clean, func(t *testing.T, w *world) {
		a, _, _ := w.pair(nil, nil)
		woken := false
		begun := false
		go a.await(blocking{}, func() (p pause, err error) {
			if woken = begun; !woken {
				begun, p.on = true, &a.io.canRead
			}
			return p, nil
		}, nil)
		synctest.Wait()
		a.mu.Lock()
		a.io.wakes = holdWakes
		a.io.canRead.Broadcast()
		a.mu.Unlock()
		synctest.Wait()
		a.mu.Lock()
		require.False(t, woken)
		a.mu.Unlock()
		a.respond(a.ep.now(), nil)
		synctest.Wait()
		a.mu.Lock()
		defer a.mu.Unlock()
		require.True(t, woken)
	})
}

// wantReason checks that err says that the peer has closed with code and text.
func wantReason(t *testing.T, err error, code uint64, text string) {
	t.Helper()
	var reason *PeerCloseError
	require.ErrorAs(t, err, &reason)
	require.Equal(t, PeerCloseError{Code: code, Text: text}, *reason)
	require.ErrorIs(t, err, ErrPeerClosed)
}

// What a CLOSE carries counts only if the CLOSE does, once, and if it is neither
// too short nor too long.
func TestForgedCloseReasons(t *testing.T) {
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		b.mu.Lock()
		defer func() { _ = a.Abort() }()
		defer b.mu.Unlock()
		token, next := b.hs.token, b.kcp.position().received
		forge := func(token uint32, payload []byte) {
			p := make([]byte, headerSize+len(payload))
			signal{sigClose, uint32(next), token}.encode(header{conv: b.Conv(), wnd: 128}, p)
			putPayload(p, payload)
			require.NoError(t, b.kcp.Input(p))
		}
		forge(token+1, content(1, closing.ReasonCode)) // with another token it is nothing
		require.Nil(t, b.hs.reasons)
		require.False(t, b.closing.Read == closing.ReadClosed)
		forge(token, content(1, closing.ReasonCode-1))
		forge(token, content(1, closing.ReasonCode+closing.MaxReasonText+1))
		require.Nil(t, b.hs.reasons)
		require.True(t, b.closing.Read == closing.ReadClosed)
		forge(token, append(make([]byte, closing.ReasonCode), "first"...))
		forge(token, append(make([]byte, closing.ReasonCode), "second"...))
		require.Equal(t, "first", b.hs.reasons.peer.Text)
	})
}

// A peer that has not announced that it takes reasons gets a CLOSE without.
func TestCloseReasonOfEarlierPeer(t *testing.T) {
	inWorld(t, 3, netsim.LinkConfig{Delay: 5 * time.Millisecond}, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		a.mu.Lock()
		a.hs.capabilities &^= capReason
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
			var log records
			a, b, _ := w.pair(nil, &Config{Logger: log.Logger()})
			require.NoError(t, a.CloseWithError(9, text))
			_, err := b.Read(make([]byte, 1))
			wantReason(t, err, 9, text)
			require.ErrorContains(t, err, "kcp: session closed by the peer with code 9: "+shown)
			require.NoError(t, b.Close())
		})
	}
	requirePrints := func(err error) {
		require.Equal(t, -1, strings.IndexFunc(err.Error(), func(r rune) bool { return !strconv.IsPrint(r) }), "%q", err.Error())
		require.True(t, utf8.ValidString(err.Error()), "%q", err.Error())
	}
	inWorld(t, 0, clean, func(t *testing.T, w *world) { // protocols of a client
		a, b := secured(Config{}), secured(Config{})
		a.TLS, b.TLS = a.TLS.Clone(), b.TLS.Clone()
		a.TLS.NextProtos, b.TLS.NextProtos = []string{"x\nlevel=ERROR", "\xff"}, []string{"game/1"}
		_, dialErr, acceptErr := w.dialTLS(a, b)
		requirePrints(dialErr)
		requirePrints(acceptErr)
		require.ErrorContains(t, acceptErr, `x\nlevel=ERROR`)
	})
	inWorld(t, 0, clean, func(t *testing.T, w *world) { // names in a certificate
		a, b := secured(Config{}), secured(Config{})
		b.TLS = b.TLS.Clone()
		b.TLS.Certificates = []tls.Certificate{certificate(t, &a.TLS.Certificates[0], false, "y\nlevel=ERROR")}
		_, dialErr, acceptErr := w.dialTLS(a, b)
		requirePrints(dialErr)
		requirePrints(acceptErr)
		require.ErrorContains(t, dialErr, `level=ERROR`)
	})
}

// signalsOf returns the signals of a packet.
func signalsOf(p []byte) (all []signal) {
	for len(p) >= headerSize {
		h := decodeHeader(p)
		if s, ok := h.signal(); ok {
			all = append(all, s)
		}
		p = p[headerSize+int(h.len):]
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
		outside, bad := make([]byte, headerSize), make([]byte, headerSize)
		signal{sigReset, 1, 2}.encode(header{conv: a.Conv()}, outside)
		h := header{conv: a.Conv(), cmd: cmdWins, una: 1000} // acknowledges what was never sent
		h.encode(bad)
		w.net.Inject(from, to, append(outside, bad...))
		_, err := b.Write([]byte("good"))
		require.NoError(t, err)
		time.Sleep(time.Second)
		synctest.Wait()
		a.mu.Lock()
		defer a.mu.Unlock()
		require.EqualValues(t, 1, a.rare.dropped.Una)
		require.Greater(t, a.live.LastHeard(), time.Minute)
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
		ping := a.hs.Of(opening.Ping).Signal
		require.True(t, a.hs.Asked(opening.Ping))
		require.NotZero(t, a.hs.Unanswered&opening.Finish)
		a.mu.Unlock()
		w.net.SetFilter(nil)
		w.net.Inject(from, to, packetOf(a.Conv(), bytesOf(signal{sigReset, ping.sn, ping.ts})))
		synctest.Wait()
		require.NoError(t, <-closed)
		require.ErrorIs(t, a.Err(), net.ErrClosed)
	})
}

// The socket of a Dial stays for the peer that has not got the reason of its end.
func TestAbortReasonOfADialledSocket(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		pc, err := w.net.Listen("10.0.0.2:5000")
		require.NoError(t, err)
		e := newEndpoint(nil, true, pc)
		e.socket.disposable = true
		l := w.listen(nil)
		a := w.dial(e)
		b := accepted(t, l)
		w.say(a, "hello")
		w.hear(b, "hello")
		w.settle()
		lost := false
		w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool {
			loses := !lost && from.String() != serverAddr
			lost = lost || loses
			return !loses
		})
		require.NoError(t, a.AbortWithError(7, "full"))
		time.Sleep(time.Second)
		require.True(t, lost)
		w.say(b, "are you there?")
		_, err = b.Read(make([]byte, 1))
		var reason *PeerCloseError
		require.ErrorAs(t, err, &reason)
		require.Equal(t, &PeerCloseError{Code: 7, Text: "full", Aborted: true}, reason)
		time.Sleep(closing.DialledHold)
		require.True(t, e.stopped())
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
			require.NoError(t, a.AbortWithError(7, "full"))
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
			require.ErrorIs(t, a.AbortWithError(8, ""), net.ErrClosed)
		})
	}
}
