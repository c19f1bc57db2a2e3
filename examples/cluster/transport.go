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
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/arqnet/kcp"
)

// protocol is the application protocol (ALPN) of sessions between nodes.
const protocol = "kcp-cluster/1"

// PacketSize is the size of packets that fit into a datagram on every path, in bytes.
// It is what memberlist.Config.UDPBufferSize has to be.
const PacketSize = 1100

// Bounds on what other nodes, and memberlist, can make a Transport hold.
const (
	maxLargePacket        = 64 << 10 // bytes of a packet that goes by stream
	maxLargePackets       = 16       // of them on their way out, in a session
	maxArrived            = 1024     // packets that wait for memberlist
	maxQueuedPackets      = 64       // packets that wait for a dial
	maxDials              = 128      // dials at the same time
	maxSessionsPerNode    = 8        // sessions with one name
	maxSessionsPerPath    = 4        // sessions with one address
	maxStreams            = 64       // streams that a node may have open in a session
	defaultMaxSessions    = 4096
	defaultMaxBuffered    = 256 << 20
	maxBufferedForWriting = 1 << 20 // bytes of a session written ahead
)

// Times of a Transport.
const (
	dialTimeout   = 5 * time.Second        // of a dial that nobody waits for
	dialPause     = 250 * time.Millisecond // after a dial that has failed
	kindTimeout   = 5 * time.Second        // until a stream has said what it is for
	handOffLimit  = 5 * time.Second        // until memberlist has taken a stream
	packetTimeout = 5 * time.Second        // of a packet that goes by stream
	drainTimeout  = 500 * time.Millisecond // of Shutdown
	peerTimeout   = 10 * time.Second       // default of kcp.Config.PeerTimeout
	idleTimeout   = 2 * time.Minute        // default of kcp.Config.IdleTimeout
)

// Errors of a Transport, besides *WrongNameError, net.ErrClosed and the errors of package
// kcp.
var (
	// ErrPacketTooLarge is returned by WriteTo for packets of more than 64 KiB.
	ErrPacketTooLarge = errors.New("cluster: packet larger than 64 KiB")
	// ErrTooManyDials means that 128 addresses are being dialled already.
	ErrTooManyDials = errors.New("cluster: too many dials at once")
	// ErrOwnAddress means that the address is the Transport's own.
	ErrOwnAddress = errors.New("cluster: own address")
)

// WrongNameError means that the node at an address has a certificate for another name.
type WrongNameError struct {
	Addr      netip.AddrPort
	Want, Got string
}

func (e *WrongNameError) Error() string {
	return fmt.Sprintf("cluster: node at %v is %q, not %q", e.Addr, e.Got, e.Want)
}

// TransportConfig holds the settings of a Transport. It must not be changed while it is
// in use.
type TransportConfig struct {
	// Bind is the UDP address to listen on: an IP address and a port. With port 0 the
	// system chooses one.
	Bind string
	// PacketConn, if not nil, takes the place of a socket on Bind. Shutdown closes it.
	PacketConn net.PacketConn
	// Certificate is this node's, with its key. The common name of its subject is
	// the name of the node.
	Certificate tls.Certificate
	// CA verifies the certificates of all nodes.
	CA *x509.CertPool
	// Cluster is the DNS name that the certificates of all nodes must have.
	Cluster string
	// KCP holds settings of sessions; nil means the defaults. TLS, limits on streams and
	// StatelessResetKey are set by the Transport. PeerTimeout is 10 seconds by default
	// here, IdleTimeout 2 minutes, MaxSessions 4096, and MaxBuffered 256 MiB.
	KCP *kcp.Config
}

