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
// lower case, and ports have no leading zeros. Link-local addresses alone have a zone
// (RFC 4007 §11); the end that dials or listens gives that its one spelling, by zoneHere.
// What some resolvers take for an address, such as 127.1 and 0x7f000001, is refused.
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
		return a.Unmap().String(), checkZone(a)
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return a.String(), nil
	}
	// ToLower makes letters of ASCII of others, so it comes second.
	if strings.ContainsFunc(host, func(r rune) bool { return !nameRune(r) }) {
		return "", fmt.Errorf("%q has characters that host names cannot have: want letters, digits, dots and hyphens", host)
	}
	name := strings.ToLower(host)
	if err := checkName(name); err != nil {
		return "", fmt.Errorf("%q is not a host name: %w", host, err)
	}
	return name, nil
}

// maxZone is the longest name of an interface, as Linux and the BSDs have it.
const maxZone = 15

// checkZone returns what is wrong with the zone of an address, or nil. It is the name of
// an interface with at least one letter, or an index. Package net reads the digits at the
// beginning of any other text as an index, and drops the zone of an address that needs
// none: [::1%1.10.0.0.1] would be ::1.
func checkZone(a netip.Addr) error {
	zone := a.Zone()
	switch {
	case zone == "":
		return nil
	case a.Is4In6() || !a.IsLinkLocalUnicast() && !a.IsLinkLocalMulticast():
		return fmt.Errorf("%v has a zone, and is not a link-local address", a)
	case zoneIndex(zone) > 0:
		return nil
	case len(zone) > maxZone || !validInterface(zone) || !strings.ContainsFunc(zone, isLetter):
		return fmt.Errorf("the zone of %v is neither the name of an interface nor an index", a)
	}
	return nil
}

// zoneIndex returns the index that a zone is, in its one spelling, or 0.
func zoneIndex(zone string) int {
	n, err := strconv.ParseUint(zone, 10, 31)
	if err != nil || zone[0] == '0' {
		return 0
	}
	return int(n)
}

// zoneHere returns a target with the zone as this host names it: an index becomes the
// name of its interface. Without such an interface it is an error.
func zoneHere(target string) (string, error) {
	at, err := netip.ParseAddrPort(target)
	if err != nil || at.Addr().Zone() == "" {
		return target, nil
	}
	zone := at.Addr().Zone()
	var i *net.Interface
	if index := zoneIndex(zone); index > 0 {
		i, err = net.InterfaceByIndex(index)
	} else {
		i, err = net.InterfaceByName(zone)
	}
	if err != nil {
		return "", fmt.Errorf("the zone of %v: %w", at, err)
	}
	here := at.Addr().WithZone(i.Name)
	return netip.AddrPortFrom(here, at.Port()).String(), nil
}

// validInterface reports whether an interface may have the name.
func validInterface(name string) bool {
	return !strings.ContainsFunc(name, func(r rune) bool { return !nameRune(r) })
}

// isLetter reports whether r is a letter of ASCII.
func isLetter(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }

// nameRune reports whether a name may have the character.
func nameRune(r rune) bool {
	return isLetter(r) || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.'
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
