package dialling

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// end is an open with session "d" of the conversation 7, which has drawn 50, and a peer
// at the addresses 0 to n-1.
func end(n int) (t *Table[int, string], o *Open[int, string], decided *int) {
	t, decided = new(Table[int, string]), new(int)
	addrs := make([]int, n)
	for i := range addrs {
		addrs[i] = i
	}
	o, _ = t.Begin(addrs, 1000, func() { *decided++ })
	o.Dial("d", 7, 50)
	return t, o, decided
}

// The table of WIRE.md §5.1, cell by cell.
func TestTableOfWire(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../WIRE.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "| this end | greater t |")
	require.True(t, found)
	rows := make(map[string][]string)
	for _, line := range strings.Split(rest, "\n")[2:] {
		if !strings.HasPrefix(line, "|") {
			break
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows[cells[0]] = cells[1:]
	}
	events := [][]Hello{
		{{Conv: 8, Token: 1, Tie: 51, Opens: true}},
		{{Conv: 8, Token: 1, Tie: 49, Opens: true}},
		{{Conv: 8, Token: 1, Tie: 50, Opens: true}, {Conv: 7, Token: 1, Tie: 51, Opens: true}, {Conv: 7, Token: 1, Tie: 49}},
		{{Conv: 7, Token: 1, Tie: 50, Opens: true}},
	}
	states := map[string]func() (*Table[int, string], int){
		"does not dial the sender": func() (*Table[int, string], int) {
			table, _, _ := end(1)
			return table, 1
		},
		"has not drawn t yet, or has to draw again": func() (*Table[int, string], int) {
			table := new(Table[int, string])
			table.Begin([]int{0}, 1000, func() {})
			return table, 0
		},
		"dials, nothing half open": func() (*Table[int, string], int) {
			table, _, _ := end(1)
			return table, 0
		},
		"dials, half open": func() (*Table[int, string], int) {
			table, o, _ := end(1)
			_, ok := o.Add("half", 0, Hello{Conv: 9, Token: 2})
			require.True(t, ok)
			return table, 0
		},
		"has the session": func() (*Table[int, string], int) {
			table, o, _ := end(1)
			won, err := o.Dialled("d", true)
			require.NoError(t, err)
			require.Equal(t, "d", won)
			return table, 0
		},
	}
	says := func(v Verdict[int, string]) string {
		switch {
		case v.Do == Accept && v.Crowded:
			return "half open, or COOKIE; the same token: nothing"
		case v.Do == Accept:
			return "half open"
		}
		return map[Action]string{
			Ignore: "nothing", Greet: "HELLO leaves at once", Again: "dials again, with another id and t",
		}[v.Do]
	}
	require.Len(t, rows, len(states))
	for state, row := range rows {
		require.Contains(t, states, state)
		require.Len(t, row, len(events), state)
		for i, all := range events {
			for _, h := range all {
				table, from := states[state]()
				require.Equal(t, row[i], says(table.Judge(from, h, 0)), "%s, event %d", state, i)
			}
		}
	}
}

// One session comes of an open. Four are half open at most. What has failed counts if its
// peer has shown its address.
func TestOneSession(t *testing.T) {
	t.Parallel()
	table, o, decided := end(1)
	second, _ := table.Begin([]int{0, 5}, 1000, nil)
	require.Nil(t, second, "another open dials the address")
	require.EqualValues(t, 1, table.N.Load())
	hello := Hello{Conv: 8, Token: 1, Tie: 51, Opens: true}
	for i, s := range []string{"a", "b", "c", "e", "f"} {
		h := hello
		h.Token = uint32(i)
		drop, ok := o.Add(s, 0, h)
		require.True(t, ok)
		require.Equal(t, i == MaxHalfOpen, drop == "a", s)
	}
	v := table.Judge(0, Hello{Conv: 8, Token: 2, Tie: 51, Opens: true}, 0)
	require.Equal(t, Move, v.Do)
	require.Equal(t, "c", v.Session)
	require.False(t, table.Expects("a"))
	require.False(t, table.Fail("a", true, errors.New("of another")))
	require.True(t, table.Fail("b", false, errors.New("forged")))
	table.Remove("c")
	require.False(t, table.Expects("c"))
	require.Zero(t, *decided)
	expected, won := table.Offer("e")
	require.True(t, expected && won)
	require.Equal(t, 1, *decided)
	expected, won = table.Offer("f")
	require.True(t, expected)
	require.False(t, won)
	require.True(t, table.Fail("f", true, errors.New("too late")))
	session, err := o.Dialled("d", true)
	require.NoError(t, err)
	require.Equal(t, "e", session, "it was first")
	_, ok := o.Add("g", 0, hello)
	require.False(t, ok)
	require.Equal(t, 1, *decided)
	o.End(func(late []string) {
		require.Equal(t, []string{"b", "f"}, late)
		expected, won := table.Offer("f")
		require.True(t, expected)
		require.False(t, won)
	})
	require.Zero(t, table.N.Load())
	require.Equal(t, Verdict[int, string]{}, table.Judge(0, hello, 0))

	table, o, decided = end(1)
	_, _ = o.Add("a", 0, hello)
	failed := errors.New("no certificate")
	require.True(t, table.Fail("a", true, failed))
	require.Equal(t, 1, *decided)
	session, err = o.Dialled("d", false)
	require.Equal(t, failed, err)
	require.Empty(t, session)
}

