package kcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// Sessions that have nothing to do that may be sent sleep.

// counted is an endpoint whose wake-ups of sessions are counted.
type counted struct {
	*Endpoint
	wakes atomic.Int64
}

// counts opens an endpoint at an address.
func (w *world) counts(addr string, config *Config) *counted {
	w.t.Helper()
	pc, err := w.net.Listen(addr)
	require.NoError(w.t, err)
	e := &counted{Endpoint: makeEndpoint(config, false, w.socket(pc))}
	e.Endpoint.wakes.Init(1, e.epoch, (*Conn).wakeIndex, (*Conn).wakeHash, nil, func(c *Conn) {
		e.wakes.Add(1)
		c.onWake()
	}, udp.Delayed)
	e.start()
	w.t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
	return e
}

// silentPeers is the addresses of those that open sessions in the name of others.
const silentPeers = 50

// flood opens sessions by packets from as many addresses.
func (w *world) flood(packet func(conv uint32) []byte) {
	for i := range uint32(silentPeers) {
		w.net.Inject(floodAddr(int(i)), netip.MustParseAddrPort("10.0.0.1:4000"), packet(1000+i))
		synctest.Wait()
	}
}

// answersMore has each session that is accepted send back what comes, and more.
func answersMore(t *testing.T, l *Listener, more int) {
	go func() {
		for {
			c, err := l.AcceptKCP(context.Background())
			if err != nil {
				return
			}
			go func() {
				b := make([]byte, 1000)
				for n, err := c.Read(b); err == nil; n, err = c.Read(b) {
					_, _ = c.Write(append(b[:n:n], content(1, more)...))
				}
			}()
		}
	}()
}

// A session whose peer's address is not validated wakes a few times in all while nothing
// comes from there, whatever waits for it, and ends after seconds. Sessions in other
// states that may send nothing do not wake for more than what they send.
func TestSilentSessionsSleep(t *testing.T) {
	hello := func(conv uint32) []byte {
		return packetOf(conv, segment(cmdWask, byte(sigHello), conv, 0, 0, ""), segment(cmdWins, byte(sigInfo), infoSignal().ts, infoSignal().sn, 0, ""))
	}
	data := func(conv uint32) []byte { return packetOf(conv, push(0, 0, "x")) }
	full := func(conv uint32) []byte { return packetOf(conv, push(0, 0, string(content(1, 500)))) }
	for name, tc := range map[string]struct {
		config Config
		more   int // bytes that the application writes; negative: it does not accept
		packet func(conv uint32) []byte
	}{
		"data, not accepted":         {packet: data, more: -1},
		"data, echoed":               {packet: data},
		"data, echoed, no time-outs": {packet: data, config: Config{PeerTimeout: -1, KeepAlive: -1}},
		"data, much more":            {packet: data, more: 100_000},
		"full, much more":            {packet: full, more: 100_000},
		"full, much more, no delay":  {packet: full, more: 100_000, config: LowLatency()},
		"full, much more, classic":   {packet: full, more: 100_000, config: Classic()},
		"full, much more, with FEC":  {packet: full, more: 100_000, config: Config{FEC: FEC{Data: 10, Parity: 3}}},
		"full, much more, capped":    {packet: full, more: 100_000, config: Config{MaxRate: 1 << 20}},
		"window of zero":             {packet: func(conv uint32) []byte { return packetOf(conv, zeroWindow(push(0, 0, string(content(1, 500))))) }, more: 10_000},
		"HELLO":                      {packet: hello, more: -1},
		"HELLO, cookies":             {packet: hello, more: -1, config: Config{AddressValidation: ValidateAlways}},
		"HELLO and data":             {packet: func(conv uint32) []byte { return append(hello(conv), data(conv)...) }, more: -1},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 2, netsim.LinkConfig{}, func(t *testing.T, w *world) {
				e := w.counts("10.0.0.1:4000", &tc.config)
				l, err := e.Listen()
				require.NoError(t, err)
				if tc.more >= 0 {
					answersMore(t, l, tc.more)
				}
				w.flood(tc.packet)
				time.Sleep(10 * time.Minute)
				s := e.Stats()
				t.Logf("%d wake-ups, %d packets", e.wakes.Load(), s.PacketsSent)
				require.LessOrEqual(t, e.wakes.Load(), int64(s.PacketsSent)+8*silentPeers)
				require.Zero(t, s.Sessions)
				require.Less(t, s.Buffered, silentPeers<<10) // of those that were not accepted
				require.LessOrEqual(t, s.BytesSent, 3*s.BytesReceived)
			})
		})
	}
}

