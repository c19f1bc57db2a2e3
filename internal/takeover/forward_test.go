package takeover

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// elsewhere is an address without sessions.
var elsewhere = netip.MustParseAddrPort("127.0.0.1:3")

// What is of a session, by where it comes from and what it says.
func TestWhoseSession(t *testing.T) {
	data, hello, push := First{}, First{Hello: true}, First{Push: true}
	type is struct{ at, conv bool }
	for _, test := range []struct {
		name            string
		addr            netip.AddrPort
		sort            Sort
		first           *First // nil: malformed
		shared          bool
		legacy, ended   is // of a live session; of one that has ended
		extended, began is // the same, with an extended peer
	}{
		{name: "data", addr: v4, first: &data, legacy: is{true, true}, ended: is{true, true}, extended: is{true, true}, began: is{true, true}},
		{name: "hello", addr: v4, first: &hello, legacy: is{true, false}, extended: is{true, false}},
		{name: "push", addr: v4, first: &push, legacy: is{true, false}, extended: is{true, true}, began: is{true, true}},
		{name: "malformed", addr: v4, legacy: is{true, false}, ended: is{true, false}, extended: is{true, false}, began: is{true, false}},
		{name: "sealed", addr: v4, sort: Sealed, legacy: is{true, true}, ended: is{true, true}, extended: is{true, true}, began: is{true, true}},
		{name: "clear", addr: v4, sort: Clear, legacy: is{true, false}, extended: is{true, false}},
		{name: "parity", addr: v4, sort: Parity, legacy: is{true, false}, ended: is{true, false}, extended: is{true, false}, began: is{true, false}},
		{name: "data from elsewhere", addr: elsewhere, first: &data, legacy: is{false, true}, ended: is{false, true}, extended: is{false, true}, began: is{false, true}},
		{name: "push from elsewhere", addr: elsewhere, first: &push, extended: is{false, true}, began: is{false, true}},
		{name: "hello from elsewhere", addr: elsewhere, first: &hello},
		{name: "malformed from elsewhere", addr: elsewhere},
		{name: "sealed from elsewhere", addr: elsewhere, sort: Sealed, legacy: is{false, true}, ended: is{false, true}, extended: is{false, true}, began: is{false, true}},
		{name: "clear from elsewhere", addr: elsewhere, sort: Clear},
		{name: "parity from elsewhere", addr: elsewhere, sort: Parity},
		{name: "data from elsewhere, shared", addr: elsewhere, first: &data, shared: true},
		{name: "sealed from elsewhere, shared", addr: elsewhere, sort: Sealed, shared: true},
	} {
		p := &Packet{Addr: test.addr, Conv: 7, Sort: test.sort, Shared: test.shared, First: func() (f First, ok bool) {
			if test.first == nil {
				return f, false
			}
			return *test.first, true
		}}
		for i, want := range []is{test.legacy, test.ended, test.extended, test.began} {
			var o Owned
			require.True(t, o.Add(v4, 7, i >= 2))
			if i%2 == 1 {
				o.End(v4, 7, i >= 2)
			}
			require.Equal(t, want, is{o.hasAt(p), o.hasConv(p)}, "%s, session %d", test.name, i)
			p.Conv++
			require.Equal(t, is{test.sort == Parity && test.addr == v4, false}, is{o.hasAt(p), o.hasConv(p)}, "%s, another id", test.name)
			p.Conv--
		}
	}
}

// Notes change what is known of a session. One that only its process can answer for is
// known until that has ended.
func TestOwnedApply(t *testing.T) {
	var o Owned
	require.True(t, o.apply(Note{Kind: Owns, Addr: v4, Conv: 1, Extended: true}))
	require.True(t, o.apply(Note{Kind: Owns, Addr: v4, Conv: 2}))
	require.True(t, o.apply(Note{Kind: Moved, Addr: v4, Conv: 1, To: v6}))
	require.True(t, o.apply(Note{Kind: Used, Conv: 3}))
	require.Equal(t, 2, o.Len())
	require.True(t, o.apply(Note{Kind: Ended, Addr: v6, Conv: 1, End: End{Mute: true}}))
	require.True(t, o.apply(Note{Kind: Ended, Addr: v4, Conv: 2}))
	require.Zero(t, o.Len())
	_, ok := o.At(v4, 2)
	require.False(t, ok)
	s, ok := o.At(v6, 1)
	require.True(t, ok)
	require.Equal(t, Session{v6, 1, true, true}, s)
	var copied Owned
	for _, n := range o.appendNotes(nil, 3) {
		require.Equal(t, uint32(3), n.Of)
		require.True(t, copied.apply(n))
	}
	require.Equal(t, o, copied)
}
