package kcp

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// resettable returns settings whose stateless resets count after a restart.
func resettable(config Config) *Config {
	config.StatelessResetKey = []byte("the key of these servers, all but secret")
	return secured(config)
}

// secureLife opens a session with a server, and lets it be in use for a while.
func (w *world) secureLife(config *Config) (a, b *Conn, client, server *netsim.PacketConn) {
	w.t.Helper()
	l, server := w.server(config)
	e, client := w.endpoint("10.0.0.2:5000", config)
	a = w.dial(e)
	b = accepted(w.t, l)
	bothWays(w.t, a, b, []byte("here"), []byte("here"))
	time.Sleep(3 * time.Second)
	return a, b, client, server
}

// wantReadErr checks that a Read fails with err, and returns how long it took.
func wantReadErr(t *testing.T, c *Conn, want error) time.Duration {
	t.Helper()
	start := time.Now()
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, want)
	return time.Since(start)
}

// requireResetNow writes at c, and checks that the answer resets its session.
func requireResetNow(t *testing.T, c *Conn) {
	t.Helper()
	writeAll(t, c, []byte("anyone there?"))
	require.Equal(t, roundTrip, wantReadErr(t, c, ErrReset))
}

// A peer that was restarted with the same key says so in answer to the next
// packet; nothing of the old session opens a new one.
func TestTLSRestarted(t *testing.T) {
	t.Run("writes", func(t *testing.T) {
		for _, config := range []Config{{}, {FEC: FEC{Data: 2, Parity: 1}}, {SharedConvs: true}} {
			inWorld(t, 1, clean, func(t *testing.T, w *world) {
				a, _, _, server := w.secureLife(resettable(config))
				l := w.restarted(server, resettable(config))
				requireResetNow(t, a)
				require.EqualValues(t, 1, l.Endpoint().Stats().ResetsSent)
				time.Sleep(time.Minute)
				require.Zero(t, l.Endpoint().Stats().Sessions)
			})
		}
	})
	t.Run("closes", func(t *testing.T) { // which succeeds, as with any peer that has forgotten
		inWorld(t, 3, clean, func(t *testing.T, w *world) {
			a, _, _, server := w.secureLife(resettable(Config{}))
			w.restarted(server, resettable(Config{}))
			start := time.Now()
			require.NoError(t, a.Close())
			require.Equal(t, roundTrip, time.Since(start))
			require.NotErrorIs(t, a.Err(), ErrReset)
		})
	})
	t.Run("client", func(t *testing.T) {
		inWorld(t, 4, clean, func(t *testing.T, w *world) {
			_, b, client, _ := w.secureLife(resettable(Config{}))
			require.NoError(t, client.Close())
			w.endpoint("10.0.0.2:5000", resettable(Config{}))
			requireResetNow(t, b)
		})
	})
	t.Run("migrated", func(t *testing.T) {
		for _, lost := range []bool{false, true} { // what tells the key for the new address
			inWorld(t, 5, clean, func(t *testing.T, w *world) {
				a, b, client, server := w.secureLife(resettable(Config{}))
				require.NoError(t, client.Rebind("10.0.0.3:6000"))
				w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool {
					return !lost || from.String() != serverAddr || b.Stats().Moves == 0
				})
				bothWaysOrNot(t, a, b, !lost)
				time.Sleep(2 * time.Second)
				w.net.SetFilter(nil)
				bothWaysOrNot(t, a, b, true)
				time.Sleep(time.Minute) // a PING
				require.Equal(t, 1, b.Stats().Moves)
				w.restarted(server, resettable(Config{}))
				requireResetNow(t, a)
			})
		}
	})
	t.Run("another key", func(t *testing.T) {
		inWorld(t, 6, clean, func(t *testing.T, w *world) {
			a, _, _, server := w.secureLife(resettable(Config{}))
			l := w.restarted(server, secured(Config{}))
			writeAll(t, a, []byte("anyone there?"))
			_, err := a.Read(make([]byte, 1))
			require.ErrorAs(t, err, new(*PeerLostError))
			require.Greater(t, l.Endpoint().Stats().ResetsSent, uint64(1))
		})
	})
}

// bothWaysOrNot writes at a, and reads that at b if it is to arrive.
func bothWaysOrNot(t *testing.T, a, b *Conn, arrives bool) {
	t.Helper()
	writeAll(t, a, []byte("moved"))
	if arrives {
		require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Minute)))
		receive(t, b, []byte("moved"))
	}
}

// An endpoint that has given a session up says so long after, without a key of
// its Config: a peer that was away for that time learns of it at once.
func TestTLSForgottenSession(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		l := w.listen(secured(Config{}))
		e, _ := w.endpoint("10.0.0.2:5000", secured(Config{PeerTimeout: -1}))
		a := w.dial(e)
		b := accepted(t, l)
		bothWays(t, a, b, []byte("here"), []byte("here"))
		w.net.SetFilter(func(_, _ netip.AddrPort, _ []byte) bool { return false })
		writeAll(t, b, []byte("anyone there?"))
		_, err := b.Read(make([]byte, 1))
		var lost *PeerLostError
		require.ErrorAs(t, err, &lost)
		time.Sleep(session.TimeWaitTime + time.Second)
		w.net.SetFilter(nil)
		requireResetNow(t, a)
	})
}

