package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/arqnet/kcp"
)

const (
	peerTimeout = 15 * time.Second
	// keepAlive is below the 30 seconds for which some NATs keep a mapping. The least
	// that they should is two minutes (RFC 4787 §4.3).
	keepAlive = 10 * time.Second
)

// node is an end: a socket, for all that it does, and what it knows of the other end.
type node struct {
	socket *stunConn
	ep     *kcp.Endpoint
	pins   *pins
	key    string // fingerprint of its own key
	secret *secret
	role   string
	server string   // of the rendezvous, as host:port
	stun   []string // further STUN servers
	log    *log.Logger
}

// newNode returns an end at pc, which it closes with close.
func newNode(pc net.PacketConn, role, code string, log *log.Logger) (*node, error) {
	s, err := newSecret(code)
	if err != nil {
		return nil, err
	}
	cert, err := newKey()
	if err != nil {
		return nil, err
	}
	n := &node{socket: newSTUNConn(pc, false), pins: new(pins), key: fingerprint(cert.Leaf), secret: s, role: role, log: log}
	config := &kcp.Config{
		TLS: peerTLS(cert, n.pins), PeerTimeout: peerTimeout, KeepAlive: keepAlive, MaxStreams: -1,
	}
	n.ep, err = kcp.NewEndpoint(n.socket, config)
	return n, err
}

func (n *node) close() {
	_ = n.ep.Close()
	_ = n.socket.Close()
}

// peer is what an end knows about the other.
type peer struct {
	card *card
	at   []netip.AddrPort // where to dial it, the best first
	own  natKind          // of the NAT in front of this end
}

// meet asks the rendezvous server for the peer, and opens a session with it.
func (n *node) meet(ctx context.Context) (*kcp.Conn, error) {
	p, err := n.ask(ctx)
	if err != nil {
		return nil, fmt.Errorf("rendezvous server %s: %w", n.server, err)
	}
	return n.open(ctx, p)
}

// resolve returns the addresses of a host and port that the socket can send to.
func (n *node) resolve(ctx context.Context, address string) ([]netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "udp", service)
	if err != nil {
		return nil, err
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	var all []netip.AddrPort
	v4 := addrPort(n.socket.LocalAddr()).Addr().Is4()
	for _, ip := range ips {
		if ip = ip.Unmap(); ip.Is4() || !v4 {
			all = append(all, netip.AddrPortFrom(ip, uint16(port)))
		}
	}
	if len(all) == 0 {
		return nil, &net.AddrError{Err: "no address that the socket can send to", Addr: address}
	}
	return all, nil
}

// dialServer opens a session with the rendezvous server. An address of a name is tried
// after the one before has not answered.
func (n *node) dialServer(ctx context.Context) (conn *kcp.Conn, err error) {
	addrs, err := n.resolve(ctx, n.server)
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		if conn, err = n.ep.Dial(ctx, net.UDPAddrFromAddrPort(a)); err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	if p := conn.ConnectionState().TLS.NegotiatedProtocol; p != protoMeet {
		_ = conn.Abort()
		return nil, fmt.Errorf("it speaks %q", p)
	}
	return conn, nil
}

