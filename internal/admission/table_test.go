package admission

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/arqnet/kcp/internal/fair"
	"github.com/stretchr/testify/require"
)

const (
	Young = fair.Young
	Idle  = fair.Idle
)

// session is a session of the tests.
type session struct {
	entry Entry
	look  fair.Look
}

func entryOf(k Key) (e Entry) {
	e.SetKey(k)
	return e
}

func (s *session) place() *Entry { return &s.entry }

func newTable() *Table[session] {
	t := new(Table[session])
	t.Init((*session).place, 1000)
	return t
}

func address(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i / 4)}), uint16(1000+i%4))
}

// model is a table that looks at every session for each answer.
type model map[*session]*struct{ fec, validated, shaking bool }

func (m model) only(match func(*session) bool) *session {
	var found *session
	for s := range m {
		if match(s) {
			if found != nil {
				return nil
			}
			found = s
		}
	}
	return found
}

// A table answers as one that looks at every session does.
func TestTable(t *testing.T) {
	for seed := range uint64(5) {
		random, table, m := rand.New(rand.NewPCG(seed, 1)), newTable(), model{}
		pick := func() *session {
			all := slices.SortedFunc(maps.Keys(m), func(a, b *session) int {
				return int(a.entry.slot) - int(b.entry.slot)
			})
			if len(all) == 0 {
				return nil
			}
			return all[random.IntN(len(all))]
		}
		key := func() Key { return Key{Addr: address(random.IntN(12)), Conv: uint32(random.IntN(4))} }
		for range 400 {
			k, s := key(), pick()
			switch other := table.Get(k); {
			case s == nil || random.IntN(3) == 0 && other == nil:
				s = &session{entry: entryOf(k)}
				table.Add(s)
				m[s] = new(struct{ fec, validated, shaking bool })
			case random.IntN(6) == 0:
				table.Remove(s)
				delete(m, s)
				require.False(t, table.Lists(s))
				table.BindFEC(s) // which does nothing
				require.False(t, table.Bound(s))
			case random.IntN(3) == 0:
				to := Key{Addr: k.Addr, Conv: s.entry.Conv}
				moves := table.Get(to) == nil
				require.Equal(t, moves, table.Move(s, k))
				if moves {
					m[s].fec = false
					require.Equal(t, to, s.entry.Key())
				}
			case random.IntN(2) == 0:
				table.BindFEC(s)
				m[s].fec = true
			case random.IntN(2) == 0:
				table.SetValidated(s)
				m[s].validated = true
			default:
				m[s].shaking = random.IntN(2) == 0
				table.SetShaking(s, m[s].shaking)
			}
			m.check(t, table, key(), fmt.Sprintf("seed %d", seed))
		}
	}
}

// check compares the answers about k.
func (m model) check(t *testing.T, table *Table[session], k Key, seed string) {
	t.Helper()
	require.Equal(t, len(m), table.Len(), seed)
	require.ElementsMatch(t, slices.Collect(maps.Keys(m)), table.Sessions(), seed)
	if s := table.Get(k); s == nil || !s.entry.rest {
		require.Equal(t, s, table.Find(k), seed)
	}
	require.Equal(t, m.only(func(s *session) bool { return s.entry.Key() == k }), table.Get(k), seed)
	require.Equal(t, m.only(func(s *session) bool { return m[s].fec && s.entry.Addr == k.Addr }), table.OfParity(k), seed)
	var want Count
	shaking, sameConv := 0, 0
	for s, state := range m {
		require.Equal(t, state.fec, table.Bound(s), seed)
		counted := state.validated && state.shaking
		if counted {
			shaking++
		}
		if s.entry.Conv == k.Conv {
			sameConv++
		}
		switch {
		case s.entry.Addr.Addr() != k.Addr.Addr():
		case state.validated:
			want.Validated++
			if counted {
				want.Shaking++
			}
		default:
			want.Pending++
		}
	}
	require.Equal(t, want, table.Network(k), seed)
	require.Equal(t, shaking, table.Shaking(), seed)
	found := slices.Collect(table.OfConv(k.Conv))
	require.LessOrEqual(t, len(found), min(sameConv, MaxSameConv), seed)
	for i, s := range found {
		require.Contains(t, m, s, seed)
		require.Equal(t, k.Conv, s.entry.Conv, seed)
		require.NotContains(t, found[:i], s, seed)
		require.Equal(t, len(found) == 1, table.Alone(s), seed)
	}
}

// Slots are used again, keep their session's place, and are released once a
// large table is empty.
func TestSlots(t *testing.T) {
	var l slots[session]
	all := make([]session, 2*slotsKept)
	for i := range all {
		require.EqualValues(t, i, l.add(&all[i]))
	}
	l.remove(7)
	l.remove(3)
	require.EqualValues(t, 3, l.add(&all[3]), "the last one is used first")
	require.Nil(t, l.all[7])
	require.EqualValues(t, 7, l.add(&all[7]))
	for i := range all {
		require.Same(t, &all[i], l.all[i])
		require.Equal(t, i == len(all)-1, l.remove(uint32(i)))
	}
	require.Zero(t, cap(l.all)+cap(l.free))
}

// Parts are consecutive, and the last one says so.
func TestPart(t *testing.T) {
	table := newTable()
	for i := range 10 {
		table.Add(&session{entry: entryOf(Key{Conv: uint32(i)})})
	}
	for _, c := range []struct {
		from, n, want int
		last          bool
	}{{0, 4, 4, false}, {4, 4, 4, false}, {8, 4, 2, true}, {6, 4, 4, true}, {20, 4, 0, true}} {
		part, last := table.Part(c.from, c.n)
		require.Len(t, part, c.want)
		require.Equal(t, c.last, last)
		for i, s := range part {
			require.EqualValues(t, c.from+i, s.entry.Conv)
		}
	}
}
