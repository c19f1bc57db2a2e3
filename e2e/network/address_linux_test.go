package network

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
)

// one opens a session with TLS to an address of the server, by a dialler that the caller
// has set up.
func (p *plan) one(t *testing.T, address string, d kcp.Dialer) *session {
	t.Helper()
	config := &kcp.Config{TLS: testenv.TLS()}
	peers := p.serve(t, address, config)
	settings := kcp.Config{}
	if d.Config != nil {
		settings = *d.Config
	}
	settings.TLS = config.TLS
	d.Config = &settings
	conn, err := d.DialContext(t.Context(), "udp", address)
	require.NoError(t, err)
	s := &session{name: address, conn: conn.(*kcp.Conn), moves: true, done: make(chan struct{})}
	t.Cleanup(func() { s.conn.Endpoint().Close() })
	s.use(echoes, <-peers)
	require.NoError(t, s.await())
	return s
}

// lost requires that the session ends because the peer is lost, and that the error says
// what is wrong with the socket.
func (s *session) lost(t *testing.T, socket ...error) {
	t.Helper()
	<-s.done
	var lost *kcp.PeerLostError
	require.ErrorAs(t, s.err, &lost)
	for _, e := range socket {
		if errors.Is(s.err, e) {
			return
		}
	}
	require.Failf(t, "another error of the socket", "%v", s.err)
}

// family is the addresses of the client and of the server.
type family struct{ client, server string }

var (
	ipv4     = family{"10.1.0.2", "10.3.0.2:4000"}
	ipv6     = family{"fd01::2", "[fd03::2]:4000"}
	families = []family{ipv4, ipv6}
)

// orShort returns both families, or one that the test chooses.
func orShort(one family) []family {
	if !testenv.InFull() {
		return []family{one}
	}
	return families
}

// A caller that has chosen the address gets no other. The session waits for that one.
func TestChosenAddressIsKept(t *testing.T) {
	long(t)
	for _, a := range orShort(ipv4) {
		t.Run(a.client, func(t *testing.T) {
			p := newPlan(t, client(t))
			local := &net.UDPAddr{IP: net.ParseIP(a.client)}
			s := p.one(t, a.server, kcp.Dialer{LocalAddr: local})
			before := s.conn.LocalAddr().String()
			p.client.Must(t, without("wlan")+via("wwan"))
			pause(1500 * time.Millisecond)
			require.Equal(t, before, s.conn.LocalAddr().String())
			outlive(t, []*session{s}, false, func() { p.client.Must(t, addresses("wlan", 1, 2)+via("wlan")) })
			require.Equal(t, before, s.conn.LocalAddr().String())
			outlive(t, []*session{s}, false, func() { destroySockets(t, p, []*session{s}) })
			require.Equal(t, before, s.conn.LocalAddr().String())
		})
	}
}

// An address that does not come back is what the error tells.
func TestPeerLostNamesSocketError(t *testing.T) {
	long(t)
	for _, a := range orShort(ipv6) {
		config := &kcp.Config{PeerTimeout: 2 * time.Second}
		t.Run("chosen "+a.client, func(t *testing.T) {
			p := newPlan(t, client(t))
			s := p.one(t, a.server, kcp.Dialer{Config: config, LocalAddr: &net.UDPAddr{IP: net.ParseIP(a.client)}})
			p.client.Must(t, without("wlan"))
			s.lost(t, syscall.EADDRNOTAVAIL, syscall.EINVAL, syscall.ENETUNREACH)
		})
		t.Run(a.client, func(t *testing.T) {
			p := newPlan(t, client(t))
			s := p.one(t, a.server, kcp.Dialer{Config: config})
			p.client.Must(t, "ip link set wlan down\nip link set wwan down")
			s.lost(t, syscall.ENETUNREACH)
		})
	}
}

