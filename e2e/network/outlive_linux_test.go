package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
)

// plan is three hosts: the client has two cables to a router, and the server is behind
// that. The client sends by wlan.
//
//	client wlan 10.1.0.2 fd01::2 -- ra 10.1.0.1 fd01::1 router
//	       wwan 10.2.0.2 fd02::2 -- rb 10.2.0.1 fd02::1
//	                                rs 10.3.0.1 fd03::1 -- s 10.3.0.2 fd03::2 server
type plan struct {
	client, router, server *host
	serveAt                string // in place of the address that is dialled; "": none
}

// newPlan makes the hosts.
func newPlan(t *testing.T, client *host) *plan {
	t.Helper()
	p := &plan{client: client, router: newHost(t), server: newHost(t)}
	cable(t, p.client, "wlan", p.router, "ra")
	cable(t, p.client, "wwan", p.router, "rb")
	cable(t, p.router, "rs", p.server, "s")
	p.router.set(t, "ipv4.ip_forward", "1")
	p.router.set(t, "ipv6.conf.all.forwarding", "1")
	p.router.Must(t, `
		ip addr add 10.1.0.1/24 dev ra
		ip addr add 10.2.0.1/24 dev rb
		ip addr add 10.3.0.1/24 dev rs
		ip addr add fd01::1/64 dev ra nodad
		ip addr add fd02::1/64 dev rb nodad
		ip addr add fd03::1/64 dev rs nodad`)
	p.server.Must(t, `
		ip addr add 10.3.0.2/24 dev s
		ip addr add fd03::2/64 dev s nodad
		ip route add default via 10.3.0.1
		ip route add default via fd03::1`)
	p.client.Must(t, addresses("wlan", 1, 2)+addresses("wwan", 2, 2)+via("wlan"))
	return p
}

// addresses are commands that give an interface of the client its addresses in net n.
func addresses(dev string, n, host int) string {
	return fmt.Sprintf(`
		ip addr add 10.%[2]d.0.%[3]d/24 dev %[1]s
		ip addr add fd0%[2]d::%[3]d/64 dev %[1]s nodad`, dev, n, host)
}

// via are commands by which the client sends to the server by an interface.
func via(dev string) string {
	n := 1 + slices.Index([]string{"wlan", "wwan"}, dev)
	return fmt.Sprintf(`
		ip route replace default via 10.%[1]d.0.1 dev %[2]s
		ip route replace default via fd0%[1]d::1 dev %[2]s`, n, dev)
}

// without are commands that take away the addresses of an interface.
func without(dev string) string {
	return fmt.Sprintf(`
		ip -4 addr flush dev %[1]s
		ip -6 addr flush dev %[1]s scope global`, dev)
}

// use is how an application uses a session.
type use byte

const (
	echoes  use = 'e' // numbers come back
	listens use = 'l' // the server sends numbers
	uploads use = 'u' // as many numbers as go
)

// tick is the time between two numbers.
const tick = 20 * time.Millisecond

// session is one that is to outlive an event, and the numbers that have arrived.
type session struct {
	name  string
	conn  *kcp.Conn
	raw   syscall.RawConn // its socket
	moves bool            // it has to go on, from whatever address
	sent  atomic.Uint64   // numbers written so far
	got   atomic.Uint64   // numbers that have arrived at the other end, or came back
	done  chan struct{}   // closed when err is set

	mu   sync.Mutex
	err  error
	last time.Time     // when a number arrived, or err was set
	gap  time.Duration // the longest between two
}

// write writes numbers to w, one each tick; 0: as fast as they go. all is what they are
// counted in.
func (s *session) write(w io.Writer, every time.Duration) {
	var number [8]byte
	block := make([]byte, 0, 1024)
	for n := uint64(0); ; n++ {
		binary.BigEndian.PutUint64(number[:], n*0x9e3779b97f4a7c15)
		if block = append(block, number[:]...); every == 0 && len(block) < cap(block) {
			continue
		}
		if _, err := w.Write(block); err != nil {
			return
		}
		block = block[:0]
		s.sent.Store(n + 1)
		if every > 0 {
			time.Sleep(every)
		}
	}
}

