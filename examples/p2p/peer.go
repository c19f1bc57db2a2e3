package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/identity"
)

const (
	// Application protocols (ALPN): with the rendezvous server, and with the peer.
	protoMeet, protoPipe = "p2p-meet/2", "p2p-pipe/1"

	roleSend, roleGet = "send", "get"

	peerTimeout = 15 * time.Second
	// keepAlive is below the 30 seconds for which some NATs keep a mapping. The least
	// that they should is two minutes (RFC 4787 §4.3).
	keepAlive = 10 * time.Second
)

// node is an end: one socket for all that it does, so that a NAT maps all of it to the
// same address.
type node struct {
	role   string
	secret *secret
	pc     net.PacketConn
	ep     *kcp.Endpoint
	key    string       // fingerprint of its own key
	peer   atomic.Value // a string: fingerprint of the peer's
	log    *log.Logger
}

// newNode returns an end at pc.
func newNode(pc net.PacketConn, role, code string, log *log.Logger) (*node, error) {
	s, err := newSecret(code)
	if err != nil {
		return nil, err
	}
	cert, err := identity.New("p2p")
	if err != nil {
		return nil, err
	}
	n := &node{role: role, secret: s, pc: pc, key: identity.Fingerprint(cert.Leaf), log: log}
	n.ep, err = kcp.NewEndpoint(pc, &kcp.Config{TLS: n.tls(cert), PeerTimeout: peerTimeout, KeepAlive: keepAlive, Limits: kcp.Limits{MaxStreams: -1}})
	return n, err
}

// tls returns the settings of an end that may become the client or the server of the
// session with its peer. ALPN tells the peer from the rendezvous server.
func (n *node) tls(cert tls.Certificate) *tls.Config {
	return &tls.Config{
		Certificates:           []tls.Certificate{cert},
		NextProtos:             []string{protoPipe, protoMeet}, // the server has the second only
		ClientAuth:             tls.RequireAnyClientCert,
		InsecureSkipVerify:     true, // VerifyConnection takes its place
		SessionTicketsDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			if state.NegotiatedProtocol == protoMeet {
				return nil
			}
			key, _ := n.peer.Load().(string)
			return identity.Verify(state, key)
		},
	}
}

// close ends the sessions, once their peers have all, and the socket.
func (n *node) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = n.ep.Shutdown(ctx)
	_ = n.pc.Close()
}

// meet meets the peer at a rendezvous server, and opens a session with it.
func (n *node) meet(ctx context.Context, server net.Addr) (*kcp.Conn, error) {
	conn, err := n.ep.Dial(ctx, server, nil)
	if err != nil {
		return nil, fmt.Errorf("rendezvous server: %w", err)
	}
	defer conn.Abort(0, "")
	defer context.AfterFunc(ctx, func() { _ = conn.Abort(0, "") })()
	in := json.NewDecoder(io.LimitReader(conn, 2*maxJSON))
	var g greeting
	if err := in.Decode(&g); err != nil {
		return nil, fmt.Errorf("rendezvous server: %w", err)
	}
	me := &card{n.role, n.key, addresses(addrPort(n.pc.LocalAddr()))}
	n.log.Printf("addresses: %v, and %v for the server", me.At, g.Observed)
	mine, err := n.secret.seal(me)
	if err != nil {
		return nil, err
	}
	if err := json.NewEncoder(conn).Encode(join{n.secret.room, n.role, mine}); err != nil {
		return nil, fmt.Errorf("rendezvous server: %w", err)
	}
	n.log.Print("waiting for the peer")
	var m match
	if err := in.Decode(&m); err != nil {
		return nil, fmt.Errorf("rendezvous server: %w", err)
	}
	peer, err := n.secret.open(m.Card, n.role)
	if err != nil {
		return nil, err
	}
	peer.At = append([]netip.AddrPort{m.Observed}, peer.At...)
	return n.open(ctx, peer)
}

// open opens the session with the peer. Both ends dial at the same time (simultaneous
// open), so NATs at both let the packets in.
func (n *node) open(ctx context.Context, peer *card) (*kcp.Conn, error) {
	n.peer.Store(peer.Key)
	var addrs []net.Addr
	for i, a := range peer.At {
		reachable := a.IsValid() && (a.Addr().Is4() || !addrPort(n.pc.LocalAddr()).Addr().Is4())
		if reachable && !slices.Contains(peer.At[:i], a) {
			addrs = append(addrs, net.UDPAddrFromAddrPort(a))
		}
	}
	if len(addrs) == 0 {
		return nil, errors.New("the peer has named no address that this end can reach")
	}
	n.log.Printf("dialling the peer at %v, as it dials this end", addrs)
	conn, err := n.ep.Dial(ctx, addrs[0], &kcp.DialOptions{SimultaneousOpen: true, Candidates: addrs[1:]})
	if err != nil {
		return nil, fmt.Errorf("the peer has gone, or a NAT or firewall lets nothing pass: %w", err)
	}
	if conn.Peer().TLS.NegotiatedProtocol != protoPipe { // then VerifyConnection has not compared
		_ = conn.Abort(0, "")
		return nil, errors.New("the session is not with the peer")
	}
	n.log.Printf("session with the peer at %s", conn.RemoteAddr())
	return conn, nil
}

// addresses returns the addresses of a socket on this host, at which a peer in the same
// network may reach it.
func addresses(socket netip.AddrPort) (all []netip.AddrPort) {
	if !socket.Addr().IsUnspecified() {
		return []netip.AddrPort{socket}
	}
	interfaces, _ := net.InterfaceAddrs() // without them what the server sees remains
	for _, a := range interfaces {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		ip, _ := netip.AddrFromSlice(n.IP)
		if ip = ip.Unmap(); ip.IsGlobalUnicast() {
			all = append(all, netip.AddrPortFrom(ip, socket.Port()))
		}
	}
	return all
}

// addrPort returns a UDP address, an IPv4 address as such. It is not valid if a is none.
func addrPort(a net.Addr) netip.AddrPort {
	u, ok := a.(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(u.AddrPort().Addr().Unmap(), u.AddrPort().Port())
}