// A socket that Config.Control binds to an interface stays on it, though another one
// leads to the server too, and finds it again when it comes back with another number.
func TestBoundInterfaceIsKept(t *testing.T) {
	long(t)
	for _, a := range orShort(ipv6) {
		t.Run(a.client, func(t *testing.T) {
			p := newPlan(t, client(t))
			config := &kcp.Config{Control: func(_, _ string, c syscall.RawConn) error {
				var bound error
				err := c.Control(func(fd uintptr) { bound = syscall.BindToDevice(int(fd), "wlan") })
				return errors.Join(err, bound)
			}}
			s := p.one(t, a.server, kcp.Dialer{Config: config})
			all := []*session{s}
			outlive(t, all, false, func() { destroySockets(t, p, all) })
			p.client.Must(t, "ip link del wlan"+via("wwan"))
			pause(1500 * time.Millisecond)
			require.Contains(t, s.conn.LocalAddr().String(), a.client)
			outlive(t, all, false, func() {
				cable(t, p.client, "wlan", p.router, "ra")
				p.router.Must(t, "ip addr add 10.1.0.1/24 dev ra\nip addr add fd01::1/64 dev ra nodad")
				p.client.Must(t, addresses("wlan", 1, 77)+`
					ip route add default via 10.1.0.1 dev wlan metric 2000
					ip route add default via fd01::1 dev wlan metric 2000`)
			})
			require.Contains(t, s.conn.LocalAddr().String(), a.client[:len(a.client)-1]+"77")
		})
	}
}

// A neighbour is reached by the interface of its zone, which may get another number.
func TestLinkLocalPeer(t *testing.T) {
	long(t)
	p := newPlan(t, client(t))
	// A link that comes up has no other address meanwhile.
	p.client.Must(t, "ip link set wlan addrgenmode none")
	p.client.set(t, "ipv6.conf.default.addr_gen_mode", "1")
	linkLocal := func() {
		p.client.Must(t, "ip addr replace fe80::2/64 dev wlan nodad")
		p.router.Must(t, "ip addr replace fe80::1/64 dev ra nodad")
	}
	linkLocal()
	p.server = p.router
	p.serveAt = "[::]:4000"
	s := p.one(t, "[fe80::1%wlan]:4000", kcp.Dialer{})
	all := []*session{s}
	before := s.conn.LocalAddr().String()
	outlive(t, all, false, func() { destroySockets(t, p, all) })
	require.Equal(t, before, s.conn.LocalAddr().String())
	outlive(t, all, false, func() {
		p.client.Must(t, "ip link set wlan down")
		pause(time.Second)
		p.client.Must(t, "ip link set wlan up")
		linkLocal()
	})
	require.Equal(t, before, s.conn.LocalAddr().String())
	outlive(t, all, false, func() {
		p.client.Must(t, "ip link del wlan")
		pause(time.Second)
		cable(t, p.client, "wlan", p.router, "ra")
		linkLocal()
	})
	require.Equal(t, before, s.conn.LocalAddr().String())
}

// A Dial goes on when the network changes under it.
func TestDialOutlivesAddress(t *testing.T) {
	for _, a := range families {
		for name, config := range protections(t) {
			if !testenv.InFull() && (name != "TLS" || a == ipv4) {
				continue
			}
			t.Run(a.client+" "+name, func(t *testing.T) {
				p := newPlan(t, client(t))
				peers := p.serve(t, a.server, config)
				p.router.Must(t, "ip link set ra down")
				dialled := make(chan error)
				var c *kcp.Conn
				go func() {
					var err error
					c, err = kcp.Dial("udp", a.server, config)
					dialled <- err
				}()
				pause(700 * time.Millisecond)
				p.client.Must(t, via("wwan"))
				begin := time.Now()
				require.NoError(t, <-dialled)
				t.Logf("after %v", time.Since(begin).Round(time.Millisecond))
				defer c.Endpoint().Close()
				s := &session{name: name, conn: c, done: make(chan struct{})}
				s.use(echoes, <-peers)
				require.NoError(t, s.await())
			})
		}
	}
}