// resetOf returns a stateless reset of a session under a key of the tests'
// choice, made at a time in seconds after the key was told.
func resetOf(k *protect.ToldKey, conv uint32, after int) []byte {
	packet := make([]byte, protect.MaxReset)
	k.Reset(rand.Reader, packet, conv, k.Since+uint32(after))
	return packet
}

// told returns the key that an end has told its peer, and known the one that it
// knows of its peer; nil: none.
func told(c *Conn) *protect.ToldKey {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session.Inside().ResetKeys().Ours
}

func known(c *Conn) *protect.ToldKey { return c.session.Inside().ResetKeys().Theirs.Load() }

// No reset ends a session but one of its peer's that was made while there was no
// session.
func TestTLSForgedResets(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		var early [][]byte // resets that the server makes before it knows the session
		server, client := netip.MustParseAddrPort(serverAddr), netip.MustParseAddrPort("10.0.0.2:5000")
		held := false
		w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
			switch protect.LevelOf(p) {
			case protect.Clear:
				if !held && from == client {
					held = true
					ask := make([]byte, 100)
					copy(ask, p[:4])
					ask[4] = 0xa2
					w.net.Inject(from, to, ask)
					p = bytes.Clone(p)
					time.AfterFunc(3*time.Second, func() { w.net.Inject(from, to, p) })
					return false
				}
				return true
			case protect.Application:
				if from == server && len(p) <= protect.MaxReset {
					early = append(early, bytes.Clone(p))
					return false
				}
			}
			return true
		})
		config := resettable(Config{})
		a, b, _, _ := w.secureLife(config)
		require.Len(t, early, 1)
		require.EqualValues(t, 1, b.ep.Stats().ResetsSent)
		w.net.SetFilter(nil)
		other := w.dial(a.ep)
		bothWays(t, other, accepted(t, b.ep.listenerOf()), []byte("up"), []byte("down"))
		ours, theirs := told(a), known(a)
		require.Equal(t, *theirs, *told(b))
		require.Equal(t, *ours, *known(b))
		forged := map[string][]byte{
			"made before the session":  early[0],
			"made with its key":        resetOf(theirs, a.Conv(), 0),
			"made before its key":      resetOf(theirs, a.Conv(), -1),
			"of another session":       resetOf(known(other), a.Conv(), 1),
			"of the session's own end": resetOf(ours, a.Conv(), 1),
			"of no key":                resetOf(new(protect.ToldKey), a.Conv(), 1<<30),
			"too short":                resetOf(theirs, a.Conv(), 1)[1:],
		}
		for i := range 8 * protect.MaxReset {
			p := resetOf(theirs, a.Conv(), 1)
			p[i/8] ^= 1 << (i % 8)
			w.net.Inject(server, client, p)
		}
		for _, p := range forged {
			w.net.Inject(server, client, p)
		}
		w.net.Inject(elsewhere, client, resetOf(theirs, a.Conv(), 1))
		time.Sleep(time.Second)
		bothWays(t, a, b, []byte("still"), []byte("here"))

		w.net.Inject(server, client, resetOf(theirs, a.Conv(), 1))
		wantReadErr(t, a, ErrReset)
	})
	inWorld(t, 2, clean, func(t *testing.T, w *world) { // no reset is made of a session that is elsewhere, or in TIME-WAIT
		a, b, pc, _ := w.secureLife(resettable(Config{}))
		old := netip.MustParseAddrPort("10.0.0.2:5000")
		require.NoError(t, pc.Rebind("10.0.0.3:6000"))
		bothWaysOrNot(t, a, b, true)
		ask := make([]byte, 100)
		binary.LittleEndian.PutUint32(ask, a.Conv())
		ask[4] = 0xa3
		to := netip.MustParseAddrPort(serverAddr)
		w.net.Inject(old, to, ask)
		w.settle()
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		w.net.Inject(old, to, bytes.Clone(ask))
		w.net.Inject(elsewhere, to, bytes.Clone(ask))
		w.settle()
		require.Zero(t, b.ep.Stats().ResetsSent)
		time.Sleep(session.TimeWaitTime)
		w.net.Inject(old, to, bytes.Clone(ask))
		w.settle()
		require.EqualValues(t, 1, b.ep.Stats().ResetsSent)
	})
}

// listenerOf returns the endpoint's listener.
func (e *Endpoint) listenerOf() *Listener {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.listener
}

