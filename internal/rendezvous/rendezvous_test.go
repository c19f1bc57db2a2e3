package rendezvous

import (
	"errors"
	"os"
	"slices"
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
	o = t.Begin(addrs, func() { *decided++ })
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
			table.Begin([]int{0}, func() {})
			return table, 0
		},
		"dials, nothing half open": func() (*Table[int, string], int) {
			table, _, _ := end(1)
			return table, 0
		},
		"dials, half open": func() (*Table[int, string], int) {
			table, o, _ := end(1)
			_, ok := o.Add("half", Hello{Conv: 9, Token: 2})
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

// Two ends draw, and are told of each other's HELLO in all orders: at most one dials and
// the other accepts. With the same number both draw again.
func TestBothAgree(t *testing.T) {
	t.Parallel()
	for a := range uint64(4) {
		for b := range uint64(4) {
			var does [2]Action
			ties := [2]uint64{a, b}
			for i := range does {
				table := new(Table[int, string])
				table.Begin([]int{0}, nil).Dial("d", uint32(i), ties[i])
				does[i] = table.Judge(0, Hello{Conv: uint32(1 - i), Tie: ties[1-i], Opens: true}, 0).Do
			}
			switch {
			case a == b:
				require.Equal(t, [2]Action{Again, Again}, does)
			case a > b:
				require.Equal(t, [2]Action{Greet, Accept}, does)
			default:
				require.Equal(t, [2]Action{Accept, Greet}, does)
			}
		}
	}
}

// One session comes of an open. Four are half open at most. What has failed counts if its
// peer has shown its address.
func TestOneSession(t *testing.T) {
	t.Parallel()
	table, o, decided := end(1)
	require.Nil(t, table.Begin([]int{5, 0}, nil), "another open with the address")
	require.EqualValues(t, 1, table.N.Load())
	hello := Hello{Conv: 8, Token: 1, Tie: 51, Opens: true}
	for i, s := range []string{"a", "b", "c", "e", "f"} {
		h := hello
		h.Token = uint32(i)
		drop, ok := o.Add(s, h)
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
	_, ok := o.Add("g", hello)
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
	_, _ = o.Add("a", hello)
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
		probe, aim, wait := o.Probe(now)
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

// HELLO leaves by the first path that something has come by, or a better one, and by the
// next after a second. What comes for the dialled session by another path moves it.
func TestAim(t *testing.T) {
	t.Parallel()
	table, o, _ := end(4)
	lower := Hello{Conv: 8, Token: 1, Tie: 49, Opens: true}
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
	_, aim, _ := o.Probe(200*ms + AimTime - 1)
	require.Equal(t, -1, aim)
	var order []int
	for now := 200*ms + AimTime; len(order) < 4; now += AimTime {
		_, aim, _ := o.Probe(now)
		order = append(order, aim)
	}
	require.Equal(t, []int{3, 0, 2, 3}, order, "those that something has come by")
	s, ok := table.Elsewhere(1, 7)
	require.True(t, ok)
	require.Equal(t, "d", s)
	_, ok = table.Elsewhere(1, 8)
	require.False(t, ok)
	_, ok = table.Elsewhere(9, 7)
	require.False(t, ok)
	_, ok = o.Add("half open", Hello{Conv: 8, Token: 1})
	require.True(t, ok)
	s, ok = table.Elsewhere(1, 8)
	require.True(t, ok)
	require.Equal(t, "half open", s)
	table.Remove("half open")
	_, ok = table.Elsewhere(1, 8)
	require.False(t, ok)
}

// Until an end has drawn again, what it had drawn before decides nothing.
func TestDrawsAgain(t *testing.T) {
	t.Parallel()
	table, o, _ := end(1)
	hello := Hello{Conv: 8, Token: 1, Tie: 51, Opens: true}
	require.Equal(t, Accept, table.Judge(0, hello, 0).Do)
	_, err := o.Dialled("d", false)
	require.NoError(t, err)
	require.Equal(t, Ignore, table.Judge(0, hello, 0).Do)
	o.Dial("e", 9, 52)
	require.Equal(t, Greet, table.Judge(0, hello, 0).Do)
}

// A probe is answered by another, at most one in 50 ms.
func TestProbesAreAnswered(t *testing.T) {
	t.Parallel()
	table, _, _ := end(2)
	var answered []time.Duration
	for now := time.Duration(0); now < 200*ms; now += 10 * ms {
		if table.Judge(1, Hello{Conv: 8, Tie: 51}, now).Do == Answer {
			answered = append(answered, now)
		}
	}
	require.True(t, slices.IsSorted(answered))
	require.Equal(t, []time.Duration{0, 50 * ms, 100 * ms, 150 * ms}, answered)
}
