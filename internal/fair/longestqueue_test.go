package fair

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/stretchr/testify/require"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{{"| Full tables", "16 looked at", looks}})
}

// element is one of a table.
type element struct {
	of    Block
	look  Look
	place Place
}

func block(addr string) Block { return BlockOf(netip.MustParseAddr(addr), "") }

// table is a table of the tests.
type table struct {
	LongestQueues[element]
	all []*element // oldest first
}

func (q *table) add(addr string, look Look) *element {
	e := &element{of: block(addr), look: look}
	q.Add(&e.place, e, e.of)
	q.all = append(q.all, e)
	return e
}

func (q *table) remove(e *element) {
	q.Remove(&e.place)
	q.all = slices.DeleteFunc(q.all, func(other *element) bool { return other == e })
}

// of returns how many elements there are for which f reports true.
func (q *table) of(f func(*element) bool) (n int) {
	for _, e := range q.all {
		if f(e) {
			n++
		}
	}
	return n
}

func looked(e *element) Look {
	if e.look == Active {
		e.look = Idle
		return Active
	}
	return e.look
}

// Whoever makes room is of the network that has most, at each level, as one finds who
// counts all; and the oldest of those of its subnet.
func TestMakeRoom(t *testing.T) {
	for seed := range uint64(30) {
		random, q := rand.New(rand.NewPCG(seed, 1)), new(table)
		addr := func() string {
			return netip.AddrFrom4([4]byte{10, byte(random.IntN(3)), byte(random.ExpFloat64()), byte(random.IntN(4))}).String()
		}
		for range 500 {
			if q.Len() < 40 && random.IntN(3) > 0 {
				q.add(addr(), Idle)
			} else if len(q.all) > 0 && random.IntN(3) == 0 {
				e := q.all[random.IntN(len(q.all))]
				q.remove(e)
				q.Remove(&e.place) // which does nothing
			}
			require.Equal(t, len(q.all), q.Len(), seed)
			of := block(addr())
			inSubnet := func(s netip.Addr) int { return q.of(func(e *element) bool { return e.of.Subnet == s }) }
			inSite := func(s netip.Addr) int { return q.of(func(e *element) bool { return e.of.Site == s }) }
			require.Equal(t, inSubnet(of.Subnet), q.Of(of.Subnet), seed)
			if random.IntN(4) > 0 {
				continue
			}
			site, own, subnet := 0, 0, 0
			for _, e := range q.all {
				site = max(site, inSite(e.of.Site))
				if e.of.Site == of.Site {
					own = max(own, inSubnet(e.of.Subnet))
				}
			}
			mine, mineInSite := inSubnet(of.Subnet), inSite(of.Site)
			found := q.MakeRoom(of, looked)
			if found == nil {
				require.Empty(t, q.all, seed)
				continue
			}
			subnet = inSubnet(found.of.Subnet)
			oldest := q.all[slices.IndexFunc(q.all, func(e *element) bool { return e.of.Subnet == found.of.Subnet })]
			require.Same(t, oldest, found, seed)
			switch {
			case site > mineInSite+1 || mineInSite == 0:
				require.Equal(t, site, inSite(found.of.Site), seed)
			case own > mine+1:
				require.Equal(t, of.Site, found.of.Site, seed)
				require.Equal(t, own, subnet, seed)
			default:
				require.Equal(t, site, inSite(found.of.Site), seed)
			}
			q.remove(found)
		}
		for _, e := range slices.Clone(q.all) {
			q.remove(e)
		}
		require.Zero(t, q.LongestQueues, "nothing is kept")
	}
}

// A network that has more than the newcomer's makes room whatever its elements do. Among
// equals an element has its chance first, and a newcomer may have to come again.
func TestEqualsHaveTheirChance(t *testing.T) {
	crowd := func(look Look) *table {
		q := new(table)
		for i := range 8 {
			q.add(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}).String(), look)
		}
		return q
	}
	for _, look := range []Look{Young, Active, Idle} {
		q := crowd(look)
		require.Same(t, q.all[0], q.MakeRoom(block("192.0.2.1"), looked), "another site")
		require.Same(t, q.all[1], q.MakeRoom(block("192.0.2.1"), looked), "the oldest is gone")
		twice := q.add("10.0.0.7", look)
		q.add("10.0.0.7", look)
		require.Same(t, q.all[7], q.MakeRoom(block("10.0.0.9"), looked), "another subnet")
		require.Equal(t, 2, q.Of(twice.of.Subnet))
	}
	q := crowd(Young)
	require.Nil(t, q.MakeRoom(block("10.0.0.9"), looked))
	require.Nil(t, q.MakeRoomWithin(block("10.0.0.3").Subnet, looked))
	q.all[3].look = Idle
	require.Same(t, q.all[3], q.MakeRoomWithin(block("10.0.0.3").Subnet, looked))
	require.Nil(t, q.MakeRoomWithin(block("10.0.0.3").Subnet, looked), "there is none")
	q = crowd(Idle)
	q.all[0].look, q.all[1].look = Active, Active
	require.Same(t, q.all[2], q.MakeRoom(block("10.0.0.9"), looked))
	q = crowd(Stays)
	require.Nil(t, q.MakeRoom(block("192.0.2.1"), looked), "what is established")
	q.all[5].look = Young
	require.Same(t, q.all[5], q.MakeRoom(block("192.0.2.1"), looked))
	require.Equal(t, 7, q.Len())
}

// Two networks that want all of the table end up with half of it each, and leave each
// other's alone from then on.
func TestNetworksShare(t *testing.T) {
	q := new(table)
	for range 100 {
		q.add("10.0.0.1", Young)
	}
	taken := 0
	for range 1000 {
		if e := q.MakeRoom(block("192.0.2.1"), looked); e != nil {
			require.Equal(t, block("10.0.0.1"), e.of)
			q.add("192.0.2.1", Young)
			taken++
		}
	}
	require.Equal(t, 50, taken)
	require.Nil(t, q.MakeRoom(block("10.0.0.1"), looked))
	require.Same(t, q.all[50], q.MakeRoom(block("203.0.113.1"), looked))
}

// However large a table is, 16 elements are looked at.
func TestLooksAreFew(t *testing.T) {
	q, calls := new(table), 0
	for i := range 1000 {
		q.add(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1}).String(), Active)
	}
	require.Nil(t, q.MakeRoom(block("192.0.2.1"), func(*element) Look {
		calls++
		return Active
	}))
	require.Equal(t, looks, calls)
	require.Equal(t, 1000, q.Len())
	require.Same(t, q.all[looks], q.MakeRoom(block("192.0.2.1"), func(*element) Look { return Idle }))
}
