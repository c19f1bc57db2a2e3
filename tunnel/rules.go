package tunnel

import (
	"net"
	"net/netip"
	"regexp"
	"regexp/syntax"
	"strings"
)

// rule is a regular expression of what a user may reach.
type rule struct {
	re *regexp.Regexp
	// names is re without its alternatives about addresses: whoever owns a name such as
	// 10.0.evil.example chooses where it leads, so ^10\.0\. is not about it. nil: nothing
	// is left.
	names *regexp.Regexp
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
	all := alternatives(tree)
	var about []string
	for _, one := range all {
		if !aboutAddresses(one) {
			about = append(about, "(?:"+one.String()+")")
		}
	}
	switch len(about) {
	case len(all):
		return rule{re, re}, nil
	case 0:
		return rule{re, nil}, nil
	}
	names, err := regexp.Compile(strings.Join(about, "|"))
	return rule{re, names}, err
}

// matches reports whether the rule matches what is asked for, which has a host by name
// or not.
func (r rule) matches(what string, byName bool) bool {
	if byName {
		return r.names != nil && r.names.MatchString(what)
	}
	return r.re.MatchString(what)
}

// byName reports whether what a rule is matched against has a host by name.
func byName(what string) bool {
	what = strings.TrimSuffix(strings.TrimPrefix(what, "R:"), "/udp")
	host, _, err := net.SplitHostPort(what)
	if err != nil {
		return false // "socks"
	}
	_, err = netip.ParseAddr(host)
	return err != nil
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
	letters, digits, dots bool
	first                 bool // the text begins with a digit
	port                  bool // the host is over
}

// aboutAddresses reports whether an expression is about addresses of IPv4: it has digits
// and dots before the port, or begins with a digit, and no letter.
func aboutAddresses(re *syntax.Regexp) bool {
	var t hostText
	t.take(re)
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
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		t.read = true
	default:
		for _, sub := range re.Sub {
			t.take(sub)
		}
	}
}

// char reads one of the characters from low to high.
func (t *hostText) char(low, high rune) {
	in := func(from, to rune) bool { return low <= to && high >= from }
	switch {
	case t.port:
	case low == ':' && high == ':':
		if r := *t; r.letters && !r.digits && !r.dots { // the R of R:
			*t = hostText{begins: r.begins}
			return
		}
		t.port = true
	case in('a', 'z') || in('A', 'Z'):
		t.letters, t.read = true, true
	case in('0', '9'):
		t.first = t.first || t.begins && !t.read
		t.digits, t.read = true, true
	case in('.', '.'):
		t.dots, t.read = true, true
	}
}
