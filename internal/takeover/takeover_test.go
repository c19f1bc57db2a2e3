package takeover

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	v4 = netip.MustParseAddrPort("127.0.0.1:1")
	v6 = netip.MustParseAddrPort("[fe80::1%eth0]:65535")
)

// Notes are decoded as they were encoded, one behind the other. What is cut off anywhere
// is none.
func TestNotes(t *testing.T) {
	notes := []Note{
		{Kind: Owns, Extended: true, Addr: v4, Conv: 0xffffffff, Of: 3},
		{Kind: Ended, Addr: v6, Conv: 1, End: End{Una: 2, Token: 3, Own: 4, Aborted: true, Dropped: true, Mute: true}},
		{Kind: Ended, Addr: v6, Conv: 1, End: End{Aborted: true}},
		{Kind: Ended, Addr: v6, Conv: 1, End: End{Dropped: true}},
		{Kind: Moved, Addr: v4, Conv: 5, To: v6},
		{Kind: Used, Conv: 6},
		{Kind: Over},
	}
	var b []byte
	for _, n := range notes {
		one := n.Append(nil)
		for i := range one {
			_, _, ok := CutNote(one[:i])
			require.False(t, ok, "%d of %d bytes", i, len(one))
		}
		b = n.Append(b)
	}
	for _, want := range notes {
		got, rest, ok := CutNote(b)
		require.True(t, ok)
		require.Equal(t, want, got)
		b = rest
	}
	require.Empty(t, b)
	for _, kind := range []byte{0, byte(Over) + 1, 255} {
		n := notes[0].Append(nil)
		n[0] = kind
		_, _, ok := CutNote(n)
		require.False(t, ok)
	}
}

// What arrives over a pipe may be anything.
func FuzzNotes(f *testing.F) {
	f.Add((&Note{Kind: Moved, Addr: v4, To: v6}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, rest, ok := CutNote(b)
		if !ok {
			return
		}
		again, _, ok := CutNote(n.Append(nil))
		require.True(t, ok)
		require.Equal(t, n, again)
		require.Less(t, len(rest), len(b))
	})
}

func FuzzDatagrams(f *testing.F) {
	f.Add([]byte{6, 127, 0, 0, 1, 1, 0, 1, 0, 'x'})
	f.Fuzz(func(t *testing.T, b []byte) {
		d, rest, err := cutDatagram(b)
		if err == nil {
			require.True(t, d.Addr.IsValid())
			require.LessOrEqual(t, len(d.Buf)+len(rest), len(b))
		}
	})
}

// Owned answers as a list does that is searched.
func TestOwned(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	type session struct {
		addr     netip.AddrPort
		conv     uint32
		extended bool
		ended    bool
	}
	var all []session
	var o Owned
	addrs := []netip.AddrPort{v4, v6, netip.MustParseAddrPort("127.0.0.1:2")}
	find := func(addr netip.AddrPort, conv uint32) int {
		return slices.IndexFunc(all, func(s session) bool { return s.addr == addr && s.conv == conv })
	}
	for range 10_000 {
		addr, to, conv := addrs[random.IntN(3)], addrs[random.IntN(3)], random.Uint32N(4)
		at := find(addr, conv)
		switch random.IntN(4) {
		case 0:
			s := session{addr, conv, random.IntN(2) == 0, false}
			require.True(t, o.Add(addr, conv, s.extended))
			if at >= 0 {
				all[at] = s
			} else {
				all = append(all, s)
			}
		case 1:
			o.Remove(addr, conv)
			if at >= 0 {
				all = slices.Delete(all, at, at+1)
			}
		case 2:
			o.Move(addr, conv, to)
			if at >= 0 {
				all[at].ended = false
			}
			if at >= 0 && addr != to {
				s := all[at]
				s.addr = to
				all = slices.Delete(all, at, at+1)
				if there := find(to, conv); there >= 0 {
					all = slices.Delete(all, there, there+1)
				}
				all = append(all, s)
			}
		case 3:
			extended := random.IntN(2) == 0
			o.End(addr, conv, extended)
			if at >= 0 {
				all[at].ended = true
			} else {
				all = append(all, session{addr, conv, extended, true})
			}
		}
		live := slices.DeleteFunc(slices.Clone(all), func(s session) bool { return s.ended })
		require.Equal(t, len(live), o.Len())
		at = find(addr, conv)
		s, ok := o.At(addr, conv)
		require.Equal(t, at >= 0, ok)
		if ok {
			require.Equal(t, all[at], session{s.Addr, s.Conv, s.Extended, s.Ended})
		}
		found, extended := o.Conv(conv)
		require.Equal(t, slices.ContainsFunc(all, func(s session) bool { return s.conv == conv }), found)
		require.Equal(t, slices.ContainsFunc(all, func(s session) bool { return s.conv == conv && s.extended }), extended)
		require.Equal(t, slices.ContainsFunc(all, func(s session) bool { return s.addr == addr }), o.Addr(addr))
	}
	for s := range o.All {
		require.Equal(t, session{s.Addr, s.Conv, s.Extended, s.Ended}, all[find(s.Addr, s.Conv)])
		o.Remove(s.Addr, s.Conv)
	}
	require.Zero(t, o.Len())
	require.Empty(t, o.convs)
	require.Empty(t, o.addrs)
}

