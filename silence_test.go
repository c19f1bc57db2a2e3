package kcp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// Over a path that loses nothing no peer is lost, however much longer than PeerTimeout
// what was written waits: for the cap of the rate, or for a peer that does not read. All
// of it arrives.
func TestWhatWaitsIsNoSilence(t *testing.T) {
	data := content(1, 12_000)
	for name, tc := range map[string]struct {
		config Config
		open   func(t *testing.T, a, b *Conn) (from, to net.Conn)
		pause  time.Duration // before the peer reads
	}{
		"session": {config: Config{MaxRate: 1000}},
		"stream":  {config: Config{MaxRate: 1000}, open: ofAStream},
		"FEC":     {config: Config{MaxRate: 1000, FEC: FEC{Data: 2, Parity: 2}}},
		"TLS":     {config: Config{MaxRate: 1000, TLS: testTLS()}},
		"other peer without signals": {config: Config{MaxRate: 1000}, open: func(_ *testing.T, a, b *Conn) (net.Conn, net.Conn) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.session.Inside().Opening().Peer = opening.Legacy
			return a, b
		}},
		"zero window": {config: Config{WriteBuffer: 4096}, open: func(t *testing.T, a, b *Conn) (net.Conn, net.Conn) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.session.Inside().Machine().Configure(machine.Settings{ReceiveWindow: 2})
			return a, b
		}, pause: 30 * time.Second},
	} {
		for _, timeout := range []time.Duration{300 * time.Millisecond, time.Second, 3 * time.Second} {
			t.Run(name+", "+timeout.String(), func(t *testing.T) {
				inWorld(t, 1, clean, func(t *testing.T, w *world) {
					config := tc.config
					config.PeerTimeout, config.KeepAlive = timeout, -1
					a, b, _ := w.pair(&config, &Config{FEC: config.FEC, TLS: config.TLS})
					time.Sleep(5 * time.Second) // for the cap to have paid what came before
					from, to := net.Conn(a), net.Conn(b)
					if tc.open != nil {
						from, to = tc.open(t, a, b)
					}
					written := make(chan error)
					go func() {
						_, err := from.Write(data)
						written <- err
					}()
					time.Sleep(tc.pause)
					receive(t, to, data)
					require.NoError(t, <-written)
					time.Sleep(20 * time.Second)
					require.NoError(t, a.Err())
				})
			})
		}
	}
}

// ofAStream returns the ends of a stream.
func ofAStream(t *testing.T, a, b *Conn) (from, to net.Conn) {
	s, r := streamPair(t, a, b, nil)
	return s, r
}

// freeze does what it is for the process of c to be frozen for d, as by SIGSTOP: its
// clock goes on, and nothing of what was sent meanwhile was read. c is the endpoint's
// only session.
func freeze(c *Conn, d time.Duration) {
	synctest.Wait()
	c.mu.Lock()
	e := c.Endpoint()
	e.wakes.Remove(c)
	e.shared.Epoch = e.shared.Epoch.Add(-d)
	e.wakes.Init(1, e.shared.Epoch, (*Conn).wakeIndex, (*Conn).wakeHash, nil, (*Conn).onWake, nil)
	c.mu.Unlock()
	c.onWake()
}

