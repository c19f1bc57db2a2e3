package tunnel

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// matches checks whether a rule matches what it is about.
func matches(t *testing.T, text string, cases map[string]bool) {
	one, err := parseRule(text)
	require.NoError(t, err, text)
	u := &user{rules: []rule{one}}
	for what, want := range cases {
		assert.Equal(t, want, u.matches(what), "%s and %s", text, what)
	}
}

// Rules about addresses match addresses, and rules about names match names as before.
func TestRulesAboutAddresses(t *testing.T) {
	for text, names := range map[string]bool{ // whether the rule matches the name below
		`^10\.0\.`:                  false,
		`10\.0\.`:                   false,
		`^10`:                       false,
		`^1[0-9]`:                   false,
		`^\d+\.`:                    false,
		`^10\.0\..*:80$`:            false,
		`^10\.0\.[^:]*:80$`:         false,
		`^(10|192)\.`:               false,
		`^(?:[0-9]{1,3}\.)`:         false,
		`(?i)^10\.`:                 false,
		`^(?P<net>10\.0)\.`:         false,
		``:                          true,
		`:80$`:                      true,
		`:(80|443)$`:                true,
		`80$`:                       true,
		`^.*:80$`:                   true,
		`^[^:]+:80$`:                true,
		`^10\.0\.evil\.example:80$`: true,
		`\.evil\.example:`:          true,
		`^[a-z0-9.]+:80$`:           true,
		`evil`:                      true,
		`10.0.`:                     false,
		`10.+0.*:80`:                true,
	} {
		matches(t, text, map[string]bool{"10.0.evil.example:80": names})
	}
	for text, cases := range map[string]map[string]bool{
		`^10\.0\.`:                {"10.0.1.2:80": true, "10.0.1.2:53/udp": true, "10.0.evil.example:53/udp": false, "R:10.0.0.1:80": false},
		`^R:10\.0\.`:              {"R:10.0.0.1:80": true, "R:10.0.evil.example:80": false, "R:10.0.0.1:53/udp": true},
		`^R:localhost:`:           {"R:localhost:80": true},
		`^localhost:22$`:          {"localhost:22": true},
		`^(intranet|printer):80$`: {"intranet:80": true, "printer:80": true},
		`^R:localhost:22$`:        {"R:localhost:22": true, "localhost:22": false},
		`R:10\.0\.0\.1:80`:        {"R:10.0.0.1:80": true, "R:10.0.evil:80": false},
		`^R:`:                     {"R:localhost:80": true, "R:10.0.0.1:80": true},
		`^163\.com:443$`:          {"163.com:443": true},
		`^0\.pool\.ntp\.org:123`:  {"0.pool.ntp.org:123/udp": true},
		`^socks$`:                 {"socks": true},
		`^\[fd00:`:                {"[fd00::1]:80": true},
		`^127\.0\.0\.1:80$`:       {"127.0.0.1:80": true, "localhost:80": false},
		`^10\.0\.0\.1:(80|443)$`:  {"10.0.0.1:80": true, "10.0.0.1:443": true},
	} {
		matches(t, text, cases)
	}
}

// Rules about addresses of IPv4 match no address of IPv6, whose zone may look like one.
func TestRulesAboutIPv4(t *testing.T) {
	for text, cases := range map[string]map[string]bool{
		`10\.0\.`:                    {"[fe80::1%e10.0.1]:80": false, "R:[fe80::1%e10.0.1]:80": false, "10.0.0.1:80": true},
		`10\.0\.0\.[0-9]+.*:80$`:     {"[fe80::1%x.10.0.0.1]:80": false, "[::1%1.10.0.0.1]:80": false, "10.0.0.7:80": true},
		`10.0.0.1:80`:                {"[fd00::10:0:0:1]:80": false, "[fe80::1%e10.0.0.1]:80": false, "10.0.0.1:80": true},
		`^(10\.0\.|\[fe80::1%eth)`:   {"[fe80::1%eth0]:80": true, "[fe80::1%e10.0.1]:80": false, "10.0.0.1:80": true},
		`^\[fe80::1%eth0\.7\]:80$`:   {"[fe80::1%eth0.7]:80": true},
		`^\[2001:`:                   {"[2001:db8::1]:80": true, "R:[2001:db8::1]:80": false},
		`^\[64:ff9b::`:               {"[64:ff9b::a00:1]:53/udp": true},
		`^[\[\]0-9.:]+:80$`:          {"[2001::1]:80": true, "10.0.0.1:80": true},
		`^(127\.0\.0\.1|\[::1\]):80`: {"[::1]:80": true, "127.0.0.1:80": true},
		`^(\[::1\]|localhost):80$`:   {"[::1]:80": true, "localhost:80": true, "127.0.0.1:80": false},
		`:80$`:                       {"[::1]:80": true, "10.0.0.1:80": true, "a:80": true},
		`^socks$`:                    {"socks": true},
	} {
		matches(t, text, cases)
	}
}

