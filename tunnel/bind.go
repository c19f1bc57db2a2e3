package tunnel

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/tunnel/internal/carrier"
)

// way is one way to a server: its address, and where the packets leave.
type way struct {
	server string
	bind   string // local address, or name of an interface; empty: the system chooses
}

func (w way) String() string {
	if w.bind == "" {
		return w.server
	}
	return w.server + " by " + w.bind
}

// ways returns the ways on which the client keeps sessions.
func (c *Client) ways() (all []way) {
	for _, server := range c.config.Servers {
		if len(c.config.Binds) == 0 {
			all = append(all, way{server: server})
		}
		for _, b := range c.config.Binds {
			all = append(all, way{server, b})
		}
	}
	return all
}

// parseBind returns the address that text is; invalid: it is the name of an
// interface.
func parseBind(text string) (netip.Addr, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return a, nil
	}
	if text == "" || !validInterface(text) {
		return netip.Addr{}, fmt.Errorf("%q is neither a local address nor the name of a network interface", text)
	}
	return netip.Addr{}, nil
}

// dialUDP dials a session on a way over UDP.
func (c *Client) dialUDP(ctx context.Context, w way) (carrier.Conn, error) {
	settings := *c.settings
	d := kcp.Dialer{Config: &settings}
	from, control, err := w.leaves()
	if from.IsValid() {
		d.LocalAddr = net.UDPAddrFromAddrPort(from)
	}
	if control != nil {
		settings.Control = control
	}
	if err != nil {
		return nil, err
	}
	conn, err := d.DialContext(ctx, "udp", w.server)
	if err != nil {
		return nil, w.dialError(err)
	}
	return carrier.KCP{Conn: conn.(*kcp.Conn)}, nil
}

// leaves returns where what is dialled on a way leaves: an address, or what binds a
// socket to an interface. Interfaces are looked at each time, as their addresses change.
func (w way) leaves() (from netip.AddrPort, control func(network, address string, c syscall.RawConn) error, err error) {
	if w.bind == "" {
		return from, nil, nil
	}
	addr, err := parseBind(w.bind)
	if err == nil && !addr.IsValid() {
		if control = deviceControl(w.bind); control != nil {
			return from, control, nil
		}
		addr, err = interfaceAddr(w.bind)
	}
	return netip.AddrPortFrom(addr, 0), nil, err
}

// dialError returns an error of dialling on a way.
func (w way) dialError(err error) error {
	if w.bind == "" {
		return err
	}
	return fmt.Errorf("from %s: %w", w.bind, err)
}

// interfaceAddr returns an address of an interface, of IPv4 if it has one.
func interfaceAddr(name string) (netip.Addr, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("network interface %q: %w", name, err)
	}
	addrs, err := i.Addrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("network interface %q: %w", name, err)
	}
	var other netip.Addr
	for _, a := range addrs {
		prefix, err := netip.ParsePrefix(a.String())
		switch addr := prefix.Addr(); {
		case err != nil || addr.IsLinkLocalUnicast():
		case addr.Is4():
			return addr, nil
		default:
			other = addr
		}
	}
	if !other.IsValid() {
		return other, fmt.Errorf("network interface %q has no address", name)
	}
	return other, nil
}