// Endpoints without a session do not go on to answer each other. What a flood
// causes is bounded, and smaller than the flood, packet by packet.
func TestTLSResetsAreBounded(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		config := secured(Config{})
		l := w.listen(config)
		e, _ := w.endpoint("10.0.0.2:5000", config)
		from, to := netip.MustParseAddrPort("10.0.0.2:5000"), netip.MustParseAddrPort(serverAddr)
		for size := range 2 * protect.MaxReset {
			packet := content(uint64(size), size)
			if size > 4 {
				packet[4] = 0xa2 | byte(size)&1
			}
			sent, before := 0, l.Endpoint().Stats().ResetsSent
			w.net.SetFilter(func(_, _ netip.AddrPort, p []byte) bool {
				if sent++; sent > 1 {
					require.Less(t, len(p), size)
				}
				return true
			})
			w.net.Inject(from, to, packet)
			time.Sleep(time.Second)
			require.Equal(t, size > protect.MaxReset, l.Endpoint().Stats().ResetsSent > before, "%d bytes", size)
		}
		require.Zero(t, e.Stats().ResetsSent)
		w.net.SetFilter(nil)

		a := w.dial(e)
		b := accepted(t, l)
		s := l.Endpoint().Stats()
		const flood = 2000
		for i := range flood {
			packet := content(uint64(i), 1200)
			packet[4] = 0xa2
			w.net.Inject(netip.AddrPortFrom(floodAddr(i).Addr(), 1), to, packet)
		}
		w.settle()
		n := l.Endpoint().Stats().ResetsSent - s.ResetsSent
		require.InDelta(t, admission.ResetRate/10, n, admission.ResetRate/20)
		require.EqualValues(t, flood, n+l.Endpoint().Stats().DropReplies-s.DropReplies)
		require.LessOrEqual(t, l.Endpoint().Stats().BytesSent-s.BytesSent, n*protect.MaxReset)
		bothWays(t, a, b, []byte("up"), []byte("down"))
	})
}

// A key that another may know is not told, nor taken.
func TestTLSResetKeyIsNotTold(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) { // a session of the same id is elsewhere
		config := secured(Config{})
		l := w.listen(config)
		x, _ := w.endpoint("10.0.0.2:5000", config)
		y, _ := w.endpoint("10.0.0.3:5000", config)
		a := w.dialWith(x, serverAddr, DialOptions{Conv: id(7)})
		accepted(t, l)
		time.Sleep(time.Second)
		require.NotNil(t, known(a))
		for i := range 2 {
			c := w.dialWith(y, serverAddr, DialOptions{Conv: id(7)})
			b := accepted(t, l)
			bothWays(t, c, b, []byte("up"), []byte("down"))
			time.Sleep(time.Second)
			require.Nil(t, told(b))
			require.Nil(t, known(c))
			require.NoError(t, c.Close())
			require.NoError(t, b.Close())
			if i == 0 {
				require.NoError(t, a.Abort(0, "")) // it is in TIME-WAIT for the second
			}
			require.NoError(t, y.Close())
			y, _ = w.endpoint("10.0.0.4:0", config)
		}
	})
	inWorld(t, 1, clean, func(t *testing.T, w *world) { // more has ended than TIME-WAIT holds; and endpoints of one secret
		config := resettable(Config{})
		l := w.listen(config)
		e, _ := w.endpoint("10.0.0.2:5000", config)
		server := l.Endpoint()
		server.mu.Lock()
		for i := range admission.MaxTimeWaits + 1 {
			server.table.TimeWaits.Add(session.Key{Conv: uint32(i)}, session.TimeWait{}, false, server.now())
		}
		server.mu.Unlock()
		for _, want := range []bool{false, true} {
			w.dial(e)
			b := accepted(t, l)
			time.Sleep(session.TimeWaitTime)
			require.Equal(t, want, told(b) != nil)
		}
		keys := make(map[protect.ResetKey]bool)
		for _, of := range []*Endpoint{e, server} {
			for _, addr := range []string{"10.0.0.5:1", "10.0.0.6:1", "10.0.0.5:2"} {
				for conv := range uint32(2) {
					keys[session.Key{Addr: netip.MustParseAddrPort(addr), Conv: conv}.ResetKey(of.table.ResetSecret, of.LocalAddr().String())] = true
				}
			}
		}
		require.Len(t, keys, 2*3*2)
	})
	inWorld(t, 2, clean, func(t *testing.T, w *world) { // the handshake took long
		config := secured(Config{DialTimeout: time.Minute})
		l := w.listen(config)
		e, _ := w.endpoint("10.0.0.2:5000", config)
		w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool { return from.String() != "10.0.0.2:5000" })
		time.AfterFunc(session.ResetKeyWithin, func() { w.net.SetFilter(nil) })
		a := w.dial(e)
		b := accepted(t, l)
		bothWays(t, a, b, []byte("up"), []byte("down"))
		time.Sleep(time.Second)
		require.NotNil(t, told(b))
		require.Nil(t, known(a))
		require.NotNil(t, known(b))
	})
}
