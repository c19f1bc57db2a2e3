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

// Questions are answered one after the other through a full table, whether it is full of
// answered ones, of those without an answer, or of conversations that are idle.
func TestQuestionsWaitForTheirAnswers(t *testing.T) {
	const limit, every, answer = 200, 7 * time.Millisecond, 300 * time.Millisecond
	for name, kind := range map[string]State{"answered": Answered, "unanswered": Unanswered, "conversations": Assured} {
		table := New[flow](limit, 30*time.Second, 2*time.Minute)
		now := time.Duration(0)
		for range limit {
			f := named("old")
			table.Add(&f.Entry, now)
			for state := range kind {
				table.Pass(&f.Entry, state == Unanswered, now)
			}
			require.Equal(t, kind, f.State())
		}
		now += Dormant
		var waiting []*flow
		for range 3000 {
			f := named("question")
			table.Add(&f.Entry, now)
			waiting = append(waiting, f)
			now += every
			if len(waiting) > int(answer/every) {
				table.Pass(&waiting[0].Entry, true, now)
				require.Equal(t, Answered, waiting[0].State(), "%s: ended before its answer", name)
				waiting = waiting[1:]
			}
		}
	}
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

// A table does what a slice does, sorted by state and idleness: a full one ends flows
// without an answer first, then those of one answer, and of one kind the longest idle.
func TestTableIsLikeASlice(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 2))
		const second = time.Second
		table := New[flow](8, 9*second, 60*second)
		var all []*flow // in the order of their last packets
		drop := func(f *flow) { all = slices.DeleteFunc(all, func(o *flow) bool { return o == f }) }
		for now := second; now < 500*second; now += second {
			switch f := pick(random, all); {
			case random.IntN(3) == 0:
				want := victim(all, 8, now)
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
				answer, before := random.IntN(2) == 0, f.State()
				table.Pass(&f.Entry, answer, now)
				want := map[bool][]State{true: {Answered, Answered, Assured}, false: {Unanswered, Assured, Assured}}[answer][before]
				require.Equal(t, want, f.State(), "seed %d", seed)
				drop(f)
				all = append(all, f)
			}
			for e := table.Expire(now); e != nil; e = table.Expire(now) {
				require.GreaterOrEqual(t, now-e.last, map[bool]time.Duration{true: 9 * second, false: 60 * second}[e.state == Unanswered])
				drop(e.Owner)
			}
			for _, f := range all {
				require.Less(t, now-f.last, map[bool]time.Duration{true: 9 * second, false: 60 * second}[f.state == Unanswered], "seed %d", seed)
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
func victim(all []*flow, limit int, now time.Duration) (found *flow) {
	if len(all) < limit {
		return nil
	}
	worth := func(f *flow) int {
		switch idle := now - f.last; {
		case f.state == Unanswered && idle >= Grace:
			return 0
		case f.state == Answered:
			return 1
		case f.state == Assured && idle >= Dormant:
			return 2
		case f.state == Unanswered:
			return 3
		}
		return 4
	}
	for _, f := range all { // in the order of idleness
		if found == nil || worth(f) < worth(found) {
			found = f
		}
	}
	return found
}