// Transport is a memberlist.NodeAwareTransport on one KCP endpoint. It keeps the
// sessions with other nodes, whoever has dialled them, and dials those that are missing
// or have ended.
type Transport struct {
	// The fields above mu are immutable, or synchronize themselves.
	name     string // of this node
	pc       net.PacketConn
	endpoint *kcp.Endpoint
	listener *kcp.Listener
	own      netip.AddrPort // the address of the socket
	ctx      context.Context
	cancel   context.CancelFunc
	running  sync.WaitGroup // all goroutines; Add only under mu, or from one of them
	down     chan struct{}  // closed when Shutdown is done
	packets  chan *memberlist.Packet
	streams  chan net.Conn
	handlers handlers
	counters counters

	mu      sync.Mutex // guards the fields below; no other lock is taken under it
	byAddr  map[netip.AddrPort][]*session
	byName  map[string][]*session
	dials   map[netip.AddrPort]*dial
	dialing int // goroutines that dial
	closed  bool
}

// handlers take what is not for memberlist; nil: it is dropped, and counted.
type handlers struct {
	datagram func(from string, b []byte)       // must not block, and owns b
	messages func(from string, st *kcp.Stream) // owns st; may block
	goodbye  func(from string)                 // must not block
}

var _ memberlist.NodeAwareTransport = (*Transport)(nil)

// NewTransport returns a transport that listens, for memberlist.Config.Transport.
func NewTransport(c *TransportConfig) (*Transport, error) {
	t, err := newTransport(c, handlers{})
	if err != nil {
		return nil, err
	}
	return t, t.start(t.accept)
}

// newTransport returns a transport that takes sessions once accept runs.
func newTransport(c *TransportConfig, h handlers) (*Transport, error) {
	name, err := c.nodeName()
	if err != nil {
		return nil, err
	}
	pc := c.PacketConn
	if pc == nil {
		bind, err := netip.ParseAddrPort(c.Bind)
		if err != nil {
			return nil, fmt.Errorf("cluster: Bind: %w", err)
		}
		if pc, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(bind)); err != nil {
			return nil, err
		}
	}
	t := &Transport{
		name: name, pc: pc, handlers: h,
		down:    make(chan struct{}),
		packets: make(chan *memberlist.Packet, maxArrived),
		streams: make(chan net.Conn),
		byAddr:  make(map[netip.AddrPort][]*session),
		byName:  make(map[string][]*session),
		dials:   make(map[netip.AddrPort]*dial),
	}
	if err := t.listen(c); err != nil {
		_ = pc.Close() // the error that matters is err
		return nil, err
	}
	return t, nil
}

// listen makes the endpoint.
func (t *Transport) listen(c *TransportConfig) error {
	own, ok := t.pc.LocalAddr().(*net.UDPAddr)
	if !ok {
		return fmt.Errorf("cluster: local address of type %T, not *net.UDPAddr", t.pc.LocalAddr())
	}
	t.own = unmap(own.AddrPort())
	var err error
	if t.endpoint, err = kcp.NewEndpoint(t.pc, c.kcpConfig()); err != nil {
		return err
	}
	if t.listener, err = t.endpoint.Listen(); err != nil {
		_ = t.endpoint.Close() // the error that matters is err
		return err
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return nil
}

// nodeName checks what has no default, and returns the name in the certificate.
func (c *TransportConfig) nodeName() (string, error) {
	if c.CA == nil || c.Cluster == "" {
		return "", errors.New("cluster: CA and Cluster must be set")
	}
	if len(c.Certificate.Certificate) == 0 {
		return "", errors.New("cluster: Certificate must be set")
	}
	leaf, err := x509.ParseCertificate(c.Certificate.Certificate[0])
	if err != nil {
		return "", err
	}
	if err := leaf.VerifyHostname(c.Cluster); err != nil {
		return "", err
	}
	return nameIn(leaf)
}

// kcpConfig returns the settings of the endpoint.
func (c *TransportConfig) kcpConfig() *kcp.Config {
	var k kcp.Config
	if c.KCP != nil {
		k = *c.KCP
	}
	k.TLS = tlsConfig(c)
	k.StatelessResetKey = resetKey(c.Certificate.PrivateKey)
	k.MaxStreams = maxStreams
	if k.PeerTimeout == 0 {
		k.PeerTimeout = peerTimeout
	}
	if k.IdleTimeout == 0 {
		k.IdleTimeout = idleTimeout
	}
	if k.MaxSessions == 0 {
		k.MaxSessions = defaultMaxSessions
	}
	if k.MaxBuffered == 0 {
		k.MaxBuffered = defaultMaxBuffered
	}
	if k.WriteBuffer == 0 {
		k.WriteBuffer = maxBufferedForWriting
	}
	return &k
}

// Name returns the name of this node.
func (t *Transport) Name() string { return t.name }

// Addr returns the address of the socket.
func (t *Transport) Addr() netip.AddrPort { return t.own }

// FinalAdvertiseAddr returns the address that other nodes are told: ip and port if they
// are given, otherwise the socket's. If that is bound to all addresses, it is the
// first private address of the system's interfaces.
func (t *Transport) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	if port == 0 || ip == "" {
		port = int(t.own.Port())
	}
	if ip != "" {
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			return nil, 0, fmt.Errorf("cluster: address to advertise: %w", err)
		}
		return addr.Unmap().AsSlice(), port, nil
	}
	if !t.own.Addr().IsUnspecified() {
		return t.own.Addr().AsSlice(), port, nil
	}
	addr, err := privateAddr()
	return addr, port, err
}

