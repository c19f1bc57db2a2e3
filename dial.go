package kcp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"

	"github.com/arqnet/kcp/internal/eyeballs"
)

// Dialer dials sessions, each from a socket of its own. The zero value is ready to use.
// A Dialer is safe for concurrent use, as long as its fields do not change.
type Dialer struct {
	// Config holds the settings of the sessions; nil means the defaults. It
	// must not be changed while a session uses it.
	Config *Config
	// LocalAddr is the local address to dial from, a *net.UDPAddr. nil lets the
	// system choose, and so does an IP that is unspecified or missing. A session
	// keeps an address that the caller has chosen, even if the host gets another.
	LocalAddr net.Addr
}

// Dial opens a session with the peer at address, from a socket of its own. network is
// "udp", "udp4" or "udp6", address is "host:port". config may be nil, which means the
// defaults; an invalid one is a *ConfigError.
//
// It waits for the peer's answer, and has the errors of Endpoint.Dial: ErrRefused if no
// endpoint accepts sessions there, a *NoAnswerError if no answer arrived within
// Config.DialTimeout. That does not bound the lookup of the name: the context of
// DialContext does. The addresses of a name are tried in turn, each 250 ms after the
// one before (Happy Eyeballs, RFC 8305). If none answers, the error is the one of the
// first.
//
// When the host's address or its route changes, the socket sends from the new address,
// on Unix systems: with TLS or a Cipher that authenticates the session goes on, otherwise
// the peer resets it. docs/running.md has the details.
//
// The socket outlives the session by up to seven seconds, to answer retransmissions of
// the peer. docs/calls.md has the details.
func Dial(network, address string, config *Config) (*Conn, error) {
	d := Dialer{Config: config}
	return d.dial(context.Background(), network, address)
}

// DialContext is Dial with a context, as for Dialer.DialContext.
func DialContext(ctx context.Context, network, address string, config *Config) (*Conn, error) {
	d := Dialer{Config: config}
	return d.dial(ctx, network, address)
}

// DialContext opens a session as Dial does; the result is a *Conn. It fits where that of
// a net.Dialer does, as in http.Transport.DialContext. Once it has returned, ctx has no
// effect on the session. The networks "tcp", "tcp4" and "tcp6" mean the UDP network of
// the same address family.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// dial is DialContext with a *Conn for a result.
func (d *Dialer) dial(ctx context.Context, network, address string) (*Conn, error) {
	if err := d.Config.validateFor(true); err != nil {
		return nil, err
	}
	network, err := udpNetwork(network)
	if err != nil {
		return nil, opError("dial", nil, nil, err)
	}
	addrs, port, err := d.resolve(ctx, network, address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	config := d.Config.named(address)
	if len(addrs) == 0 {
		return d.dialOne(ctx, config, network, address)
	}
	delay := eyeballs.Delay
	if d.wantsPort() {
		delay = 0 // one socket at a time can have the port
	}
	return eyeballs.Race(ctx, len(addrs), delay, func(ctx context.Context, i int) (*Conn, error) {
		return d.dialOne(ctx, config, network, net.JoinHostPort(addrs[i].String(), port))
	}, func(c *Conn) { _ = c.Abort() })
}

// resolve returns the addresses that dial tries in turn. There are none if one
// attempt is to have address as it is: it has no name, or the attempt does not show
// whether there is a peer.
func (d *Dialer) resolve(ctx context.Context, network, address string) (addrs []netip.Addr, port string, err error) {
	if address == "" {
		return nil, "", &net.AddrError{Err: "missing address"} // that of net.Dialer has no type
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || d.Config != nil && d.Config.DialTimeout < 0 {
		return nil, "", nil // net.Dialer has the error, if it is one
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return nil, "", nil
	}
	found, err := withDescriptors(func() ([]netip.Addr, error) {
		return net.DefaultResolver.LookupNetIP(ctx, "ip"+strings.TrimPrefix(network, "udp"), host)
	})
	if err != nil {
		return nil, "", err
	}
	local, _ := d.LocalAddr.(*net.UDPAddr)
	for _, a := range found {
		a = a.Unmap()
		if local == nil || local.IP == nil || local.IP.IsUnspecified() || (local.IP.To4() != nil) == a.Is4() {
			addrs = append(addrs, a)
		}
	}
	return eyeballs.Interleave(addrs), port, nil
}

// dialOne dials one address, or the first of a name for which a socket can be
// opened.
func (d *Dialer) dialOne(ctx context.Context, config *Config, network, address string) (*Conn, error) {
	nd := net.Dialer{LocalAddr: d.LocalAddr}
	if config != nil {
		nd.Control = config.Control
	}
	socket, err := withDescriptors(func() (net.Conn, error) { return nd.DialContext(ctx, network, address) })
	if err != nil {
		return nil, err
	}
	e := newEndpoint(config, true, socket.(*net.UDPConn))
	e.mu.Lock()
	e.socket.connected = true
	e.socket.disposable = !d.wantsPort()
	e.mu.Unlock()
	e.keepConnected(socket.(*net.UDPConn), d.LocalAddr)
	unwound := true
	defer func() {
		if unwound { // by code of the application's
			_ = e.Close()
		}
	}()
	c, err := e.Dial(ctx, socket.RemoteAddr())
	unwound = false
	if err != nil {
		_ = e.Close() // the error that matters is err
		if errors.Is(err, errOwnAddress) && !d.wantsPort() {
			// The system has chosen the very port, which nobody else has.
			return nil, opError("dial", socket.LocalAddr(), socket.RemoteAddr(), ErrRefused)
		}
		return nil, err
	}
	return c, nil
}

// named returns c with the host of address as TLS.ServerName, if that is empty.
func (c *Config) named(address string) *Config {
	if c == nil || c.TLS == nil || c.TLS.ServerName != "" {
		return c
	}
	d := *c
	d.TLS = c.TLS.Clone()
	d.TLS.ServerName = serverName(address)
	return &d
}

// wantsPort reports whether the caller has chosen the local port, and may want
// to use it again.
func (d *Dialer) wantsPort() bool {
	local, ok := d.LocalAddr.(*net.UDPAddr)
	return ok && local != nil && local.Port != 0
}

// udpNetwork returns the UDP network for the name of a UDP or TCP network.
func udpNetwork(network string) (string, error) {
	switch network {
	case "udp", "udp4", "udp6":
		return network, nil
	case "tcp", "tcp4", "tcp6":
		return "udp" + strings.TrimPrefix(network, "tcp"), nil
	}
	return "", net.UnknownNetworkError(network)
}