// Every address but the one that HELLO leaves for is probed, one each 20 ms, and again
// after 200, 400 and 500 ms.
func TestProbes(t *testing.T) {
	t.Parallel()
	_, o, _ := end(1 + MaxCandidates)
	at := make(map[int][]time.Duration)
	last := -time.Second
	for now := time.Duration(0); now < 2*time.Second; {
		probe, _, aim, wait := o.Probe(now)
		require.Equal(t, -1, aim)
		require.GreaterOrEqual(t, wait, Pace)
		if probe >= 0 {
			require.GreaterOrEqual(t, now-last, Pace)
			at[probe], last = append(at[probe], now), now
		}
		now += wait
	}
	require.Len(t, at, MaxCandidates)
	require.NotContains(t, at, 0)
	for i := 1; i <= MaxCandidates; i++ {
		require.Equal(t, time.Duration(i-1)*Pace, at[i][0], "the better ones first")
		require.LessOrEqual(t, len(at[i]), 6)
		for n := 1; n < len(at[i]); n++ {
			require.GreaterOrEqual(t, at[i][n]-at[i][n-1], FirstWait)
		}
	}
}

// HELLO leaves by the first path by which the peer has answered a challenge, or a better
// one, and by the next after a second. What comes for the dialled session, or a half-open
// one, by another path moves it if the peer has answered there.
func TestAim(t *testing.T) {
	t.Parallel()
	table, o, _ := end(4)
	lower := Hello{Conv: 8, Token: 1, Tie: 49, Opens: true}
	require.False(t, table.Judge(3, lower, 100*ms).Aim, "somebody else may have sent it")
	lower.Shows = true
	greet := func(from int, now time.Duration) bool {
		v := table.Judge(from, lower, now)
		require.Equal(t, Greet, v.Do)
		require.Equal(t, "d", v.Session)
		return v.Aim
	}
	require.True(t, greet(3, 100*ms), "nothing has come by 0")
	require.False(t, greet(3, 100*ms))
	require.False(t, greet(0, 100*ms), "it is no better")
	require.True(t, greet(2, 200*ms))
	_, _, aim, _ := o.Probe(200*ms + AimTime - 1)
	require.Equal(t, -1, aim)
	var order []int
	for now := 200*ms + AimTime; len(order) < 4; now += AimTime {
		_, _, aim, _ := o.Probe(now)
		order = append(order, aim)
	}
	require.Equal(t, []int{3, 0, 2, 3}, order, "those that something has come by")
	elsewhere := func(from int, conv uint32) (Verdict[int, string], bool) {
		return table.Elsewhere(from, conv, 24, time.Minute)
	}
	v, mine := elsewhere(1, 7)
	require.True(t, mine)
	require.True(t, v.Do == Ignore && v.Tell && v.Ask, "nothing has shown that the peer is there")
	_, mine = elsewhere(1, 8)
	require.False(t, mine)
	_, mine = elsewhere(9, 7)
	require.False(t, mine)
	_, ok := o.Add("half open", 3, Hello{Conv: 8, Token: 1})
	require.True(t, ok)
	v, mine = elsewhere(1, 8)
	require.True(t, mine && v.Do == Ignore)
	require.False(t, table.Judge(1, Hello{Conv: 8, Token: 1, Tie: 51, Opens: true}, time.Minute).Do == Move)
	require.Equal(t, Greet, table.Judge(1, lower, time.Hour).Do)
	for conv, s := range map[uint32]string{7: "d", 8: "half open"} {
		v, mine = elsewhere(1, conv)
		require.True(t, mine && v.Do == Move)
		require.Equal(t, s, v.Session)
	}
	require.Equal(t, Move, table.Judge(1, Hello{Conv: 8, Token: 1, Tie: 51, Opens: true}, time.Minute).Do)
	table.Remove("half open")
	_, mine = elsewhere(1, 8)
	require.False(t, mine)
}

// What leaves for an address because of packets is at most three times what has come from
// it, until it has answered a challenge. A HELLO that opens a session pays for that.
func TestCreditOfAnAddress(t *testing.T) {
	t.Parallel()
	table, _, _ := end(3)
	require.False(t, table.Take(1, 1))
	lower := Hello{Conv: 8, Tie: 49, Size: 24}
	table.Judge(1, lower, 0)
	table.Judge(1, lower, 0)
	require.False(t, table.Take(2, 1))
	require.False(t, table.Take(1, 145))
	require.True(t, table.Take(1, 100))
	require.True(t, table.Take(1, 44))
	require.False(t, table.Take(1, 1))
	require.Equal(t, Accept, table.Judge(2, Hello{Conv: 8, Tie: 51, Opens: true, Size: 1000}, 0).Do)
	require.False(t, table.Take(2, 1))
	require.False(t, table.Take(9, 0), "of no open")
	lower.Shows = true
	table.Judge(1, lower, 0)
	require.True(t, table.Take(1, 1<<30))
}

