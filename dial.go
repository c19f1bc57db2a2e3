package kcp

import (
	"context"
	"net"
	"strings"
)

// Dialer dials sessions, each from a socket of its own. It fits where a
// net.Dialer does, as in http.Transport.DialContext. The zero value is ready.
type Dialer struct {
	// Config holds the settings of the sessions; nil means the defaults.
	Config *Config
	// LocalAddr is the local address to dial from, a *net.UDPAddr. nil lets
	// the system choose.
	LocalAddr net.Addr
}

// Dial opens a session with the peer at address. network is "udp", "udp4" or
// "udp6", address "host:port". config may be nil.
//
// It waits for the peer's answer as Endpoint.Dial does: ErrRefused means that
// nobody accepts sessions there, a *NoAnswerError that nothing came for
// Config.DialTimeout.
//
// The socket outlives the session: for seven seconds after the peer has closed
// it, or its side of it, the peer's last questions are answered. Beyond 256 such
// sockets in a process it is 0.2 to 3 seconds, as it is where the caller has
// chosen the local port.
func Dial(network, address string, config *Config) (*Conn, error) {
	d := Dialer{Config: config}
	return d.dial(context.Background(), network, address)
}

// DialContext opens a session as Dial does; the result is a *Conn. ctx bounds
// the resolution of address and the wait for the peer's answer; when it ends
// later, the session is not affected.
// The TCP networks are taken for the UDP ones of the same address family, for
// callers that cannot be told another.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (d *Dialer) dial(ctx context.Context, network, address string) (*Conn, error) {
	if err := d.Config.Validate(); err != nil {
		return nil, err
	}
	network, err := udpNetwork(network)
	if err != nil {
		return nil, opError("dial", nil, nil, err)
	}
	nd := net.Dialer{LocalAddr: d.LocalAddr}
	socket, err := nd.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	e := newEndpoint(d.Config, true, socket.(*net.UDPConn))
	e.mu.Lock()
	e.socket.connected = true
	e.socket.disposable = !d.wantsPort()
	e.mu.Unlock()
	c, err := e.Dial(ctx, socket.RemoteAddr())
	if err != nil {
		_ = e.Close() // the error that matters is err
		return nil, err
	}
	return c, nil
}

// wantsPort reports whether the local port is one that the caller has chosen, and
// may want to have again.
func (d *Dialer) wantsPort() bool {
	local, ok := d.LocalAddr.(*net.UDPAddr)
	return ok && local != nil && local.Port != 0
}

// udpNetwork returns the UDP network for the name of a network.
func udpNetwork(network string) (string, error) {
	switch network {
	case "udp", "udp4", "udp6":
		return network, nil
	case "tcp", "tcp4", "tcp6":
		return "udp" + strings.TrimPrefix(network, "tcp"), nil
	}
	return "", net.UnknownNetworkError(network)
}