// read compares numbers that arrive at r with those that were written.
func (s *session) read(r io.Reader) {
	var number, want [8]byte
	for n := uint64(0); ; n++ {
		_, err := io.ReadFull(r, number[:])
		binary.BigEndian.PutUint64(want[:], n*0x9e3779b97f4a7c15)
		if err == nil && number != want {
			err = fmt.Errorf("number %d is %x, not %x", n, number, want)
		}
		if err != nil {
			s.fail(err)
			return
		}
		s.mu.Lock()
		if now := time.Now(); !s.last.IsZero() {
			s.gap, s.last = max(s.gap, now.Sub(s.last)), now
		} else {
			s.last = now
		}
		s.mu.Unlock()
		s.got.Store(n + 1)
	}
}

func (s *session) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
		s.gap, s.last = max(s.gap, time.Since(s.last)), time.Now()
		close(s.done)
	}
}

// longest returns the longest time between two numbers since the last call.
func (s *session) longest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	gap := s.gap
	s.gap = 0
	return gap
}

// await waits until a number has arrived that was written after now, or the session has
// ended.
func (s *session) await() error {
	want := s.sent.Load() + 1
	for s.got.Load() <= want {
		select {
		case <-s.done:
			return s.err
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// protections are those of the sessions. No keep-alive helps them.
func protections(t *testing.T) map[string]*kcp.Config {
	return map[string]*kcp.Config{
		"TLS":   {TLS: testenv.TLS(), KeepAlive: -1},
		"AEAD":  {Cipher: testenv.AEAD(t), KeepAlive: -1},
		"plain": {KeepAlive: -1},
	}
}

// sessions opens sessions of all kinds: over IPv4 and IPv6, with each protection. Only
// those with TLS upload, too.
func (p *plan) sessions(t *testing.T) (all []*session) {
	t.Helper()
	port := 4000
	for name, config := range protections(t) {
		for _, to := range []string{"10.3.0.2", "fd03::2"} {
			port++
			address := net.JoinHostPort(to, fmt.Sprint(port))
			peers := p.serve(t, address, config)
			ways := []use{echoes}
			if testenv.InFull() {
				ways = append(ways, listens)
			}
			if testenv.InFull() && name == "TLS" {
				ways = append(ways, uploads)
			}
			for _, way := range ways {
				s := p.dial(t, address, config, way, peers)
				s.name, s.moves = fmt.Sprintf("%s %s %c", name, to, way), name != "plain"
				all = append(all, s)
			}
		}
	}
	slices.SortFunc(all, func(a, b *session) int { return strings.Compare(a.name, b.name) })
	for _, s := range all {
		for s.got.Load() < 10 { // it listens
			pause(tick)
		}
		require.NoError(t, s.await(), s.name)
	}
	return all
}

// serve accepts sessions at the server. It sends their ends to the result.
func (p *plan) serve(t *testing.T, address string, config *kcp.Config) <-chan *kcp.Conn {
	t.Helper()
	if p.serveAt != "" {
		address = p.serveAt
	}
	var l *kcp.Listener
	require.NoError(t, p.server.Do(func() (err error) {
		l, err = kcp.Listen("udp", address, config)
		return err
	}))
	t.Cleanup(func() { l.Endpoint().Close() })
	peers := make(chan *kcp.Conn)
	go func() {
		for {
			c, err := l.AcceptKCP(t.Context())
			if err != nil {
				return
			}
			peers <- c
		}
	}()
	return peers
}

// dial opens a session, and uses it in a way.
func (p *plan) dial(t *testing.T, address string, config *kcp.Config, way use, peers <-chan *kcp.Conn) *session {
	t.Helper()
	settings := *config
	if way == uploads {
		settings.MaxRate, settings.WriteBuffer = 1<<20, 64<<10
	}
	s := &session{done: make(chan struct{})}
	settings.Control = func(_, _ string, c syscall.RawConn) error {
		if s.raw == nil {
			s.raw = c
		}
		return nil
	}
	require.NoError(t, p.client.Do(func() (err error) {
		s.conn, err = kcp.Dial("udp", address, &settings)
		return err
	}))
	t.Cleanup(func() { s.conn.Endpoint().Close() })
	s.use(way, <-peers)
	return s
}

// use uses the session in a way, of which peer is the other end.
func (s *session) use(way use, peer *kcp.Conn) {
	switch way {
	case echoes:
		go func() { _, _ = io.Copy(peer, peer) }()
		go s.write(s.conn, tick)
		go s.read(s.conn)
	case listens:
		go s.write(peer, tick)
		go s.read(s.conn)
	case uploads:
		go s.write(s.conn, 0)
		go s.read(peer)
	}
}

// outlive has all sessions outlive an event at the hosts, and prints how long they were
// silent. Without an authenticating cipher they may also end with ErrReset, if the event
// has changed the client's address.
func outlive(t *testing.T, all []*session, moved bool, event func()) {
	t.Helper()
	for _, s := range all {
		s.longest()
	}
	event()
	for _, s := range all {
		err := s.await()
		if !s.moves && moved && errors.Is(err, kcp.ErrReset) {
			t.Logf("%-20s ErrReset after %v", s.name, s.longest().Round(time.Millisecond))
			continue
		}
		require.NoError(t, err, s.name)
		t.Logf("%-20s silent for %v, from %v", s.name, s.longest().Round(time.Millisecond), s.conn.LocalAddr())
	}
}

// from requires that all sessions that live send from the addresses of net n.
func from(t *testing.T, all []*session, n, host int) {
	t.Helper()
	for _, s := range all {
		if s.conn.Err() != nil {
			continue
		}
		want := fmt.Sprintf("10.%d.0.%d", n, host)
		if strings.Contains(s.name, "fd03") {
			want = fmt.Sprintf("fd0%d::%d", n, host)
		}
		got := s.conn.LocalAddr().(*net.UDPAddr)
		require.True(t, net.ParseIP(want).Equal(got.IP), "%s sends from %v, not %s", s.name, got, want)
	}
}

// event is what happens to the client's address.
type event struct {
	name      string
	short     bool // it does not need KCP_LONG
	moved     bool // the client has another address, if only for a while
	net, host int  // its address then; 0: that of either interface
	happen    func(t *testing.T, p *plan, all []*session)
}

// pause is how long an outage lasts.
func pause(d time.Duration) { time.Sleep(d) }

var events = []event{
	{"another route, the address stays", true, true, 2, 2, func(t *testing.T, p *plan, _ []*session) {
		p.router.Must(t, "ip link set ra down")
		p.client.Must(t, via("wwan"))
	}},
	{"another interface, the first is down", false, true, 2, 2, func(t *testing.T, p *plan, _ []*session) {
		p.client.Must(t, "ip link set wlan down"+via("wwan"))
	}},
	{"another interface, the first is gone", false, true, 2, 2, func(t *testing.T, p *plan, _ []*session) {
		p.client.Must(t, "ip link del wlan"+via("wwan"))
	}},
	{"the address is replaced", true, true, 1, 77, func(t *testing.T, p *plan, _ []*session) {
		// Without wwan, as its address would do for a session that looks meanwhile.
		p.client.Must(t, "ip link del wwan"+without("wlan")+addresses("wlan", 1, 77)+via("wlan"))
	}},
	{"the address goes, and comes back", false, true, 0, 0, func(t *testing.T, p *plan, _ []*session) {
		p.client.Must(t, without("wlan"))
		pause(time.Second)
		p.client.Must(t, addresses("wlan", 1, 2)+via("wlan"))
	}},
	{"the interface goes down, and comes up", false, false, 1, 2, func(t *testing.T, p *plan, _ []*session) {
		p.client.Must(t, "ip link del wwan\nip link set wlan down")
		pause(2 * time.Second)
		p.client.Must(t, "ip link set wlan up\nip addr add fd01::2/64 dev wlan nodad"+via("wlan"))
	}},
	{"the cable is unplugged", false, false, 1, 2, func(t *testing.T, p *plan, _ []*session) {
		p.router.Must(t, "ip link set ra down")
		pause(3 * time.Second)
		p.router.Must(t, "ip link set ra up\nip addr add fd01::1/64 dev ra nodad")
	}},
	{"no network, and then another", false, true, 2, 9, func(t *testing.T, p *plan, _ []*session) {
		p.client.Must(t, "ip link set wlan down"+without("wwan"))
		pause(20 * time.Second)
		p.client.Must(t, addresses("wwan", 2, 9)+via("wwan"))
	}},
	{"the sockets are destroyed", false, false, 1, 2, destroySockets},
	{"the sockets are destroyed, and the address is replaced", false, true, 1, 77, func(t *testing.T, p *plan, all []*session) {
		p.client.Must(t, "ip link del wwan"+without("wlan"))
		destroySockets(t, p, all)
		pause(time.Second)
		p.client.Must(t, addresses("wlan", 1, 77)+via("wlan"))
	}},
}

// destroySockets destroys the client's sockets. Where the system cannot (ss -K wants
// CONFIG_INET_DIAG_DESTROY), it disconnects them, which is what remains of such a socket.
func destroySockets(t *testing.T, p *plan, all []*session) {
	var out []byte
	require.NoError(t, p.client.Do(func() (err error) {
		out, err = exec.Command("ss", "-K", "-u", "-n", "dport", ">=", ":4000").CombinedOutput()
		return err
	}), "%s", out)
	if strings.Count(string(out), "\n") > len(all) { // with the heading
		return
	}
	t.Logf("this system destroys no sockets; they are disconnected")
	for _, s := range all {
		require.NoError(t, s.raw.Control(func(fd uintptr) {
			none := unix.RawSockaddr{Family: unix.AF_UNSPEC}
			_, _, _ = unix.Syscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&none)), unix.SizeofSockaddrInet4)
		}))
	}
}

