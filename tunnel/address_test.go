package tunnel

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each address has one spelling, whatever was asked for.
func TestCanonicalTarget(t *testing.T) {
	for from, want := range map[string]string{
		"127.0.0.1:80":                         "127.0.0.1:80",
		"127.0.0.1:0080":                       "127.0.0.1:80",
		"[::ffff:127.0.0.1]:80":                "127.0.0.1:80",
		"[::FFFF:7f00:1]:80":                   "127.0.0.1:80",
		"[0:0::0:1]:80":                        "[::1]:80",
		"[2001:DB8::0:1]:443":                  "[2001:db8::1]:443",
		"[fe80::1%eth0]:22":                    "[fe80::1%eth0]:22",
		"Example.COM:443":                      "example.com:443",
		"example.com.:443":                     "example.com.:443",
		"a_b-c.d1:1":                           "a_b-c.d1:1",
		strings.Repeat("a", 63) + ".com:65535": strings.Repeat("a", 63) + ".com:65535",
	} {
		got, err := canonicalTarget(from)
		require.NoError(t, err, from)
		assert.Equal(t, want, got)
		again, err := canonicalTarget(got)
		require.NoError(t, err)
		assert.Equal(t, got, again)
	}
}

// What a resolver may take for another address, or a rule for another kind of
// target, is refused.
func TestTargetsRefused(t *testing.T) {
	for _, s := range []string{
		"", ":", "80", ":80", "host", "host:", "host:http", "host:0", "host:+80", "host:-1", "host:65536", "host: 80",
		"127.1:80", "2130706433:80", "0x7f000001:80", "0x7f.1:80", "127.0.0.0x1:80", "127.0.0.01:80", "127.0.0.1.:80",
		"0177.0.0.1:80", "1.2.3.4.5:80", "0x:80", "R:0.0.0.0:22", "::1:80", "[127.0.0.1%]:80", "[::1%a b]:80", "[::1]x:80",
		"a b:80", "a\n127.0.0.1:80", "a/b:80", "a\x00:80", "ｈ:80", "..:80", "a..b:80", ".a:80", "[R:1]:80",
		strings.Repeat("a", 64) + ".com:80", strings.Repeat("a.", 150) + ":80", "127.0.0.1:80/udp",
	} {
		got, err := canonicalTarget(s)
		assert.Error(t, err, "%q became %q", s, got)
	}
}
