package tunnel

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
)

var (
	// midway is the beginning of a rule that is about less than a host.
	midway = regexp.MustCompile(`^(\[\.\]|[:/.])`)
	// whole is the end of a rule that says all that is asked for.
	whole = regexp.MustCompile(`(^socks|[^R]:[0-9]+|/udp)$`)
	// unslashed makes a rule of a target without a backslash, which JSON and logs double.
	unslashed = strings.NewReplacer(`\.`, "[.]", ".", "[.]", "[", "[[]", "]", "[]]")
)

// unanchored returns why a rule matches within the text, with the rule that may be meant,
// or nil. A rule that is empty is meant to match everything.
func unanchored(text string, re *regexp.Regexp, tree *syntax.Regexp) error {
	begins, ends := anchored(tree, false), anchored(tree, true)
	if text == "" || begins && ends {
		return nil
	}
	bare := strings.TrimSuffix(strings.TrimPrefix(text, "^"), "$")
	plain, more := strings.ReplaceAll(bare, `\`, ""), ""
	for _, other := range []string{plain + "99", "x." + plain} {
		if more == "" && re.MatchString(other) {
			more = fmt.Sprintf(" and also allows %q", other)
		}
	}
	if host := strings.ReplaceAll(plain, ".", ""); regexp.QuoteMeta(host) == host {
		bare = unslashed.Replace(bare)
	}
	if strings.Contains(bare, "|") || strings.Contains(bare, "(?") {
		begins, ends, bare = true, true, "(?:"+bare+")"
	}
	if !begins && midway.MatchString(bare) {
		bare = ".*" + strings.TrimPrefix(bare, ".*")
	}
	if !ends && !whole.MatchString(bare) {
		bare = strings.TrimSuffix(bare, ".*") + ".*"
	}
	return fmt.Errorf("%q has no anchors%s: write %q, or start with -unanchored-rules", text, more, "^"+bare+"$")
}

// anchored reports whether all that an expression matches begins, or ends, where the text
// does.
func anchored(re *syntax.Regexp, end bool) bool {
	switch re.Op {
	case syntax.OpBeginText:
		return !end
	case syntax.OpEndText:
		return end
	case syntax.OpAlternate:
		return !slices.ContainsFunc(re.Sub, func(sub *syntax.Regexp) bool { return !anchored(sub, end) })
	case syntax.OpCapture, syntax.OpPlus:
		return anchored(re.Sub[0], end)
	case syntax.OpRepeat:
		return re.Min > 0 && anchored(re.Sub[0], end)
	case syntax.OpConcat:
		if end {
			return anchored(re.Sub[len(re.Sub)-1], end)
		}
		return anchored(re.Sub[0], end)
	}
	return false
}

// looseDot reports whether a rule has a dot that matches any character, once.
func looseDot(re *syntax.Regexp) bool {
	return isAnyChar(re) || slices.ContainsFunc(re.Sub, func(sub *syntax.Regexp) bool {
		return looseDot(sub) && (re.Op == syntax.OpConcat || re.Op == syntax.OpAlternate || re.Op == syntax.OpCapture)
	})
}
