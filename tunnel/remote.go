package tunnel

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// Remote is one thing that a client wants: where to listen, and what to reach from
// the other end.
type Remote struct {
	// Reverse makes the server listen, and the client dial.
	Reverse bool
	// UDP carries packets instead of connections.
	UDP bool
	// Socks offers SOCKS5 instead of one target.
	Socks bool
	// Stdio connects standard input and output with the target, instead of
	// listening.
	Stdio bool
	// Listen is where to listen, as host:port. Port 0 lets the system choose.
	Listen string
	// Target is what to reach, as host:port; empty with Socks.
	Target string
}

// ParseRemote parses a remote in the form of chisel and ssh:
//
//	8080:intranet:80            listen on 127.0.0.1:8080, reach intranet:80 from the server
//	0.0.0.0:8080:intranet:80    the same, listening on all addresses
//	intranet:80                 the same port here and there
//	3000                        the server's own port 3000
//	[::1]:8080:[2001:db8::1]:80 IPv6 addresses stand in brackets
//	5353:1.1.1.1:53/udp         UDP
//	socks                       SOCKS5 on 127.0.0.1:1080; 5000:socks on port 5000
//	stdio:host:22               standard input and output
//	R:2222:localhost:22         listen at the server on 0.0.0.0:2222, reach this machine
//	R:socks                     SOCKS5 at the server, which reaches what this machine does
func ParseRemote(s string) (Remote, error) {
	r, err := parseRemote(s)
	if err != nil {
		return Remote{}, fmt.Errorf("remote %q: %w", s, err)
	}
	return r, nil
}

func parseRemote(s string) (r Remote, err error) {
	s, r.Reverse = strings.CutPrefix(s, "R:")
	if rest, ok := strings.CutPrefix(s, "stdio:"); ok {
		r.Stdio = true
		s = rest
	}
	if rest, ok := strings.CutSuffix(s, "/udp"); ok {
		r.UDP = true
		s = rest
	} else {
		s = strings.TrimSuffix(s, "/tcp")
	}
	parts, err := splitRemote(s)
	if err != nil {
		return r, err
	}
	if parts[len(parts)-1] == "socks" {
		r.Socks = true
		parts = parts[:len(parts)-1]
	}
	switch {
	case slices.Contains(parts, ""):
		return r, errors.New("a part is empty; to listen on all addresses say 0.0.0.0 or [::]")
	case r.Stdio && (r.Reverse || r.Socks || r.UDP || len(parts) != 2):
		return r, errors.New("stdio takes a target of TCP, as in stdio:host:22")
	case r.Socks && r.UDP:
		return r, errors.New("socks carries UDP by itself: leave out /udp")
	}
	return r, r.assign(parts)
}

// splitRemote splits s at the colons outside of brackets, which it removes.
func splitRemote(s string) (parts []string, err error) {
	for {
		var part string
		if strings.HasPrefix(s, "[") {
			end := strings.IndexByte(s, ']')
			if end < 0 {
				return nil, errors.New("a bracket is not closed")
			}
			part, s = s[1:end], s[end+1:]
			if !strings.Contains(part, ":") {
				return nil, fmt.Errorf("[%s] is not an IPv6 address", part)
			}
			if s != "" && s[0] != ':' {
				return nil, fmt.Errorf("want a colon after [%s]", part)
			}
			parts = append(parts, part)
			if s == "" {
				return parts, nil
			}
			s = s[1:]
			continue
		}
		var more bool
		part, s, more = strings.Cut(s, ":")
		parts = append(parts, part)
		if !more {
			return parts, nil
		}
	}
}

// assign gives the parts, which are read from the right, their places.
func (r *Remote) assign(parts []string) error {
	take := func(port bool) string {
		if len(parts) == 0 {
			return ""
		}
		last := parts[len(parts)-1]
		if digits := last != "" && strings.Trim(last, "0123456789") == ""; digits != port {
			return ""
		}
		parts = parts[:len(parts)-1]
		return last
	}
	var targetPort, targetHost string
	if !r.Socks {
		if targetPort = take(true); targetPort == "" {
			return errors.New("want a port at the end, as in 8080:host:80")
		}
		targetHost = orElse(take(false), "127.0.0.1")
	}
	listenPort := orElse(take(true), targetPort, "1080")
	listenHost := "127.0.0.1"
	if r.Reverse && !r.Socks {
		listenHost = "0.0.0.0"
	}
	listenHost = orElse(take(false), listenHost)
	if len(parts) > 0 {
		return fmt.Errorf("%q has too many parts: want [[host:]port:]host:port", parts[len(parts)-1])
	}
	var err error
	if !r.Socks {
		if r.Target, err = canonicalTarget(net.JoinHostPort(targetHost, targetPort)); err != nil {
			return err
		}
	}
	if !r.Stdio {
		r.Listen, err = canonicalListen(net.JoinHostPort(listenHost, listenPort))
	}
	return err
}

// orElse returns the first that is not empty.
func orElse(all ...string) string {
	for _, s := range all {
		if s != "" {
			return s
		}
	}
	return ""
}

// canonicalListen is canonicalTarget for where to listen: the port may be 0.
func canonicalListen(s string) (string, error) {
	host, port, err := splitTarget(s)
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port))), nil
}

// String returns the remote in full, in the form that ParseRemote takes.
func (r Remote) String() string {
	var b strings.Builder
	if r.Reverse {
		b.WriteString("R:")
	}
	switch {
	case r.Stdio:
		b.WriteString("stdio:" + r.Target)
	case r.Socks:
		b.WriteString(r.Listen + ":socks")
	default:
		b.WriteString(r.Listen + ":" + r.Target)
	}
	if r.UDP {
		b.WriteString("/udp")
	}
	return b.String()
}

// opening returns what is asked of the server for the remote: for each connection
// or flow, or, if the server is to listen, once.
func (r Remote) opening() opening {
	switch {
	case r.Reverse && r.Socks:
		return opening{kind: kindListenSocks, target: r.Listen}
	case r.Reverse && r.UDP:
		return opening{kind: kindListenUDP, target: r.Listen}
	case r.Reverse:
		return opening{kind: kindListenTCP, target: r.Listen}
	case r.UDP:
		return opening{kind: kindUDP, target: r.Target}
	}
	return opening{kind: kindTCP, target: r.Target}
}

// name returns the remote as figures name it, the same at both ends.
func (r Remote) name() string {
	if r.Socks && !r.Reverse {
		return "socks"
	}
	return r.opening().rule()
}

// network returns the network of where to listen.
func (r Remote) network() string {
	if r.UDP {
		return "udp"
	}
	return "tcp"
}
