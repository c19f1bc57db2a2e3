package main

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
