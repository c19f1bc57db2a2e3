package flowtable

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type flow struct {
	Entry[flow]
	name string
}

func named(name string) *flow {
	f := &flow{name: name}
	f.Owner = f
	return f
}

// A full table ends flows without an answer first, then those of one answer, and of one
// kind the longest idle.
func TestWhoMakesRoom(t *testing.T) {
	table := New[flow](4, 30*time.Second, 2*time.Minute)
	assured, answered, old, active := named("assured"), named("answered"), named("old"), named("active")
	for i, f := range []*flow{assured, answered, old, active} {
		require.Nil(t, table.Add(&f.Entry, time.Duration(i)*time.Second))
	}
	table.Pass(&assured.Entry, true, 4*time.Second)
	table.Pass(&assured.Entry, false, 4*time.Second)
	table.Pass(&answered.Entry, true, 5*time.Second)
	table.Pass(&old.Entry, false, 6*time.Second)
	table.Pass(&active.Entry, false, 7*time.Second)
	require.Equal(t, []State{Assured, Answered, Unanswered}, []State{assured.State(), answered.State(), old.State()})
	next := func() string {
		f := named("new")
		evicted := table.Add(&f.Entry, 8*time.Second)
		require.NotNil(t, evicted)
		require.Equal(t, 4, table.Len())
		table.Pass(&f.Entry, true, 8*time.Second)
		return evicted.Owner.name
	}
	require.Equal(t, "old", next())
	require.Equal(t, "active", next())
	require.Equal(t, "answered", next(), "the longest idle of those with one answer")
	require.Equal(t, "new", next(), "the conversation stays")
	table.Pass(&old.Entry, true, 9*time.Second)
	table.Remove(&old.Entry)
	require.Equal(t, 4, table.Len(), "what was evicted is in the table no more")
}

// Flows without an answer live shortly, and each packet begins their time again.
func TestLifetimes(t *testing.T) {
	table := New[flow](10, 30*time.Second, 2*time.Minute)
	_, ok := table.Due()
	require.False(t, ok)
	require.Nil(t, table.Expire(time.Hour))
	question, answer := named("question"), named("answer")
	table.Add(&answer.Entry, 0)
	table.Pass(&answer.Entry, true, 0)
	table.Add(&question.Entry, 0)
	table.Pass(&question.Entry, false, 10*time.Second)
	at, ok := table.Due()
	require.True(t, ok)
	require.Equal(t, 40*time.Second, at)
	require.Nil(t, table.Expire(at-1))
	require.Equal(t, question, table.Expire(at).Owner)
	at, ok = table.Due()
	require.True(t, ok)
	require.Equal(t, 2*time.Minute, at)
	require.Equal(t, answer, table.Expire(at).Owner)
	require.Zero(t, table.Len())
}

// A table does what a slice does, sorted by state and idleness.
func TestTableIsLikeASlice(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 2))
		table := New[flow](8, 3, 9)
		var all []*flow // in the order of their last packets
		drop := func(f *flow) { all = slices.DeleteFunc(all, func(o *flow) bool { return o == f }) }
		for now := time.Duration(1); now < 500; now++ {
			switch f := pick(random, all); {
			case random.IntN(3) == 0:
				want := victim(all, 8)
				added := named("")
				evicted := table.Add(&added.Entry, now)
				require.Equal(t, want == nil, evicted == nil, "seed %d", seed)
				if want != nil {
					require.Same(t, want, evicted.Owner, "seed %d", seed)
					drop(want)
				}
				all = append(all, added)
			case f != nil && random.IntN(8) == 0:
				table.Remove(&f.Entry)
				drop(f)
			case f != nil:
				table.Pass(&f.Entry, random.IntN(2) == 0, now)
				drop(f)
				all = append(all, f)
			}
			for e := table.Expire(now); e != nil; e = table.Expire(now) {
				require.GreaterOrEqual(t, now-e.last, map[bool]time.Duration{true: 3, false: 9}[e.state == Unanswered])
				drop(e.Owner)
			}
			for _, f := range all {
				require.Less(t, now-f.last, map[bool]time.Duration{true: 3, false: 9}[f.state == Unanswered], "seed %d", seed)
			}
			require.Equal(t, len(all), table.Len(), "seed %d", seed)
		}
	}
}

func pick(random *rand.Rand, all []*flow) *flow {
	if len(all) == 0 {
		return nil
	}
	return all[random.IntN(len(all))]
}

// victim returns the flow that makes room; nil: there is some.
func victim(all []*flow, limit int) (found *flow) {
	if len(all) < limit {
		return nil
	}
	for _, f := range all {
		if found == nil || f.state < found.state {
			found = f
		}
	}
	return found
}
