package tunnel

import (
	"context"
	"errors"
	"math/big"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// clientWith returns what a server has of a client whose user has one rule.
func clientWith(t *testing.T, text string) *serverSession {
	one, err := parseRule(text)
	require.NoError(t, err)
	u := parsed(t, everything)
	u.byName["me"].rules = []rule{one}
	c := &serverSession{server: new(Server), identity: &clientIdentity{name: "me", password: digestOf("secret")}}
	c.server.users.Store(u)
	return c
}

// dialled returns what is dialled for a target that was admitted.
func dialled(t *testing.T, target string) (all []string) {
	s := &session{account: newAccount(time.Minute), dials: new(dialTally), connect: func(_ context.Context, _, at string) (net.Conn, error) {
		all = append(all, at)
		return nil, errors.New("nobody")
	}}
	_, err := s.connectAny(t.Context(), "tcp", addresses(target))
	require.EqualError(t, err, "nobody")
	return all
}

// aton reports whether inet_aton(3), and what browsers read, take a host for an address:
// up to four numbers of base 8, 10 or 16.
func aton(host string) bool {
	parts := strings.Split(strings.TrimSuffix(host, "."), ".")
	last := parts[len(parts)-1]
	for _, base := range []int{10, 8, 16} {
		digits := last
		if base == 16 {
			var ok bool
			if digits, ok = strings.CutPrefix(strings.ToLower(last), "0x"); !ok {
				continue
			}
			if digits == "" {
				return true
			}
		}
		if _, ok := new(big.Int).SetString(digits, base); ok && !strings.ContainsAny(digits, "+-_") {
			return true
		}
	}
	return false
}

// Rules see the same host and port that is dialled, whatever a client asks for: an
// address in its shortest form, with a zone only if it is link-local, or a name that
// nothing takes for an address.
func FuzzTargets(f *testing.F) {
	for _, s := range []string{
		"127.0.0.1:80", "[::1]:080", "[::1%1.10.0.0.1]:80", "[fe80::1%lo]:80", "[fe80::1%1]:80", "[fe80::1%1.10.0.0.1]:80", "[::ffff:10.0.0.1]:80",
		"[::FFFF:a00:1%lo]:80", "[64:ff9b::10.0.0.1]:80", "127.1:80", "2130706433:80", "0x7f.1:80", "0177.0.0.1:80", "Example.COM.:443", "localhost:1",
		"\u212a.com:80", "\uff11\uff10.0.0.1:80", "10\u30020.0.1:80", "a:+80", "a: 80", "a:http", "%31.0.0.1:80", "10.0.evil.example:80", "R:1:80",
		"[::1]:80/udp", "[ff02::1%lo]:80", "0.0.0.0:80", "[::]:80", "[::%lo]:80", "0x:1", "a.0x1f:1", "[a]:1", "[1.2.3.4]:1",
	} {
		f.Add(s, uint8(kindTCP))
		f.Add(s, uint8(kindSocksUDP))
	}
	f.Fuzz(func(t *testing.T, asked string, k uint8) {
		o := opening{kind: kind(k), target: asked}
		target, err := clientWith(t, "").admit(o)
		if err != nil {
			return
		}
		o.target = target
		saw := o.rule()
		same, err := clientWith(t, "^"+regexp.QuoteMeta(saw)+"$").admit(opening{kind: kind(k), target: asked})
		require.NoError(t, err, "rules do not see %q", saw)
		require.Equal(t, target, same)
		_, port, err := net.SplitHostPort(target)
		require.NoError(t, err)
		for _, at := range dialled(t, target) {
			to, err := net.ResolveTCPAddr("tcp", literalOr(t, at, "[::]:"+port))
			require.NoError(t, err)
			require.Equal(t, port, strconv.Itoa(to.Port))
			parsed, err := netip.ParseAddrPort(at)
			if err != nil {
				require.Equal(t, target, at)
				continue
			}
			a := to.AddrPort().Addr().Unmap()
			require.Equal(t, parsed.Addr(), a, "package net dials something else")
			require.True(t, at == target || strings.HasPrefix(target, "localhost:"), "%q is not what rules see", at)
			require.True(t, a.Zone() == "" || a.IsLinkLocalUnicast() || a.IsLinkLocalMulticast())
			_, err = clientWith(t, `10\.0\.`).admit(opening{kind: kindTCP, target: asked})
			require.True(t, err != nil || a.Is4(), "a rule of IPv4 lets %q through", target)
		}
	})
}

// literalOr returns at if its host is an address, and else other. What is not has to be a
// name.
func literalOr(t *testing.T, at, other string) string {
	if _, err := netip.ParseAddrPort(at); err == nil {
		return at
	}
	host, _, err := net.SplitHostPort(at)
	require.NoError(t, err)
	require.False(t, aton(host), "%q may be taken for an address", host)
	require.Regexp(t, `^[a-z0-9._-]+$`, host)
	return other
}

// A zone has one spelling where it is dialled or listened on: the name of an interface
// that is there.
func TestZoneHere(t *testing.T) {
	i, err := net.InterfaceByIndex(1)
	if err != nil {
		t.Skip("no interface has the index 1")
	}
	for asked, want := range map[string]string{
		"[fe80::1%1]:80": "[fe80::1%" + i.Name + "]:80", "[fe80::1%" + i.Name + "]:80": "[fe80::1%" + i.Name + "]:80",
		"[fe80::1]:80": "[fe80::1]:80", "10.0.0.1:80": "10.0.0.1:80", "a:80": "a:80",
	} {
		got, err := zoneHere(asked)
		require.NoError(t, err)
		assert.Equal(t, want, got)
		assert.Equal(t, "R:"+want+"/udp", wantHere("R:"+asked+"/udp"))
	}
	for _, asked := range []string{"[fe80::1%no-such]:80", "[fe80::1%1no]:80", "[fe80::1%2147483647]:80"} {
		got, err := zoneHere(asked)
		assert.Error(t, err, "%q became %q", asked, got)
		_, err = clientWith(t, "").admit(opening{kind: kindTCP, target: asked})
		require.ErrorIs(t, err, refusal(codeForbidden))
	}
	rule := `^\[fe80::1%` + i.Name + `\]:80$`
	for _, asked := range []string{"[fe80::1%1]:80", "[fe80::1%" + i.Name + "]:80"} {
		target, err := clientWith(t, rule).admit(opening{kind: kindTCP, target: asked})
		require.NoError(t, err)
		assert.Equal(t, "[fe80::1%"+i.Name+"]:80", target)
	}
}

// A server refuses what rules about addresses of IPv4 do not name, in whatever form it is
// asked for, by TCP and SOCKS5 and to listen.
func TestZonesDoNotPassRules(t *testing.T) {
	t.Parallel()
	at := testenv.Target(t, testenv.Echo)
	_, port, _ := net.SplitHostPort(at)
	s := startServer(t, `{"me:secret": ["^.*10\\.0\\..*$", "^.*10\\.0\\.0\\.[0-9]+.*:`+port+`$", "^R:.*10\\.0\\..*$"]}`, nil)
	conn := login(t, s, "me", "secret")
	for _, host := range []string{"[::1%1.10.0.0.1]", "[fe80::1%1.10.0.0.1]", "[::1%e10.0.0.1]", "[fe80::1%e10.0.0.1]", "[2001:db8::1%10.0.0.1]", "[::ffff:127.0.0.1%10.0.0.1]"} {
		for _, k := range []kind{kindTCP, kindSocksTCP, kindListenTCP, kindListenSocks} {
			err := awaitOpen(start(t, conn, opening{kind: k, target: host + ":" + port}.append(nil)))
			require.True(t, errors.Is(err, codeForbidden) || errors.Is(err, codeMalformed), "%v %s: %v", k, host, err)
		}
	}
}