// A process that was frozen takes none of that time for silence of its peer. If the
// peer is there, the session goes on. If not, it is lost PeerTimeout after the process
// goes on.
func TestFrozenProcess(t *testing.T) {
	for name, tc := range map[string]struct {
		config Config
		send   func(a *Conn)
		gone   bool
	}{
		"capped":             {config: Config{MaxRate: 1000}, send: func(a *Conn) { _, _ = a.Write(content(1, 10_000)) }},
		"unacknowledged":     {send: func(a *Conn) { _, _ = a.Write(content(1, 10_000)) }},
		"stalls":             {config: Config{PeerTimeout: -1, StallTimeout: 10 * time.Second}, send: func(a *Conn) { _, _ = a.Write(content(1, 10_000)) }},
		"idle":               {config: Config{PeerTimeout: -1, IdleTimeout: 10 * time.Second}, send: func(a *Conn) { _, _ = a.Write(content(1, 10_000)) }},
		"after a keep-alive": {config: Config{KeepAlive: 500 * time.Millisecond}, send: func(*Conn) { time.Sleep(505 * time.Millisecond) }},
		"peer is gone":       {send: func(a *Conn) { _, _ = a.Write(content(1, 10_000)) }, gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 3, clean, func(t *testing.T, w *world) {
				if tc.config.PeerTimeout == 0 {
					tc.config.PeerTimeout = 5 * time.Second
				}
				a, b, _ := w.pair(&tc.config, nil)
				time.Sleep(3 * time.Second)
				tc.send(a)
				if tc.gone {
					w.net.Cut("10.0.0.1", "10.0.0.2")
				}
				time.Sleep(time.Millisecond)
				begin := time.Now()
				freeze(a, time.Hour)
				if tc.gone {
					<-a.Done()
					var lost *PeerLostError
					require.ErrorAs(t, a.Err(), &lost)
					require.InDelta(t, 5, time.Since(begin).Seconds(), 0.3)
					return
				}
				if name != "after a keep-alive" {
					receive(t, b, content(1, 10_000))
				}
				time.Sleep(2 * time.Second)
				require.NoError(t, a.Err())
				bothWays(t, a, b, []byte("still"), []byte("here"))
			})
		})
	}
}

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
	e.Endpoint.wakes.Init(1, e.shared.Epoch, (*Conn).wakeIndex, (*Conn).wakeHash, nil, func(c *Conn) {
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
		return packetOf(conv, segment(wire.CmdWask, byte(wire.Hello), conv, 0, 0, ""), segment(wire.CmdWins, byte(wire.Info), session.InfoSignal().TS, session.InfoSignal().SN, 0, ""))
	}
	data := func(conv uint32) []byte { return packetOf(conv, push(0, 0, "x")) }
	full := func(conv uint32) []byte { return packetOf(conv, push(0, 0, string(content(1, 500)))) }
	for name, tc := range map[string]struct {
		config Config
		more   int // bytes that the application writes; negative: it does not accept
		Packet func(conv uint32) []byte
	}{
		"data, not accepted":         {Packet: data, more: -1},
		"data, echoed":               {Packet: data},
		"data, echoed, no time-outs": {Packet: data, config: Config{PeerTimeout: -1, KeepAlive: -1}},
		"data, much more":            {Packet: data, more: 100_000},
		"full, much more":            {Packet: full, more: 100_000},
		"full, much more, no delay":  {Packet: full, more: 100_000, config: LowLatency()},
		"full, much more, classic":   {Packet: full, more: 100_000, config: Classic()},
		"full, much more, with FEC":  {Packet: full, more: 100_000, config: Config{FEC: FEC{Data: 10, Parity: 3}}},
		"full, much more, capped":    {Packet: full, more: 100_000, config: Config{MaxRate: 1 << 20}},
		"window of zero":             {Packet: func(conv uint32) []byte { return packetOf(conv, zeroWindow(push(0, 0, string(content(1, 500))))) }, more: 10_000},
		"HELLO":                      {Packet: hello, more: -1},
		"HELLO, cookies":             {Packet: hello, more: -1, config: Config{AddressValidation: ValidateAlways}},
		"HELLO and data":             {Packet: func(conv uint32) []byte { return append(hello(conv), data(conv)...) }, more: -1},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 2, netsim.LinkConfig{}, func(t *testing.T, w *world) {
				e := w.counts("10.0.0.1:4000", &tc.config)
				l, err := e.Listen()
				require.NoError(t, err)
				if tc.more >= 0 {
					answersMore(t, l, tc.more)
				}
				w.flood(tc.Packet)
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
			s := openStream(t, a, nil)
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
				a, err := e.Dial(context.Background(), udpAddr(serverAddr), nil)
				require.NoError(t, err)
				writeAll(t, a, []byte("x"))
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

// sleepySocket is a socket that is not read while its process does not run.
type sleepySocket struct {
	*netsim.PacketConn
	awake atomic.Pointer[chan struct{}] // closed while the process runs
}

func (s *sleepySocket) ReadFromAddrPort(b []byte) (int, netip.AddrPort, error) {
	n, from, err := s.PacketConn.ReadFromAddrPort(b)
	<-*s.awake.Load()
	return n, from, err
}

// stop has nothing read until the result is closed.
func (s *sleepySocket) stop() (awake chan struct{}) {
	awake = make(chan struct{})
	s.awake.Store(&awake)
	return awake
}

// phone is a client that sleeps and moves, and its server, which sends back what it
// reads. docs/phones.md says what the client's calls return.
type phone struct {
	*world
	config   Config
	socket   *sleepySocket
	conn     *Conn
	accepted *Conn
	serverPC *netsim.PacketConn
	server   *Endpoint
	slept    bool
	woke     time.Time // if it slept
}

const (
	phoneAddr = "10.0.0.2:5000"
	readsFor  = 5 * time.Minute // for how long a client waits for what does not come
)

// newPhone opens a session, uses it, and leaves it alone for ten seconds.
func newPhone(t *testing.T, w *world, config Config) *phone {
	p := &phone{world: w, config: config}
	l := p.serve()
	pc, err := w.net.Listen(phoneAddr)
	require.NoError(t, err)
	p.socket = &sleepySocket{PacketConn: pc}
	close(p.socket.stop())
	e, err := NewEndpoint(p.socket, &p.config)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
	p.conn = w.dial(e)
	p.accepted = accepted(t, l)
	go func() { _, _ = io.Copy(p.accepted, p.accepted) }()
	_, err = p.conn.Write([]byte("hello"))
	require.NoError(t, err)
	receive(t, p.conn, []byte("hello"))
	time.Sleep(10 * time.Second)
	return p
}

// serve starts a server, whose process is another one than the last.
func (p *phone) serve() *Listener {
	var l *Listener
	l, p.serverPC = p.world.server(&p.config)
	p.server = l.Endpoint()
	return l
}

// kill ends the server as a process that is killed, and starts another one later.
func (p *phone) kill(later time.Duration) {
	_ = p.serverPC.Close()
	_ = p.server.Close()
	time.AfterFunc(later, func() { p.serve() })
}

// sleep has the client's process not run for d, or, if stands is set, the whole machine:
// then its clock stands still, and no packet arrives.
func (p *phone) sleep(d time.Duration, stands bool) {
	synctest.Wait()
	c, e := p.conn, p.conn.Endpoint()
	c.mu.Lock()
	e.wakes.Remove(c)
	c.mu.Unlock()
	awake := p.socket.stop()
	if stands {
		p.net.Cut("10.0.0.1", "10.0.0.2")
	}
	time.Sleep(d)
	synctest.Wait()
	p.slept, p.woke = true, time.Now()
	if stands {
		p.net.Heal("10.0.0.1", "10.0.0.2")
		e.shared.Epoch = e.shared.Epoch.Add(d)
	}
	e.wakes.Init(1, e.shared.Epoch, (*Conn).wakeIndex, (*Conn).wakeHash, nil, (*Conn).onWake, nil)
	close(awake)
	c.onWake()
}

// cut takes the network away for d.
func (p *phone) cut(d time.Duration) {
	p.net.Cut("10.0.0.1", "")
	time.AfterFunc(d, func() { p.net.Heal("10.0.0.1", "") })
}

// phoneEvents are what happens, by the first cell of a row. Each returns at once, unless
// it sleeps.
var phoneEvents = map[string]func(p *phone){
	"its process is stopped for 15 s":    func(p *phone) { p.sleep(15*time.Second, false) },
	"its process is stopped for 2 min":   func(p *phone) { p.sleep(2*time.Minute, false) },
	"its process is stopped for an hour": func(p *phone) { p.sleep(time.Hour, false) },
	"the machine sleeps for 15 s":        func(p *phone) { p.sleep(15*time.Second, true) },
	"the machine sleeps for 2 min":       func(p *phone) { p.sleep(2*time.Minute, true) },
	"the machine sleeps for an hour":     func(p *phone) { p.sleep(time.Hour, true) },
	"a NAT gives it another port":        func(p *phone) { _ = p.socket.Rebind("10.0.0.2:6000") },
	"it gets another address":            func(p *phone) { _ = p.socket.Rebind("10.0.0.3:6000") },
	"no network for 10 s":                func(p *phone) { p.cut(10 * time.Second) },
	"no network for 40 s":                func(p *phone) { p.cut(40 * time.Second) },
	"no network for 40 s, then another": func(p *phone) {
		p.cut(40 * time.Second)
		time.AfterFunc(40*time.Second, func() { _ = p.socket.Rebind("10.0.0.3:6000") })
	},
	"the server is killed, and back in 5 s":   func(p *phone) { p.kill(5 * time.Second) },
	"the server is killed, and back in 1 min": func(p *phone) { p.kill(time.Minute) },
	"the server is killed, and stays away":    func(p *phone) { p.kill(24 * time.Hour) },
	"the server calls `Shutdown`":             func(p *phone) { go func() { _ = p.server.Shutdown(context.Background()) }() },
}

// phoneUses are what the client does next, by the second cell. Each returns when it has
// shown that the session goes on, with nil, or its error.
var phoneUses = map[string]func(p *phone) error{
	"only reads": func(p *phone) error {
		_ = p.conn.SetReadDeadline(time.Now().Add(readsFor))
		_, err := p.conn.Read(make([]byte, 1))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		return err
	},
	"writes": func(p *phone) error {
		if _, err := p.conn.Write([]byte("x")); err != nil {
			return err
		}
		_, err := p.conn.Read(make([]byte, 1))
		return err
	},
	"calls `Ping`": func(p *phone) error {
		_, err := p.conn.Ping(context.Background())
		return err
	},
	"reads what the server writes": func(p *phone) error {
		if _, err := p.accepted.Write([]byte("x")); err != nil {
			return err
		}
		_, err := p.conn.Read(make([]byte, 1))
		return err
	},
}

// sight is what the client sees, and how long after the event has begun, or it wakes;
// 0: nothing shows when.
type sight struct {
	what  string
	after time.Duration
}

// see has something happen, and then uses the client.
func (p *phone) see(event func(p *phone), use func(p *phone) error) (o sight) {
	begin := time.Now()
	if event(p); p.slept {
		begin = p.woke
	}
	err := use(p)
	o.after = time.Since(begin)
	lost := new(PeerLostError)
	switch {
	case err == nil:
		if o.what = "goes on"; o.after == readsFor {
			o.after = 0
		}
	case errors.Is(err, ErrReset):
		o.what = "`ErrReset`"
	case errors.As(err, &lost):
		o.what = "`*PeerLostError`"
	case errors.Is(err, io.EOF):
		o.what = "`io.EOF`"
	default:
		o.what = err.Error()
	}
	return o
}

// sameCell compares a cell with what was measured. Times differ a little from run to run,
// as what happens at one instant has no order.
func sameCell(t *testing.T, want string, got sight, row []string) {
	t.Helper()
	what, after, timed := strings.Cut(want, ", ")
	require.Equal(t, what, got.what, "%v: %v", row, got)
	require.Equal(t, timed, got.after > 0, "%v: %v", row, got)
	if timed {
		seconds, err := strconv.ParseFloat(strings.TrimSuffix(after, " s"), 64)
		require.NoError(t, err, row)
		require.InDelta(t, seconds, got.after.Seconds(), max(0.05, seconds/20), "%v: %v", row, got)
	}
}

// What happens to a phone, and what its client sees, are what docs/phones.md says.
func TestPhones(t *testing.T) {
	configs := []Config{ // by columns
		{}, {Cipher: testAEAD(t)}, {TLS: testTLS()}, {TLS: testTLS(), StatelessResetKey: make([]byte, 32)},
	}
	page, err := os.ReadFile("docs/phones.md")
	require.NoError(t, err)
	seen := make(map[string]bool)
	for line := range strings.Lines(string(page)) {
		row := strings.Split(strings.Trim(line, "| \n"), " | ")
		if phoneEvents[row[0]] == nil {
			continue
		}
		require.Contains(t, phoneUses, row[1])
		seen[row[0]] = true
		for i, cell := range row[2:] {
			synctest.Test(t, func(t *testing.T) {
				w := &world{t: t, net: netsim.NewNetwork(1, netsim.LinkConfig{Delay: oneWay})}
				p := newPhone(t, w, configs[i])
				sameCell(t, cell, p.see(phoneEvents[row[0]], phoneUses[row[1]]), row)
				_ = p.conn.Abort(0, "")
			})
		}
	}
	require.Len(t, seen, len(phoneEvents), "events that the page does not have")
}
