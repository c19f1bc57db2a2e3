package kcp

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

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
	c, e := p.conn, p.conn.ep
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