// zeroWindow sets the window of a segment to 0.
func zeroWindow(b []byte) []byte {
	b[6], b[7] = 0, 0
	return b
}

// The same for a TLS handshake that began in the name of others.
func TestSilentHandshakesSleep(t *testing.T) {
	inWorld(t, 2, netsim.LinkConfig{}, func(t *testing.T, w *world) {
		e := w.counts("10.0.0.1:4000", &Config{TLS: testTLS(), MaxHalfOpen: 2000})
		_, err := e.Listen()
		require.NoError(t, err)
		client, _ := w.endpoint("10.0.0.2:5000", &Config{TLS: testTLS()})
		first := make(map[uint32][][]byte) // packets of the first flights, by conversation
		w.net.SetFilter(func(from, _ netip.AddrPort, packet []byte) bool {
			conv := binary.LittleEndian.Uint32(packet)
			if all := first[conv]; from.Port() == 5000 && len(all) < 2 {
				first[conv] = append(all, append([]byte(nil), packet...))
			}
			return false
		})
		var dials sync.WaitGroup
		for range silentPeers {
			dials.Go(func() {
				_, err := client.Dial(context.Background(), udpAddr("10.0.0.1:4000"))
				require.Error(t, err)
			})
		}
		dials.Wait()
		for n := range 2 {
			before, sent, peer := e.wakes.Load(), e.Stats().PacketsSent, 0
			for _, packets := range first {
				peer++
				for _, p := range packets[:n+1] {
					w.net.Inject(floodAddr(1000*n+peer), netip.MustParseAddrPort("10.0.0.1:4000"), bytes.Clone(p))
				}
				synctest.Wait()
			}
			require.Equal(t, silentPeers, e.Stats().Sessions)
			time.Sleep(time.Minute)
			s := e.Stats()
			require.Zero(t, s.Sessions)
			t.Logf("%d wake-ups, %d packets", e.wakes.Load()-before, s.PacketsSent-sent)
			require.LessOrEqual(t, e.wakes.Load()-before, int64(s.PacketsSent-sent)+5*silentPeers, "%d packets of the first flight", n+1)
		}
	})
}

// The same for sessions with peers that are there: what they wait for is a packet, or a
// call. So they wake as often as they send, and a few times more.
func TestIdleSessionsSleep(t *testing.T) {
	long := Config{PeerTimeout: -1, KeepAlive: -1}
	for name, tc := range map[string]struct {
		config Config
		begin  func(t *testing.T, w *world, e *counted, a, b *Conn)
	}{
		"idle":              {begin: func(*testing.T, *world, *counted, *Conn, *Conn) {}},
		"path without peer": {begin: func(t *testing.T, w *world, e *counted, a, b *Conn) { w.deaf() }},
		"data, path without peer": {begin: func(t *testing.T, w *world, e *counted, a, b *Conn) {
			w.deaf()
			_, _ = a.TryWrite(content(1, 20_000))
		}},
		"window of zero": {begin: func(t *testing.T, w *world, e *counted, a, b *Conn) {
			_ = a.SetWriteDeadline(time.Now().Add(time.Minute))
			_, _ = a.Write(content(1, 10<<20))
		}},
		"window of zero, streams": {begin: func(t *testing.T, w *world, e *counted, a, b *Conn) {
			s, err := a.OpenStream(context.Background(), nil)
			require.NoError(t, err)
			_ = s.SetWriteDeadline(time.Now().Add(time.Minute))
			_, _ = s.Write(content(1, 10<<20))
		}},
		"capped": {config: Config{MaxRate: 10_000}, begin: func(t *testing.T, w *world, e *counted, a, b *Conn) {
			_, _ = a.TryWrite(content(1, 1000))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 2, clean, func(t *testing.T, w *world) {
				l := w.listen(&long)
				config := tc.config
				config.PeerTimeout, config.KeepAlive = -1, -1
				e := w.counts("10.0.0.2:5000", &config)
				a, err := e.Dial(context.Background(), udpAddr(serverAddr))
				require.NoError(t, err)
				_, err = a.Write([]byte("x"))
				require.NoError(t, err)
				b := accepted(t, l)
				_, err = io.ReadFull(b, make([]byte, 1))
				require.NoError(t, err)
				tc.begin(t, w, e, a, b)
				time.Sleep(time.Minute) // what was under way is done
				before, sent := e.wakes.Load(), e.Stats().PacketsSent
				time.Sleep(time.Hour)
				more := int64(e.Stats().PacketsSent - sent)
				require.LessOrEqual(t, e.wakes.Load()-before, 3*more+10, "%d packets", more)
			})
		})
	}
}