// ask joins the room of the code, and waits for the peer.
func (n *node) ask(ctx context.Context) (*peer, error) {
	conn, err := n.dialServer(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { go func() { _ = conn.Close() }() }() // it waits for the server
	defer context.AfterFunc(ctx, func() { _ = conn.AbortWithError(codeInterrupted, "interrupted") })()
	var g greeting
	if err := readJSON(conn, &g); err != nil {
		return nil, cause(ctx, err)
	}
	me := n.describe(ctx, addrPort(conn.RemoteAddr()), &g)
	n.log.Printf("NAT: %s; addresses: %v", me.nat, me.at)
	if err := writeJSON(conn, join{n.secret.room, n.role, n.secret.seal(me)}); err != nil {
		return nil, cause(ctx, err)
	}
	n.log.Print("waiting for the peer")
	var m match
	if err := readJSON(conn, &m); err != nil {
		return nil, cause(ctx, err)
	}
	c, err := n.secret.open(m.Card, other(n.role))
	if err != nil {
		return nil, err
	}
	return &peer{c, ordered(c.at, m.Observed, g.Observed), me.nat}, nil
}

// cause returns why ctx is done if it is, and else err.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// describe makes this end's card.
func (n *node) describe(ctx context.Context, server netip.AddrPort, g *greeting) *card {
	servers := here(server, g.STUN)[1:]
	for _, s := range n.stun {
		at, err := n.resolve(ctx, s)
		if err != nil {
			n.log.Printf("STUN server %s: %s", s, err)
			continue
		}
		servers = append(servers, at[:min(len(at), 2)]...)
	}
	seen := append([]netip.AddrPort{g.Observed}, reflexive(ctx, n.socket, servers)...)
	reachable, local := hosts(addrPort(n.socket.LocalAddr()))
	kind := kindOf(append(local, reachable...), seen)
	return &card{n.role, n.key, kind, candidates(reachable, seen)}
}

// open opens the session with the peer, and checks its key. Both ends dial at the same
// time (simultaneous open), so NATs at both let the packets in.
func (n *node) open(ctx context.Context, p *peer) (*kcp.Conn, error) {
	if len(p.at) == 0 {
		return nil, errors.New("the peer has named no address")
	}
	n.pins.expect(p.card.key)
	at := p.at
	if len(at) > 1+maxCandidates {
		at = at[:1+maxCandidates]
	}
	var addrs []net.Addr
	for _, a := range at {
		if a.Addr().Is6() && addrPort(n.socket.LocalAddr()).Addr().Is4() {
			continue // this socket is IPv4
		}
		addrs = append(addrs, net.UDPAddrFromAddrPort(a))
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("the peer has only IPv6 addresses: %v", at)
	}
	conn, err := n.reach(ctx, p, addrs)
	if err != nil {
		return nil, explain(cause(ctx, err), p)
	}
	state := conn.ConnectionState().TLS
	if state.NegotiatedProtocol != protoFile || fingerprint(state.PeerCertificates[0]) != p.card.key {
		_ = conn.Abort()
		return nil, errors.New("the session is not with the peer")
	}
	n.log.Printf("session with the peer at %s", conn.RemoteAddr())
	return conn, nil
}

// symmetricWait is how long an end with a symmetric NAT in front of it or of its peer
// waits for the peer: only addresses that need no mapping can work, and they answer soon.
const symmetricWait = 4 * time.Second

// reach opens the session as the NATs require.
func (n *node) reach(ctx context.Context, p *peer, addrs []net.Addr) (*kcp.Conn, error) {
	if p.own == natDependent || p.card.nat == natDependent {
		limited, cancel := context.WithTimeout(ctx, symmetricWait)
		defer cancel()
		ctx = limited
	}
	switch {
	case p.own == natNone && p.card.nat == natDependent:
		return n.accept(ctx)
	case p.own == natDependent && p.card.nat == natNone:
		return n.dial(ctx, addrs)
	}
	n.log.Printf("dialling the peer at %v, as it dials this end", addrs)
	return n.ep.DialWith(ctx, addrs[0], kcp.DialOptions{SimultaneousOpen: true, Candidates: addrs[1:]})
}

// accept lets the peer dial. Nobody knows which address its NAT will give it, and this
// end needs to know none. Others do not have the key that this end expects.
func (n *node) accept(ctx context.Context) (*kcp.Conn, error) {
	n.log.Print("waiting for the peer to dial, as its NAT is symmetric")
	l, err := n.ep.Listen()
	if err != nil {
		return nil, err
	}
	defer l.Close() // the session goes on
	conn, err := l.AcceptKCP(ctx)
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		err = &kcp.NoAnswerError{Waited: symmetricWait}
	}
	return conn, err
}

// dial dials one address after the other, so that there are not two sessions. A peer that
// refuses may not have been told of this end yet.
func (n *node) dial(ctx context.Context, addrs []net.Addr) (conn *kcp.Conn, err error) {
	for _, a := range addrs {
		n.log.Printf("dialling the peer at %v", a)
		one, cancel := context.WithTimeout(ctx, symmetricWait/2)
		conn, err = n.ep.Dial(one, a)
		for errors.Is(err, kcp.ErrRefused) && one.Err() == nil {
			select {
			case <-time.After(100 * time.Millisecond):
			case <-one.Done():
			}
			conn, err = n.ep.Dial(one, a)
		}
		cancel()
		if err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// natError means that the packets of the two ends cannot get through the NATs between
// them. Another attempt from the same networks would fail too.
type natError struct {
	text string
	err  error
}

func (e *natError) Error() string { return e.text + ": " + e.err.Error() }
func (e *natError) Unwrap() error { return e.err }

// explain returns err, with the reason if that is known.
func explain(err error, p *peer) error {
	var none *kcp.NoAnswerError
	if !errors.As(err, &none) {
		return err
	}
	who := ""
	switch {
	case p.own == natDependent && p.card.nat == natDependent:
		who = "both ends are"
	case p.own == natDependent:
		who = "this end is"
	case p.card.nat == natDependent:
		who = "the peer is"
	case p.own != natUnknown && p.card.nat != natUnknown:
		return fmt.Errorf("a firewall lets no UDP packets of the peer in, at either end, or the peer has gone: %w", err)
	default:
		return fmt.Errorf("the peer has gone, or a NAT or firewall on the way lets nothing pass: %w", err)
	}
	return &natError{who + " behind a symmetric NAT (address-dependent mapping, RFC 4787 §4.1), which needs a relay", err}
}
