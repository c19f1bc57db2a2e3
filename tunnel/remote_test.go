package tunnel

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseRemote(t *testing.T) {
	for text, want := range map[string]string{
		"8080:intranet:80":              "127.0.0.1:8080:intranet:80",
		"127.0.0.1:8080:Host:0080":      "127.0.0.1:8080:host:80",
		"0.0.0.0:8080:host:80":          "0.0.0.0:8080:host:80",
		"host:80":                       "127.0.0.1:80:host:80",
		"3000":                          "127.0.0.1:3000:127.0.0.1:3000",
		"8080:80":                       "127.0.0.1:8080:127.0.0.1:80",
		"[::1]:8080:[2001:DB8::0:1]:80": "[::1]:8080:[2001:db8::1]:80",
		"8080:[::ffff:10.0.0.1]:80":     "127.0.0.1:8080:10.0.0.1:80",
		"0:host:80":                     "127.0.0.1:0:host:80",
		"1.1.1.1:53/udp":                "127.0.0.1:53:1.1.1.1:53/udp",
		"5353:1.1.1.1:53/udp":           "127.0.0.1:5353:1.1.1.1:53/udp",
		"8080:host:80/tcp":              "127.0.0.1:8080:host:80",
		"socks":                         "127.0.0.1:1080:socks",
		"5000:socks":                    "127.0.0.1:5000:socks",
		"0.0.0.0:5000:socks":            "0.0.0.0:5000:socks",
		"stdio:host:22":                 "stdio:host:22",
		"stdio:[::1]:22":                "stdio:[::1]:22",
		"R:2222:localhost:22":           "R:0.0.0.0:2222:localhost:22",
		"R:127.0.0.1:2222:[::1]:22":     "R:127.0.0.1:2222:[::1]:22",
		"R:5353:localhost:53/udp":       "R:0.0.0.0:5353:localhost:53/udp",
		"R:socks":                       "R:127.0.0.1:1080:socks",
		"R:80":                          "R:0.0.0.0:80:127.0.0.1:80",
	} {
		r, err := ParseRemote(text)
		require.NoError(t, err)
		assert.Equal(t, want, r.String())
		again, err := ParseRemote(r.String())
		require.NoError(t, err)
		assert.Equal(t, r, again)
	}
	for _, text := range []string{
		"", ":", "host", "8080:host", "a:b:c:d:e", "1:2:3:4:5", ":8080:host:80", "*:8080:host:80", "8080::80", "8080:host:0", "8080:host:65536", "65536:host:80",
		"[::1:8080:host:80", "[::1]x:8080:host:80", "[host]:80", "::1:80", "8080:127.1:80", "stdio:socks", "R:stdio:host:22", "stdio:host:22/udp", "stdio:1:host:22",
		"socks/udp", "x:y:socks", "8080:host:80/sctp", "a b:80", "8080:host:+80",
	} {
		r, err := ParseRemote(text)
		if assert.Error(t, err, "%q is %v", text, r) {
			assert.ErrorContains(t, err, text)
		}
	}
}

func TestRules(t *testing.T) {
	for text, want := range map[string]string{
		"8080:host:80":          "host:80",
		"53:[::1]:53/udp":       "[::1]:53/udp",
		"R:2222:localhost:22":   "R:0.0.0.0:2222",
		"R:53:localhost:53/udp": "R:0.0.0.0:53/udp",
		"R:socks":               "R:127.0.0.1:1080",
		"stdio:host:22":         "host:22",
	} {
		r, err := ParseRemote(text)
		require.NoError(t, err)
		assert.Equal(t, want, r.opening().rule())
	}
}