// A session of Dial goes on when its own address does not.
func TestOutliveAddress(t *testing.T) {
	for _, e := range events {
		t.Run(e.name, func(t *testing.T) {
			if !e.short {
				long(t)
			}
			tryEvent(t, client(t), e)
		})
	}
}

// A program may have threads in several networks. The system cannot be asked for the
// route then, but by connecting the socket itself.
func TestOutliveInAnotherNetwork(t *testing.T) {
	long(t)
	for _, e := range events[:4] {
		t.Run(e.name, func(t *testing.T) {
			client(t)
			tryEvent(t, newHost(t), e)
		})
	}
}

func tryEvent(t *testing.T, client *host, e event) {
	p := newPlan(t, client)
	all := p.sessions(t)
	from(t, all, 1, 2)
	ports := make(map[*session]int)
	for _, s := range all {
		ports[s] = s.conn.LocalAddr().(*net.UDPAddr).Port
	}
	outlive(t, all, e.moved, func() { e.happen(t, p, all) })
	all = slices.DeleteFunc(all, func(s *session) bool { return s.conn.Err() != nil })
	if e.net != 0 {
		from(t, all, e.net, e.host)
	}
	outlive(t, all, false, func() {})
	for _, s := range all {
		require.Equal(t, ports[s], s.conn.LocalAddr().(*net.UDPAddr).Port, "%s: another port", s.name)
	}
}
