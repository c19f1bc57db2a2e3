package tunnel

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"regexp/syntax"
	"strings"
)

// rule is a regular expression of what a user may reach, and which hosts it is about:
// whoever owns a name such as 10.0.evil.example chooses where it leads, so ^10\.0\. is
// not about it. The zone of [fe80::1%e10.0.1] is no address of IPv4 either.
type rule struct {
	re          *regexp.Regexp
	names, ipv6 bool  // it may match names, addresses of IPv6
	open        error // it matches within the text; nil: it has anchors
	looseDot    bool  // it has a dot that any character matches
}

// parseRule parses a rule. One with an alternative about addresses of IPv4 may have none
// about names, and none about IPv6 unless that of IPv4 begins with ^.
func parseRule(text string) (rule, error) {
	re, err := regexp.Compile(text)
	if err != nil {
		return rule{}, fmt.Errorf("%q: %w", text, err)
	}
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return rule{}, err
	}
	r := rule{re: re, open: unanchored(text, re, tree), looseDot: looseDot(tree)}
	var ipv4, loose, bare, brackets bool
	for about := range hostsOf(tree, map[hostText]bool{{}: true}) {
		switch {
		case about.addresses() && !about.brackets:
			ipv4, loose = true, loose || !about.begins
			continue
		case !about.addresses():
			r.names, bare = true, bare || !about.brackets
		}
		r.ipv6, brackets = true, brackets || about.brackets
	}
	if ipv4 && bare || loose && brackets {
		return rule{}, fmt.Errorf("%q is about addresses of IPv4, and about more: write two rules", text)
	}
	return r, nil
}

// matches reports whether the rule matches what is asked for, which has a host of a kind.
func (r rule) matches(what string, of hostKind) bool {
	return (of == hostIPv4 || of == hostName && r.names || of == hostIPv6 && r.ipv6) && r.re.MatchString(what)
}

// hostKind is what kind of host a rule is matched against.
type hostKind uint8

const (
	hostIPv4 hostKind = iota // or none, as in "socks"
	hostIPv6
	hostName
)

// kindOfHost returns the kind of host in what a rule is matched against.
func kindOfHost(what string) hostKind {
	_, target, _ := splitWhat(what)
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		return hostIPv4
	}
	switch a, err := netip.ParseAddr(host); {
	case err != nil && strings.Contains(host, ":"): // such as the zone of another system
		return hostIPv6
	case err != nil:
		return hostName
	case a.Is6():
		return hostIPv6
	}
	return hostIPv4
}

// splitWhat returns the target in what a rule is matched against, and what is around it.
func splitWhat(what string) (before, target, behind string) {
	target = what
	if rest, ok := strings.CutPrefix(target, "R:"); ok {
		before, target = "R:", rest
	}
	if rest, ok := strings.CutSuffix(target, "/udp"); ok {
		behind, target = "/udp", rest
	}
	return before, target, behind
}

// wantHere returns what a client says that it is going to ask for, with the zone as this
// host names it.
func wantHere(what string) string {
	before, target, behind := splitWhat(what)
	here, err := zoneHere(target)
	if err != nil {
		return what
	}
	return before + here + behind
}

// hostText is what an alternative of an expression says of the host, as far as it was
// read.
type hostText struct {
	begins                bool // at the beginning of the text
	read                  bool // anything after that
	reverse               bool // all that was read is an R
	letters, digits, dots bool
	first                 bool // the text begins with a digit
	brackets              bool // around an address of IPv6
	port                  bool // the host is over
}

// addresses reports whether the alternative is about addresses, of IPv4 unless it has
// brackets. It has digits and dots before the port, or begins with a digit, and has no
// letter.
func (t *hostText) addresses() bool {
	return !t.letters && t.digits && (t.dots || t.first)
}

// hostsOf reads an expression behind each of some alternatives, and returns all that
// there are then. There are never more than hostText has values.
func hostsOf(re *syntax.Regexp, before map[hostText]bool) map[hostText]bool {
	if re.Op == syntax.OpAlternate {
		all := make(map[hostText]bool)
		for _, sub := range re.Sub {
			maps.Copy(all, hostsOf(sub, before))
		}
		return all
	}
	if len(re.Sub) == 1 && isAnyChar(re.Sub[0]) { // a repetition
		return eachHost(before, func(t *hostText) { t.read = true })
	}
	after := eachHost(before, func(t *hostText) { t.take(re) })
	for _, sub := range re.Sub {
		after = hostsOf(sub, after)
	}
	return after
}

// eachHost returns the alternatives with what f makes of each.
func eachHost(all map[hostText]bool, f func(*hostText)) map[hostText]bool {
	changed := make(map[hostText]bool)
	for t := range all {
		f(&t)
		changed[t] = true
	}
	return changed
}

// isAnyChar reports whether an expression is a dot.
func isAnyChar(re *syntax.Regexp) bool {
	return re.Op == syntax.OpAnyChar || re.Op == syntax.OpAnyCharNotNL
}

// take reads an expression that has no others in it.
func (t *hostText) take(re *syntax.Regexp) {
	switch re.Op {
	case syntax.OpBeginText, syntax.OpBeginLine:
		t.begins = true
	case syntax.OpLiteral:
		for _, r := range re.Rune {
			t.char(r, r)
		}
	case syntax.OpCharClass:
		if n := len(re.Rune); n > 0 && re.Rune[n-1] > 0x7f { // all but some
			t.read = true
			return
		}
		for i := 0; i+1 < len(re.Rune); i += 2 {
			t.char(re.Rune[i], re.Rune[i+1])
		}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL: // a dot that was not escaped
		t.dots, t.read = true, true
	}
}

// char reads one of the characters from low to high.
func (t *hostText) char(low, high rune) {
	in := func(from, to rune) bool { return low <= to && high >= from }
	switch {
	case t.port:
	case low == ':' && high == ':':
		if t.reverse {
			*t = hostText{begins: t.begins}
			return
		}
		t.port = true
	case in('a', 'z') || in('A', 'Z'):
		t.reverse = low == 'R' && high == 'R' && !t.read
		t.letters, t.read = true, true
	case in('0', '9'):
		t.reverse = false
		t.first = t.first || t.begins && !t.read
		t.digits, t.read = true, true
	case in('.', '.'):
		t.dots, t.read, t.reverse = true, true, false
	case in('[', '['):
		t.brackets, t.read = true, true
	}
}
