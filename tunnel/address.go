package tunnel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// maxTarget is the longest target in bytes: a name of 253 bytes, brackets, port.
const maxTarget = 300

// canonicalTarget returns the one spelling of "host:port" that rules are matched
// against, and that is dialled. IPv4 addresses within IPv6 (::ffff:127.0.0.1) become
// IPv4 addresses, other IPv6 addresses are shortest and in brackets, names are in
// lower case, and ports have no leading zeros. What some resolvers take for an
// address, such as 127.1 and 0x7f000001, is refused.
func canonicalTarget(s string) (string, error) {
	host, port, err := splitTarget(s)
	if err != nil {
		return "", err
	}
	if port == 0 {
		return "", fmt.Errorf("target %q: port 0 cannot be reached", s)
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port))), nil
}

// splitTarget returns host and port of s, with the host as canonicalTarget has it.
func splitTarget(s string) (host string, port uint16, err error) {
	if len(s) > maxTarget {
		return "", 0, fmt.Errorf("target of %d bytes is longer than %d", len(s), maxTarget)
	}
	host, text, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, fmt.Errorf("target %q: want host:port", s)
	}
	if port, err = parsePort(text); err != nil {
		return "", 0, fmt.Errorf("target %q: %w", s, err)
	}
	if host, err = canonicalHost(host); err != nil {
		return "", 0, fmt.Errorf("target %q: %w", s, err)
	}
	return host, port, nil
}

// parsePort parses a port of decimal digits alone.
func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%q is not a port: want 1 to 65535", s)
	}
	return uint16(n), nil
}

// canonicalHost returns the one spelling of an address or a name.
func canonicalHost(host string) (string, error) {
	if strings.Contains(host, ":") {
		a, err := netip.ParseAddr(host)
		if err != nil {
			return "", fmt.Errorf("%q is not an address", host)
		}
		if !validZone(a.Zone()) {
			return "", fmt.Errorf("%q has a zone with characters that interface names cannot have", host)
		}
		return a.Unmap().String(), nil
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return a.String(), nil
	}
	name := strings.ToLower(host)
	if err := checkName(name); err != nil {
		return "", fmt.Errorf("%q is not a host name: %w", host, err)
	}
	return name, nil
}

// validZone reports whether zone may be the name of an interface.
func validZone(zone string) bool {
	return !strings.ContainsFunc(zone, func(r rune) bool { return !nameRune(r) })
}

// nameRune reports whether a name may have the character.
func nameRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.'
}

// checkName returns what is wrong with a name of lower case, or nil. A name whose
// last label is a number is refused, as the system may take it for an address (as
// in the URL standard of the WHATWG, "ends in a number").
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("it is empty")
	case len(name) > 254:
		return errors.New("it is too long")
	case strings.ContainsFunc(name, func(r rune) bool { return !nameRune(r) }):
		return errors.New("it has characters other than letters, digits, dots and hyphens")
	}
	labels := strings.Split(strings.TrimSuffix(name, "."), ".")
	for _, l := range labels {
		if l == "" || len(l) > 63 {
			return errors.New("a part of it is empty or too long")
		}
	}
	last := labels[len(labels)-1]
	if strings.Trim(last, "0123456789") == "" {
		return errors.New("it ends in a number and is not an IPv4 address in dotted decimal form")
	}
	if hex, ok := strings.CutPrefix(last, "0x"); ok && strings.Trim(hex, "0123456789abcdef") == "" {
		return errors.New("it ends in a number")
	}
	return nil
}