// A challenge is answered, and the sender asked, at most once in 50 ms each.
func TestChallengesAreAnswered(t *testing.T) {
	t.Parallel()
	table, _, _ := end(2)
	var told, asked []time.Duration
	for now := time.Duration(0); now < 200*ms; now += 10 * ms {
		v := table.Judge(1, Hello{Conv: 8, Tie: 49, Asks: true, Shows: now >= 100*ms}, now)
		if v.Tell {
			told = append(told, now)
		}
		if v.Ask {
			asked = append(asked, now)
		}
	}
	require.Equal(t, []time.Duration{0, 50 * ms, 100 * ms, 150 * ms}, told)
	require.Equal(t, []time.Duration{0, 50 * ms}, asked)
}

// An address that another open dials counts for none that has it as a further one,
// whichever was first, and one that is a further address of two counts for neither. The
// sessions that an open has there have to go.
func TestAddressesOfOthers(t *testing.T) {
	t.Parallel()
	hello := Hello{Conv: 8, Token: 1, Tie: 51, Opens: true, Shows: true}
	for name, tc := range map[string]struct {
		first, second []int
	}{
		"dialled later":    {first: []int{0, 5, 6}, second: []int{5}},
		"dialled before":   {first: []int{5}, second: []int{0, 5, 6}},
		"a further of two": {first: []int{0, 5}, second: []int{6, 5}},
	} {
		table := new(Table[int, string])
		first, drop := table.Begin(tc.first, 1000, func() {})
		require.Empty(t, drop)
		first.Dial("first", 7, 50)
		if v := table.Judge(5, hello, 0); v.Do == Accept {
			_, ok := first.Add("half", 5, hello)
			require.True(t, ok)
		}
		second, drop := table.Begin(tc.second, 1000, func() {})
		second.Dial("second", 9, 50)
		v := table.Judge(5, hello, 0)
		_, ok := first.Add("late", 5, hello)
		switch name {
		case "dialled later":
			require.Empty(t, drop)
			require.Same(t, second, v.Open)
			require.Equal(t, Move, v.Do)
			require.Equal(t, "half", v.Session)
			tie, inherits := second.Inherits()
			require.True(t, inherits && tie == 50)
			require.False(t, first.Has(1) || ok)
			require.True(t, first.Has(0) && first.Has(2))
		case "dialled before":
			require.Empty(t, drop)
			require.Same(t, first, v.Open)
			require.True(t, ok && !second.Has(1) && second.Has(2))
		default:
			require.Equal(t, []string{"half"}, drop)
			require.Nil(t, v.Open)
			require.False(t, ok || first.Has(1) || second.Has(1))
		}
	}
	// A session that is dialled there goes too, and the open does not have it.
	table := new(Table[int, string])
	o, _ := table.Begin([]int{0, 5}, 1000, func() {})
	o.Dial("d", 7, 50)
	require.True(t, table.Judge(5, Hello{Conv: 8, Tie: 49, Opens: true, Shows: true}, 0).Aim)
	require.Equal(t, []string{"d"}, table.Claim(5))
	won, err := o.Dialled("d", true)
	require.NoError(t, err)
	require.Empty(t, won)
	require.Empty(t, table.Claim(0), "it is the one that is dialled")
	require.True(t, o.Has(0))
}

// A number that is not drawn finds nothing, nor does one whose session was given up. It
// is 0, as are those of the packets here, and of a session of the peer's.
func TestNothingIsFoundBeforeItIsDrawn(t *testing.T) {
	t.Parallel()
	table, decided := new(Table[int, *int]), 0
	o, _ := table.Begin([]int{0, 1}, 1000, func() { decided++ })
	finds := func(when string) (found bool) {
		require.Equal(t, Verdict[int, *int]{Open: o}, table.Judge(0, Hello{}, 0), when)
		require.Equal(t, Verdict[int, *int]{Open: o}, table.Judge(1, Hello{Opens: true}, 0), when)
		_, _, _, ok := o.Dials()
		require.False(t, ok, when)
		_, found = table.Elsewhere(1, 0, 0, 0)
		return found
	}
	require.False(t, finds("before"))
	half := new(int)
	_, ok := o.Add(half, 1, Hello{})
	require.True(t, ok)
	require.True(t, finds("of the peer's"))
	table.Remove(half)
	o.Dial(new(int), 0, 0)
	_, ok = table.Elsewhere(1, 0, 0, 0)
	require.True(t, ok, "it was drawn, and happens to be 0")
	_, err := o.Dialled(nil, false)
	require.NoError(t, err)
	require.False(t, finds("afterwards"))
	o.End(func([]*int) {})
	_, found := table.Elsewhere(1, 0, 0, 0)
	require.False(t, found)
	require.Zero(t, decided)
}