// What a session itself takes is on the account while its peer's address is not
// validated, to within a kilobyte. If it is too much, such sessions end, and others do
// not.
func TestHalfOpenSessionsAreCounted(t *testing.T) {
	inWorld(t, 2, netsim.LinkConfig{}, func(t *testing.T, w *world) {
		config := Config{MaxHalfOpen: 3000, MaxSessionsPerAddress: 5000, MaxBuffered: 1 << 23, Backlog: 5000}
		l := w.listen(&config)
		e, _ := w.endpoint("10.0.0.2:5000", nil)
		c := w.dial(e)
		_, err := c.Write(content(1, 60_000))
		require.NoError(t, err)
		s := accepted(t, l)
		require.NoError(t, c.Flush(context.Background()))
		at := netip.MustParseAddrPort("10.0.0.1:4000")
		open := func(from, to uint32) {
			for i := from; i < to; i++ {
				w.net.Inject(floodAddr(int(i)), at, packetOf(1000+i, push(0, 0, "x")))
				if i%100 == 0 {
					synctest.Wait()
				}
			}
			synctest.Wait()
		}
		before, held := memoryInUse(), l.Stats().Buffered
		open(0, 1000)
		require.Equal(t, 1000, l.Stats().HalfOpen)
		if !raceEnabled {
			require.Less(t, memoryInUse()-before-int64(l.Stats().Buffered-held), int64(1000<<10))
		}
		open(1000, 3000)
		time.Sleep(4 * time.Second)
		for range 300 { // a batch ends a few
			open(0, 1)
			time.Sleep(10 * time.Millisecond)
		}
		require.LessOrEqual(t, l.Stats().Buffered, config.MaxBuffered)
		require.Less(t, l.Stats().HalfOpen, 1500)
		require.NoError(t, s.Err())
		receive(t, s, content(1, 60_000))
	})
}

// A wake-up of a session with nothing due allocates nothing: a process that has many
// silent sessions collects no garbage of them.
func TestWakeUpsAllocateNothing(t *testing.T) {
	for name, begin := range map[string]func(w *world, e *Endpoint, l *Listener) *Conn{
		"idle": func(w *world, e *Endpoint, l *Listener) *Conn { return w.dial(e) },
		"path without peer": func(w *world, e *Endpoint, l *Listener) *Conn {
			c := w.dial(e)
			w.deaf()
			_, _ = c.TryWrite(content(1, 1000))
			return c
		},
		"half-open": func(w *world, e *Endpoint, l *Listener) *Conn {
			w.net.Inject(floodAddr(1), netip.MustParseAddrPort("10.0.0.1:4000"), packetOf(1000, push(0, 0, "x")))
			return accepted(w.t, l)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 2, netsim.LinkConfig{}, func(t *testing.T, w *world) {
				l := w.listen(&Config{KeepAlive: -1})
				e, _ := w.endpoint("10.0.0.2:5000", &Config{KeepAlive: -1})
				c := begin(w, e, l)
				time.Sleep(3050 * time.Millisecond) // nothing is due now
				synctest.Wait()
				c.mu.Lock()
				defer c.mu.Unlock()
				require.Zero(t, testing.AllocsPerRun(100, func() {
					c.timers.dueAt = c.host.now()
					c.session.onWake()
				}))
			})
		})
	}
}
