package tunnel

import (
	"net"
	"net/netip"
	"regexp"
	"regexp/syntax"
	"strings"
)

// rule is a regular expression of what a user may reach. It has forms for kinds of hosts;
// nil: nothing is left.
type rule struct {
	re *regexp.Regexp // as it is written
	// names is re without its alternatives about addresses: whoever owns a name such as
	// 10.0.evil.example chooses where it leads, so ^10\.0\. is not about it.
	names *regexp.Regexp
	// ipv6 is re without its alternatives about addresses of IPv4: the zone of
	// [fe80::1%e10.0.1] is none.
	ipv6 *regexp.Regexp
}

// parseRule parses a rule.
func parseRule(text string) (rule, error) {
	re, err := regexp.Compile(text)
	if err != nil {
		return rule{}, err
	}
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return rule{}, err
	}
	var names, ipv6 []string
	all := alternatives(tree)
	for _, one := range all {
		about := aboutHosts(one)
		if !about.addresses() {
			names = append(names, "(?:"+one.String()+")")
		}
		if !about.addresses() || about.brackets {
			ipv6 = append(ipv6, "(?:"+one.String()+")")
		}
	}
	r := rule{re: re}
	if r.names, err = anyOf(names, len(all), re); err == nil {
		r.ipv6, err = anyOf(ipv6, len(all), re)
	}
	return r, err
}

// anyOf returns the expression of what is left of the alternatives of re, which has all.
func anyOf(left []string, all int, re *regexp.Regexp) (*regexp.Regexp, error) {
	switch len(left) {
	case all:
		return re, nil
	case 0:
		return nil, nil
	}
	return regexp.Compile(strings.Join(left, "|"))
}

// matches reports whether the rule matches what is asked for, which has a host of a kind.
func (r rule) matches(what string, of hostKind) bool {
	re := r.re
	switch of {
	case hostName:
		re = r.names
	case hostIPv6:
		re = r.ipv6
	}
	return re != nil && re.MatchString(what)
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

// maxAlternatives bounds what a rule is taken apart to. One of more is looked at whole.
const maxAlternatives = 256

// alternatives returns expressions without alternatives outside of repetitions, of which
// one matches if and only if re does.
func alternatives(re *syntax.Regexp) []*syntax.Regexp {
	switch re.Op {
	case syntax.OpCapture:
		return alternatives(re.Sub[0])
	case syntax.OpAlternate:
		var all []*syntax.Regexp
		for _, sub := range re.Sub {
			all = append(all, alternatives(sub)...)
		}
		if len(all) <= maxAlternatives {
			return all
		}
	case syntax.OpConcat:
		all := []*syntax.Regexp{{Op: syntax.OpConcat, Flags: re.Flags}}
		for _, sub := range re.Sub {
			var longer []*syntax.Regexp
			subs := alternatives(sub)
			if len(all)*len(subs) > maxAlternatives {
				return []*syntax.Regexp{re}
			}
			for _, head := range all {
				for _, tail := range subs {
					next := *head
					next.Sub = append(append([]*syntax.Regexp(nil), head.Sub...), tail)
					longer = append(longer, &next)
				}
			}
			all = longer
		}
		return all
	}
	return []*syntax.Regexp{re}
}

// hostText is what an expression says of the host, as far as it was read.
type hostText struct {
	begins                bool // at the beginning of the text
	read                  bool // anything after that
	reverse               bool // all that was read is an R
	letters, digits, dots bool
	first                 bool // the text begins with a digit
	brackets              bool // around an address of IPv6
	port                  bool // the host is over
}

// aboutHosts reads what an expression says of the host.
func aboutHosts(re *syntax.Regexp) hostText {
	var t hostText
	t.take(re)
	return t
}

// addresses reports whether the expression is about addresses, of IPv4 unless it has
// brackets. It has digits and dots before the port, or begins with a digit, and has no
// letter.
func (t *hostText) addresses() bool {
	return !t.letters && t.digits && (t.dots || t.first)
}

// take reads an expression from its beginning to the end of the host.
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
	default:
		if len(re.Sub) == 1 && isAnyChar(re.Sub[0]) { // a repetition
			t.read = true
			return
		}
		for _, sub := range re.Sub {
			t.take(sub)
		}
	}
}

// isAnyChar reports whether an expression is a dot.
func isAnyChar(re *syntax.Regexp) bool {
	return re.Op == syntax.OpAnyChar || re.Op == syntax.OpAnyCharNotNL
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
