package main

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pion/stun/v4"
	"github.com/stretchr/testify/require"
)

func nobody(w *world, host string) net.PacketConn { return w.listen(host + ":5000") }

// A part that is not of the file shows in the SHA-256, and is deleted.
func TestDamagedPart(t *testing.T) {
	inWorld(t, defaultLimits(), func(w *world) {
		f, err := os.Open(w.path)
		require.NoError(w, err)
		o, err := describeFile(f)
		require.NoError(w, err)
		require.NoError(w, f.Close())
		require.NoError(w, os.WriteFile(filepath.Join(w.dir, partName(o)), make([]byte, 2_900_000), 0o600))
		sent, got := w.both(nobody(w, "203.0.113.1"), nobody(w, "203.0.113.2"))
		require.ErrorContains(w, sent, errDamaged.Error())
		require.ErrorContains(w, got, errDamaged.Error())
		entries, err := os.ReadDir(w.dir)
		require.NoError(w, err)
		require.Empty(w, entries)
	})
}

// A file that is there already stays as it is.
func TestOtherFileStays(t *testing.T) {
	inWorld(t, defaultLimits(), func(w *world) {
		require.NoError(w, os.WriteFile(filepath.Join(w.dir, "file"), []byte("mine"), 0o600))
		sent, got := w.both(nobody(w, "203.0.113.1"), nobody(w, "203.0.113.2"))
		require.ErrorContains(w, sent, `the receiver has another file named "file"`)
		require.ErrorContains(w, got, `the receiver has another file named "file"`)
		b, err := os.ReadFile(filepath.Join(w.dir, "file"))
		require.NoError(w, err)
		require.Equal(w, "mine", string(b))
	})
}

func TestNamesOfFiles(t *testing.T) {
	s := &store{most: 100}
	for _, name := range []string{"", ".", "..", ".profile", "a/b", "../a", `a\b`, "c:a", "/a", "a\x00", strings.Repeat("a", 201),
		"a\x1b[2J", "a\nb", "a\rb", "a\tb", "\u202egnp.exe", "a\u2028b", "\xff", "a\x7f", "a\u009bb", "a\u200bb", "a\u00a0b"} {
		require.Error(t, s.check(&offer{name, 1, make([]byte, 32)}), name)
	}
	for _, name := range []string{"übung.txt", "写真.png", "a (1).tar.gz", "naïve – copy"} {
		require.NoError(t, s.check(&offer{name, 1, make([]byte, 32)}), name)
	}
	require.NoError(t, s.check(&offer{"a b.txt", 100, make([]byte, 32)}))
	require.Error(t, s.check(&offer{"a", 101, make([]byte, 32)}))
	require.Error(t, s.check(&offer{"a", -1, make([]byte, 32)}))
	require.Error(t, s.check(&offer{"a", 1, nil}))
}

// A socket carries STUN and other packets. Answers of others than the server that was
// asked do not count, and a lost request is sent again.
func TestSTUN(t *testing.T) {
	inWorld(t, defaultLimits(), func(w *world) {
		lost := 0
		server := netip.MustParseAddrPort(stunAddr)
		client := newSTUNConn(w.listen("203.0.113.1:5000"), false)
		forger := w.listen("203.0.113.9:5000")
		w.net.SetFilter(func(from, to netip.AddrPort, packet []byte) bool {
			if to != server {
				return true
			}
			m := new(stun.Message)
			require.NoError(w, stun.Decode(append([]byte(nil), packet...), m))
			reply, err := stun.Build(m, stun.BindingSuccess, &stun.XORMappedAddress{IP: net.IPv4(6, 6, 6, 6), Port: 6})
			require.NoError(w, err)
			w.net.Inject(addrPort(forger.LocalAddr()), from, reply.Raw)
			lost++
			return lost > 2
		})
		read := make(chan string, 1)
		go func() {
			b := make([]byte, 1500)
			for {
				n, _, err := client.ReadFrom(b)
				if err != nil {
					return
				}
				read <- string(b[:n])
			}
		}()
		start := time.Now()
		at, err := client.mapped(w.Context(), server)
		require.NoError(w, err)
		require.Equal(w, "203.0.113.1:5000", at.String())
		require.GreaterOrEqual(w, time.Since(start), 1500*time.Millisecond)
		require.Less(w, time.Since(start), 1600*time.Millisecond)
		require.Empty(w, client.asked)

		packet := strings.Repeat("of a session ", 3)
		w.net.Inject(server, at, []byte(packet))
		require.Equal(w, packet, <-read)
		require.NoError(w, client.Close())
		require.NoError(w, forger.Close())
	})
}

func TestKindOfNAT(t *testing.T) {
	at := func(s ...string) (all []netip.AddrPort) {
		for _, a := range s {
			all = append(all, netip.MustParseAddrPort(a))
		}
		return all
	}
	own := at("192.168.1.2:5", "[2001:db8::1]:5")
	require.Equal(t, natUnknown, kindOf(own, nil))
	require.Equal(t, natUnknown, kindOf(own, at("203.0.113.1:9")))
	require.Equal(t, natIndependent, kindOf(own, at("203.0.113.1:9", "203.0.113.1:9")))
	require.Equal(t, natDependent, kindOf(own, at("203.0.113.1:9", "203.0.113.1:10")))
	require.Equal(t, natDependent, kindOf(own, at("203.0.113.1:9", "203.0.113.1:9", "203.0.113.1:10")))
	require.Equal(t, natNone, kindOf(own, at("[2001:db8::1]:5")))
	require.Equal(t, natIndependent, kindOf(own, at("[2001:db8::1]:5", "203.0.113.1:9", "203.0.113.1:9")))
}

func TestOrderOfCandidates(t *testing.T) {
	a := netip.MustParseAddrPort
	private, public, six := a("192.168.1.2:5"), a("203.0.113.1:9"), a("[2001:db8::1]:5")
	require.Equal(t, []netip.AddrPort{six, public, private}, candidates([]netip.AddrPort{private, six}, []netip.AddrPort{public, public}))
	card := []netip.AddrPort{public, private}
	require.Equal(t, card, ordered(card, public, a("198.51.100.9:1")))
	require.Equal(t, []netip.AddrPort{private, public}, ordered(card, public, a("203.0.113.1:7")))
	require.Equal(t, []netip.AddrPort{public, private}, ordered([]netip.AddrPort{private}, public, a("198.51.100.9:1")))
}

// A card that was changed, or names the same role, does not count.
func TestCards(t *testing.T) {
	s := mustSecret(t, testCode)
	c := &card{roleSend, "SHA256:x", natNone, []netip.AddrPort{netip.MustParseAddrPort("203.0.113.1:9")}}
	lines := s.seal(c)
	got, err := s.open(lines, roleSend)
	require.NoError(t, err)
	require.Equal(t, c, got)
	_, err = s.open(lines, roleGet)
	require.ErrorContains(t, err, `the role "send"`)
	for i := range lines {
		changed := append([]string(nil), lines...)
		changed[i] += "0"
		_, err = s.open(changed, roleSend)
		require.ErrorIs(t, err, errForged)
	}
	_, err = s.open(nil, roleSend)
	require.ErrorIs(t, err, errForged)
	_, err = newSecret("short")
	require.Error(t, err)
	require.NotEqual(t, newCode(), newCode())
	mustSecret(t, newCode())
}
