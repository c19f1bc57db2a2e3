// Package cluster carries github.com/hashicorp/memberlist over KCP: nodes that find each
// other, notice when one of them dies, and send each other messages. All of it runs in
// sessions with mutual TLS 1.3, on one UDP port for each node.
//
//	t, err := cluster.Listen(&cluster.Config{Bind: "10.0.0.1:7946", Certificate: cert, CA: pool, Cluster: "nodes.example"})
//	list, err := memberlist.Create(t.Memberlist())
//	_, err = list.Join([]string{"10.0.0.2:7946"})
//
// Command node is a node on the command line.
package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/identity"
)

const (
	protocol   = "kcp-cluster/1" // application protocol (ALPN)
	packetSize = 1100            // bytes that fit into a datagram on every path

	maxArrived = 1024 // packets that wait for memberlist
	maxDials   = 128  // at a time
	maxWaiting = 16   // packets that wait for one dial

	dialTimeout  = 5 * time.Second
	drainTimeout = 500 * time.Millisecond // of Shutdown
)

// Config has the settings of a Transport.
type Config struct {
	Bind        string          // UDP address to listen on: an IP address and a port
	PacketConn  net.PacketConn  // if not nil, takes the place of a socket on Bind
	Certificate tls.Certificate // of this node, whose name is the common name in it
	CA          *x509.CertPool  // verifies the certificates of all nodes
	Cluster     string          // DNS name that is in the certificates of all nodes
}

// Transport is a memberlist.NodeAwareTransport on one KCP endpoint. It keeps a session
// with each node that it talks to, whoever has dialled it.
type Transport struct {
	name     string // of this node
	pc       net.PacketConn
	endpoint *kcp.Endpoint
	listener *kcp.Listener
	ctx      context.Context // done at Shutdown
	cancel   context.CancelFunc
	running  sync.WaitGroup
	packets  chan *memberlist.Packet
	streams  chan net.Conn

	mu     sync.Mutex // guards the fields below
	peers  map[netip.AddrPort]*peer
	dials  int
	closed bool
}

// peer is a session with the node at an address, or the dial of one.
type peer struct {
	ready   chan struct{} // closed when the fields below are set
	conn    *kcp.Conn
	name    string // in the certificate
	err     error  // of the dial
	waiting atomic.Int32
}

var _ memberlist.NodeAwareTransport = (*Transport)(nil)

// Listen returns a transport that takes sessions.
func Listen(c *Config) (*Transport, error) {
	name, err := nameIn(&c.Certificate)
	if err != nil {
		return nil, err
	}
	config, err := c.kcpConfig()
	if err != nil {
		return nil, err
	}
	pc := c.PacketConn
	if pc == nil {
		if pc, err = net.ListenPacket("udp", c.Bind); err != nil {
			return nil, err
		}
	}
	t := &Transport{
		name: name, pc: pc, peers: make(map[netip.AddrPort]*peer),
		packets: make(chan *memberlist.Packet, maxArrived), streams: make(chan net.Conn),
	}
	if t.endpoint, err = kcp.NewEndpoint(pc, config); err == nil {
		t.listener, err = t.endpoint.Listen()
	}
	if err != nil {
		_ = pc.Close() // the error that matters is err
		return nil, err
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.running.Go(t.accept)
	return t, nil
}

// Memberlist returns settings for a local network on this transport.
func (t *Transport) Memberlist() *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	at := addrOf(t.pc.LocalAddr())
	c.Name, c.Transport, c.UDPBufferSize = t.name, t, packetSize
	c.BindAddr, c.BindPort, c.AdvertisePort = at.Addr().String(), int(at.Port()), int(at.Port())
	return c
}

// kcpConfig returns the settings of the endpoint. Each end verifies that the other has a
// certificate of the authority, with the name of the cluster in it.
func (c *Config) kcpConfig() (*kcp.Config, error) {
	if c.CA == nil || c.Cluster == "" {
		return nil, errors.New("cluster: CA and Cluster must be set")
	}
	return &kcp.Config{
		TLS: &tls.Config{
			Certificates: []tls.Certificate{c.Certificate},
			RootCAs:      c.CA, ClientCAs: c.CA, ClientAuth: tls.RequireAndVerifyClientCert,
			ServerName: c.Cluster, NextProtos: []string{protocol},
			VerifyConnection: func(s tls.ConnectionState) error {
				return s.PeerCertificates[0].VerifyHostname(c.Cluster)
			},
		},
		StatelessResetKey: identity.ResetKey(c.Certificate, "cluster"), Limits: kcp.Limits{MaxStreams: 64, MaxBuffered: 256 << 20},
		PeerTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
	}, nil
}

// nameIn returns the name of the node in a certificate.
func nameIn(c *tls.Certificate) (string, error) {
	if len(c.Certificate) == 0 {
		return "", errors.New("cluster: Certificate must be set")
	}
	leaf, err := x509.ParseCertificate(c.Certificate[0])
	if err == nil && leaf.Subject.CommonName == "" {
		err = errors.New("cluster: certificate without a common name")
	}
	if err != nil {
		return "", err
	}
	return leaf.Subject.CommonName, nil
}

// accept takes the sessions that other nodes dial. They dial from the port that they
// listen on, so a packet for that address goes by the same session.
func (t *Transport) accept() {
	for {
		conn, err := t.listener.AcceptKCP(t.ctx)
		if err != nil {
			return
		}
		p := &peer{ready: make(chan struct{})}
		t.mu.Lock()
		// If both have dialled at once, each sends by the session that it accepted.
		t.peers[addrOf(conn.RemoteAddr())] = p
		t.startLocked(p, conn)
		t.mu.Unlock()
	}
}