// privateAddr returns the first private IPv4 address of the system's interfaces.
func privateAddr() (net.IP, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsPrivate() && n.IP.To4() != nil {
			return n.IP.To4(), nil
		}
	}
	return nil, errors.New("cluster: bound to all addresses, and no interface has a private one: set one to advertise")
}

// WriteTo is WriteToAddress for a node whose name is not known.
func (t *Transport) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.WriteToAddress(b, memberlist.Address{Addr: addr})
}

// WriteToAddress sends a packet to a node, and does not wait. If there is no session
// with it, the packet waits for one that is dialled in the background, and is dropped
// if that fails. A packet that does not fit into a datagram goes by a stream of its own.
func (t *Transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	if len(b) > maxLargePacket {
		return time.Time{}, ErrPacketTooLarge
	}
	addr, err := parseAddr(a.Addr)
	if err != nil {
		return time.Time{}, err
	}
	if err := t.write(addr, a.Name, append([]byte{datagramPacket}, b...)); err != nil {
		return time.Time{}, err
	}
	return time.Now(), nil
}

// PacketCh returns the packets that arrive for memberlist.
func (t *Transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// DialTimeout is DialAddressTimeout for a node whose name is not known.
func (t *Transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// DialAddressTimeout opens a stream to a node. If there is no session with it, it dials
// one, and waits for that. The result is a *kcp.Stream.
func (t *Transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	addr, err := parseAddr(a.Addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(t.ctx, timeout)
	defer cancel()
	st, err := t.open(ctx, addr, a.Name, streamMemberlist)
	if err != nil {
		return nil, err
	}
	return st, nil
}

// StreamCh returns the streams that other nodes open for memberlist.
func (t *Transport) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown ends all sessions, and closes the socket. What was written before has half a
// second to arrive. It returns when all goroutines have ended. A further call waits for
// the first one.
func (t *Transport) Shutdown() error {
	t.mu.Lock()
	again := t.closed
	t.closed = true
	t.mu.Unlock()
	if again {
		<-t.down
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	_ = t.endpoint.Shutdown(ctx) // what has not arrived by then is lost
	t.cancel()
	_ = t.endpoint.Close() // closed by Shutdown, unless that was cut short
	err := t.pc.Close()
	t.running.Wait()
	close(t.down)
	return err
}

// start runs f on a goroutine that Shutdown waits for.
func (t *Transport) start(f func()) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return net.ErrClosed
	}
	t.running.Go(f)
	return nil
}

// parseAddr returns the address that memberlist means.
func parseAddr(addr string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(addr)
	if err != nil {
		return a, fmt.Errorf("cluster: address of a node: %w", err)
	}
	return unmap(a), nil
}

// unmap returns an IPv4 address as such, if it was mapped into IPv6.
func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
