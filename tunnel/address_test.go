package tunnel

import (
	"net"
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
		"[FE80:0::1%eth0.7]:22":                "[fe80::1%eth0.7]:22",
		"[fe80::1%6in4-wan]:22":                "[fe80::1%6in4-wan]:22",
		"[fe80::1%12]:22":                      "[fe80::1%12]:22",
		"[ff02::1%eth0]:5353":                  "[ff02::1%eth0]:5353",
		"[::10.0.0.1]:80":                      "[::a00:1]:80",
		"[64:ff9b::10.0.0.1]:80":               "[64:ff9b::a00:1]:80",
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
		"[::1%1.10.0.0.1]:80", "[::1%lo]:80", "[::1%1]:80", "[2001:db8::1%eth0]:80", "[fec0::1%eth0]:80", "[::ffff:127.0.0.1%lo]:80",
		"[fe80::1%1.10.0.0.1]:80", "[fe80::1%10.0.0.1]:80", "[fe80::1%01]:80", "[fe80::1%0]:80", "[fe80::1%-1]:80", "[fe80::1%+1]:80",
		"[fe80::1%4294967297]:80", "[fe80::1%1.]:80", "[fe80::1%]:80", "[fe80::1%%lo]:80", "[fe80::1%a]b]:80", "[fe80::1%a:1]:80",
		"[fe80::1%sixteen-letters-]:80", "[fe80::1%é]:80", "[127.0.0.1%lo]:80", "127.0.0.1%lo:80", "a%lo:80", "%31.0.0.1:80", "[ff0e::1%eth0]:80",
		"\u212a.example:80", "\u017f.example:80", "a\u3002example:80", "\uff11.1.1.1:80", "\u0661.1.1.1:80", "127\uff0e0.0.1:80", "[\uff11::1]:80",
		"a:\u0668\u0660", "a:8_0", "a:0x50", "a:080 ", "a:", "a:99999999999999999999", "example.com..:80", "0x7f.0.0.1:80", "0X7F000001:80",
		"a.0x7f:80", "a.08:80", "127.0.0.1.0x1:80", "1:80", "[1]:80", "127.0.0.1\x00:80", "[::1]:80\n",
		strings.Repeat("a", 64) + ".com:80", strings.Repeat("a.", 150) + ":80", "127.0.0.1:80/udp",
	} {
		got, err := canonicalTarget(s)
		assert.Error(t, err, "%q became %q", s, got)
	}
}

// An address that listens has the zone that was asked for.
func TestWithZone(t *testing.T) {
	ip := net.ParseIP("fe80::1")
	for _, at := range []net.Addr{&net.TCPAddr{IP: ip, Port: 1}, &net.UDPAddr{IP: ip, Port: 1}} {
		assert.Equal(t, "[fe80::1%eth0]:1", withZone(at, "[fe80::1%eth0]:0").String())
		assert.Equal(t, at, withZone(at, "[fe80::1]:0"))
	}
}
