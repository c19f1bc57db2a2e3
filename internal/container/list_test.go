package container

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

type element struct{ links Links[element] }

func (e *element) place() *Links[element] { return &e.links }

// A list holds what a slice does.
func TestList(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		all := make([]element, 10)
		var l List[element]
		var want []*element
		for range 300 {
			e := &all[random.IntN(len(all))]
			at := slices.Index(want, e)
			require.Equal(t, at >= 0, e.links.In())
			switch random.IntN(3) {
			case 0:
				l.Remove((*element).place, e)
				if at >= 0 {
					want = slices.Delete(want, at, at+1)
				}
			case 1:
				l.Add((*element).place, e, true)
				if at < 0 {
					want = slices.Insert(want, 0, e)
				}
			default:
				l.Add((*element).place, e, false)
				if at < 0 {
					want = append(want, e)
				}
			}
			var got []*element
			for e := l.First(); e != nil; e = e.links.after {
				got = append(got, e)
			}
			require.Equal(t, len(want), len(got))
			var back []*element
			for e := l.last; e != nil; e = e.links.before {
				back = append(back, e)
			}
			slices.Reverse(back)
			for i := range want {
				require.Same(t, want[i], got[i], "seed %d", seed)
				require.Same(t, want[i], back[i], "seed %d", seed)
			}
		}
	}
}