// startLocked begins to take what arrives in a session.
func (t *Transport) startLocked(p *peer, conn *kcp.Conn) {
	p.conn, p.name = conn, conn.Peer().TLS.PeerCertificates[0].Subject.CommonName
	close(p.ready)
	if t.closed {
		_ = conn.Abort(0, "")
		return
	}
	from := addrOf(conn.RemoteAddr())
	t.running.Go(func() { t.takeStreams(conn) })
	t.running.Go(func() {
		t.takePackets(conn)
		_ = conn.Close()
		t.forget(from, p)
	})
}

// forget has the next packet for an address dial again.
func (t *Transport) forget(addr netip.AddrPort, p *peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.peers[addr] == p {
		delete(t.peers, addr)
	}
}

// takePackets takes datagrams until the session ends. If memberlist is slow they are
// dropped, as by any network.
func (t *Transport) takePackets(conn *kcp.Conn) {
	for {
		b, err := conn.ReceiveDatagram(t.ctx)
		if err != nil {
			return
		}
		select {
		case t.packets <- &memberlist.Packet{Buf: b, From: conn.RemoteAddr(), Timestamp: time.Now()}:
		default:
		}
	}
}

// takeStreams takes streams until the session ends.
func (t *Transport) takeStreams(conn *kcp.Conn) {
	for {
		st, err := conn.AcceptStream(t.ctx)
		if err != nil {
			return
		}
		select {
		case t.streams <- st:
		case <-t.ctx.Done():
			_ = st.Reset(0)
			return
		}
	}
}

// peer returns the session with the node at an address, or dials one in the background.
func (t *Transport) peer(address string) (*peer, error) {
	addr, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("cluster: address of a node: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch p := t.peers[addr]; {
	case p != nil:
		return p, nil
	case t.closed:
		return nil, net.ErrClosed
	case t.dials == maxDials:
		return nil, errors.New("cluster: too many dials at a time")
	}
	p := &peer{ready: make(chan struct{})}
	t.peers[addr] = p
	t.dials++
	t.running.Go(func() { t.dial(addr, p) })
	return p, nil
}

func (t *Transport) dial(addr netip.AddrPort, p *peer) {
	ctx, cancel := context.WithTimeout(t.ctx, dialTimeout)
	defer cancel()
	conn, err := t.endpoint.Dial(ctx, net.UDPAddrFromAddrPort(addr), nil)
	if err != nil {
		t.forget(addr, p)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dials--
	if err != nil {
		p.err = err
		close(p.ready)
		return
	}
	t.startLocked(p, conn)
}

// session waits for a session with a node of that name; any, if the name is empty.
func (p *peer) session(ctx context.Context, name string) (*kcp.Conn, error) {
	select {
	case <-p.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if p.err == nil && name != "" && name != p.name {
		return nil, fmt.Errorf("cluster: the node at %v is %q, not %q", p.conn.RemoteAddr(), p.name, name)
	}
	return p.conn, p.err
}

// WriteToAddress sends a packet, and does not wait. Some packets wait for a session that
// is dialled; further ones are dropped.
func (t *Transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	p, err := t.peer(a.Addr)
	if err != nil {
		return time.Time{}, err
	}
	select {
	case <-p.ready:
		conn, err := p.session(t.ctx, a.Name)
		if err == nil {
			err = conn.SendDatagram(b)
		}
		return time.Now(), err
	default:
	}
	if p.waiting.Add(1) > maxWaiting {
		return time.Now(), nil
	}
	b = append([]byte(nil), b...)
	go func() { // until the dial ends
		if conn, err := p.session(t.ctx, a.Name); err == nil {
			_ = conn.SendDatagram(b)
		}
	}()
	return time.Now(), nil
}

// DialAddressTimeout opens a stream to a node.
func (t *Transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(t.ctx, timeout)
	defer cancel()
	p, err := t.peer(a.Addr)
	if err != nil {
		return nil, err
	}
	conn, err := p.session(ctx, a.Name)
	if err != nil {
		return nil, err
	}
	st, err := conn.OpenStream(ctx, nil)
	if err != nil { // not a nil *kcp.Stream in a net.Conn
		return nil, err
	}
	return st, nil
}

// WriteTo is WriteToAddress for a node whose name is not known.
func (t *Transport) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.WriteToAddress(b, memberlist.Address{Addr: addr})
}

// DialTimeout is DialAddressTimeout for a node whose name is not known.
func (t *Transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// PacketCh returns the packets that arrive.
func (t *Transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh returns the streams that other nodes open.
func (t *Transport) StreamCh() <-chan net.Conn { return t.streams }

// FinalAdvertiseAddr returns the address that other nodes are told: the one that is
// given, or the socket's.
func (t *Transport) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	at := addrOf(t.pc.LocalAddr())
	if ip != "" {
		addr, err := netip.ParseAddr(ip)
		return addr.AsSlice(), port, err
	}
	if at.Addr().IsUnspecified() {
		return nil, 0, errors.New("cluster: bound to all addresses: set memberlist.Config.AdvertiseAddr")
	}
	return at.Addr().AsSlice(), int(at.Port()), nil
}

// Shutdown ends all sessions, and closes the socket. What was written before has half a
// second to arrive.
func (t *Transport) Shutdown() error {
	t.mu.Lock()
	again := t.closed
	t.closed = true
	t.mu.Unlock()
	if again {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	_ = t.endpoint.Shutdown(ctx) // what has not arrived by then is lost
	t.cancel()
	err := t.pc.Close()
	t.running.Wait()
	return err
}

// addrOf returns a UDP address, an IPv4 address as such.
func addrOf(a net.Addr) netip.AddrPort {
	u, ok := a.(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(u.AddrPort().Addr().Unmap(), u.AddrPort().Port())
}