// A rule that is about addresses of IPv4 and about names is refused, and so is one about
// IPv4 anywhere in the text and IPv6.
func TestRulesOfTwoKindsAreRefused(t *testing.T) {
	for _, text := range []string{
		`^(10\.0\.|intranet\.)`, `^10\.0\.|^intranet`, `^(192\.168\.|10\.0\.evil\.)`,
		`^(127\.0\.0\.1|localhost):80$`, `^(localhost|127\.0\.0\.1):80$`, `^10\.0\.0\.1:80$|^socks$`,
		`^R:(10\.0\.0\.1|.*\.example):80$`, `10\.0\.|^\[fe80::1%eth`, `^(10\.0\.|.*)`, `^((10|a)\.1\.|b){1,2}:80`,
	} {
		_, err := parseRule(text)
		require.ErrorContains(t, err, "write two rules", text)
	}
	_, err := ParseUsers([]byte(`{"me:secret": ["^(127\\.0\\.0\\.1|localhost):80$"]}`))
	require.ErrorContains(t, err, `user "me": rule "^(127\\.0\\.0\\.1|localhost):80$" is about`)
}

// A rule matches all that is asked for, and what it lets through besides is in the error,
// with the rule that may be meant.
func TestRulesHaveAnchors(t *testing.T) {
	for text, want := range map[string]string{ // the rule that is meant; empty: it is taken
		``: ``, `^10\.0\..*$`: ``, `\A10\.0\.0\.1:80\z`: ``, `^a:1$|^b:1$`: ``, `^(a|b):1$`: ``, `(^a:1$)`: ``, `(?i)^a:1$`: ``, `^(?:a:1$|b:1$)`: ``, `(^a:1$)+`: ``,
		`127.0.0.1:80`:         `^127[.]0[.]0[.]1:80$`,
		`^R:0\.0\.0\.0:22`:     `^R:0[.]0[.]0[.]0:22$`,
		`^10\.0\.`:             `^10[.]0[.].*$`,
		`:80$`:                 `^.*:80$`,
		`\.evil\.example:443$`: `^.*[.]evil[.]example:443$`,
		`^\[::1\]:80`:          `^\[::1\]:80$`,
		`/udp$`:                `^.*/udp$`,
		`socks`:                `^socks$`,
		`^R:`:                  `^R:.*$`,
		`^a:1$|b:1`:            `^(?:a:1$|b:1)$`,
		`^a:1$|^b:1`:           `^(?:a:1$|^b:1)$`,
		`^(a:1$|b:1)`:          `^(?:(a:1$|b:1))$`,
		`(^a:1$)?`:             `^(^a:1$)?.*$`,
		`(?m)^a:1$`:            `^(?:(?m)^a:1)$`,
		`^R:127`:               `^R:127.*$`,
		`.*`:                   `^.*$`,
	} {
		one, err := parseRule(text)
		require.NoError(t, err)
		if want == "" {
			require.NoError(t, one.open, text)
			continue
		}
		require.ErrorContains(t, one.open, fmt.Sprintf("write %q", want))
		meant, err := parseRule(want)
		require.NoError(t, err)
		require.NoError(t, meant.open, want)
	}
	_, err := ParseUsers([]byte("{\"me:secret\": [\"\"],\n\"you:x\": [\"127.0.0.1:80\"],\n\"we:x\": [\"^(\"]}"))
	require.ErrorContains(t, err, `line 2: user "you": rule "127.0.0.1:80" has no anchors and also allows "127.0.0.1:8099": write "^127[.]0[.]0[.]1:80$"`)
	require.ErrorContains(t, err, `line 3: user "we": rule "^("`)
	path := filepath.Join(t.TempDir(), "chisel.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"me:x": ["127.0.0.1:80", "^10.0.0.1:80$", "^.*:80$"]}`), 0o600))
	_, err = LoadUsers(path)
	require.ErrorContains(t, err, path+":1: ")
	_, err = LoadUnanchoredUsers(path)
	require.NoError(t, err)
	require.Equal(t, []string{`user "me": rule "^10.0.0.1:80$": a dot matches any character: write \\. for a dot`}, parsed(t, `{"me:x": ["^10.0.0.1:80$", "^.*:80$"]}`).Warnings())
}

// For addresses a rule is its expression, and for names it matches no more than that.
func FuzzRules(f *testing.F) {
	for _, text := range []string{"", `^10\.0\.`, `^(10|a)\.`, `(?i)x|y`, `^R:(a|b)?:80$`, `((a|b)|(c|d))+`, `\b1\.`, `(?m)^1$`, `a{2,3}|[^b]`} {
		for _, what := range []string{"10.0.0.1:80", "10.0.evil.example:80", "R:x:1", "socks"} {
			f.Add(text, what)
		}
	}
	f.Fuzz(func(t *testing.T, text, what string) {
		re, err := regexp.Compile(text)
		one, ruleErr := parseRule(text)
		require.False(t, err != nil && ruleErr == nil)
		if ruleErr != nil {
			return
		}
		require.Equal(t, re.MatchString(what), one.matches(what, hostIPv4))
		for _, kind := range []hostKind{hostName, hostIPv6} {
			if one.matches(what, kind) {
				require.True(t, re.MatchString(what))
			}
		}
		if one.matches(what, hostName) {
			require.True(t, one.matches(what, hostIPv6))
		}
	})
}
