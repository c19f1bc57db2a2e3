package testenv

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// What String returns, Parse takes, and nothing else.
func TestParse(t *testing.T) {
	for _, text := range []string{"", "c3:drop", "c3:drop s1:hold s12:dup c4:damage", "c5:move c1:hold", "s2:kill"} {
		s, err := ParseSchedule(text)
		require.NoError(t, err)
		require.Equal(t, text, s.String())
	}
	for _, text := range []string{"x3:drop", "c0:drop", "c-1:drop", "c:drop", ":drop", "c3", "c3:", "c3:lose", "3:drop"} {
		_, err := ParseSchedule(text)
		require.Error(t, err, text)
	}
}

// A packet meets its own fault and event, and no other.
func TestAt(t *testing.T) {
	s, err := ParseSchedule("c3:drop c3:move s3:hold")
	require.NoError(t, err)
	for p, want := range map[Packet][2]Act{
		{Client, 3}: {Drop, Move}, {Server, 3}: {Hold, ""}, {Client, 2}: {}, {Server, 33}: {},
	} {
		fault, event := s.At(p)
		require.Equal(t, want, [2]Act{fault, event}, "%v", p)
	}
	require.Equal(t, 2, s.Faults())
	require.Equal(t, Move, s.Event())
	require.Empty(t, Schedule(nil).Event())
}

// grow returns every schedule that Extend comes to, in a conversation in which each
// lost packet is followed by one more.
func grow(s Schedule, depth int, faults []Act, seen map[string]int) {
	seen[s.String()]++
	if depth == 0 {
		return
	}
	for _, next := range s.Extend(conversation(s), faults) {
		grow(next, depth-1, faults, seen)
	}
}

func conversation(s Schedule) (sent []Packet) {
	for n := 1; n <= 4; n++ {
		sent = append(sent, Packet{Client, n}, Packet{Server, n})
	}
	for range s {
		sent = append(sent, Packet{Client, len(sent)/2 + 1}, Packet{Server, len(sent)/2 + 1})
	}
	return sent
}

// Every schedule is come to, once, and also faults of what faults have caused.
func TestExtendIsComplete(t *testing.T) {
	faults := []Act{Drop, Hold}
	seen := map[string]int{}
	grow(nil, 2, faults, seen)
	want := map[string]bool{"": true}
	first := conversation(nil)
	for i, p := range first {
		for _, f := range faults {
			s := Schedule(nil).With(p, f)
			want[s.String()] = true
			for _, q := range conversation(s)[i+1:] {
				for _, g := range faults {
					want[s.With(q, g).String()] = true
				}
			}
		}
	}
	require.Len(t, seen, len(want))
	for text, n := range seen {
		require.Equal(t, 1, n, text)
		require.True(t, want[text], text)
	}
	require.Contains(t, seen, "c1:drop s5:hold", "s5 is there because c1 is lost")
	require.Nil(t, Schedule{{Packet{Client, 9}, Drop}}.Extend(first, faults), "there is no c9")
}

// An event comes at each packet of its side. It does not keep faults from coming before
// it.
func TestEvents(t *testing.T) {
	sent := conversation(nil)
	moves := Schedule(nil).Events(sent, Client, Move)
	require.Len(t, moves, 4)
	require.Equal(t, "c4:move", moves[3].String())
	require.Len(t, moves[3].Extend(sent, []Act{Drop}), len(sent))
}

// Each seed chooses about one in n, and other ones.
func TestShare(t *testing.T) {
	var both, first int
	const all, n = 20_000, 10
	for i := range all {
		text := fmt.Sprint("c", i, ":drop")
		a, b := InShare(text, 1, n), InShare(text, 2, n)
		if a {
			first++
		}
		if a && b {
			both++
		}
		require.True(t, InShare(text, 1, 1))
	}
	require.InDelta(t, all/n, first, all/n/4)
	require.InDelta(t, all/n/n, both, all/n/n/2)
}