// Each difference is named, and no difference is none.
func TestDiffers(t *testing.T) {
	a := Offer{Sockets: 1, LegacySetting: "a"}
	for _, test := range []struct {
		change func(o *Offer)
		want   Difference
	}{
		{func(o *Offer) { o.Sockets++ }, Difference{"Shards", 2, "must be 1, as in the old process"}},
		{func(o *Offer) { o.TLS = true }, Difference{"TLS", "set", "must be not set, as in the old process"}},
		{func(o *Offer) { o.Cipher = true }, Difference{"Cipher", "set", "must be not set, as in the old process"}},
		{func(o *Offer) { o.FEC = true }, Difference{"FEC", "set", "must be not set, as in the old process"}},
		{func(o *Offer) { o.SharedConvs = true }, Difference{"SharedConvs", true, "must be false, as in the old process"}},
		{func(o *Offer) { o.LegacyPeers, o.LegacySetting = true, "b" }, Difference{"LegacyPeers", "b", "must be a, as in the old process"}},
	} {
		b := a
		require.Nil(t, a.Differs(&b, nil))
		test.change(&b)
		require.Equal(t, &test.want, a.Differs(&b, nil))
	}
	a.Cipher = true
	opens := func(ok bool) func([]byte, string) bool { return func([]byte, string) bool { return ok } }
	require.Nil(t, a.Differs(&a, opens(true)))
	another := &Difference{"Cipher", "another", "must have the algorithm and the key of the old process"}
	require.Equal(t, another, a.Differs(&a, opens(false)))
	b := a
	b.LegacyPeers = true // which may be because of the cipher
	require.Equal(t, another, a.Differs(&b, opens(false)))
}

// A refusal keeps its text, and the difference if there is one. What is not understood
// after the text is left out.
func TestRefusal(t *testing.T) {
	why := errors.New("why")
	for _, d := range []*Difference{nil, {"Shards", 2, "must be 1"}, {"SharedConvs", true, "no"}, {"TLS", "set", "no"}} {
		require.Equal(t, &RefusedError{Peer: "p", Reason: "why", Differs: d}, parseRefusal("p", refusal(why, d)))
	}
	for _, payload := range []string{"why\x00", "why\x00{", "why\x00[]"} {
		require.Equal(t, &RefusedError{Peer: "p", Reason: "why"}, parseRefusal("p", []byte(payload)))
	}
	require.Len(t, parseRefusal("p", make([]byte, 5)).Reason, 0)
	require.Len(t, parseRefusal("p", bytes.Repeat([]byte("x"), 5000)).Reason, maxReason)
}
