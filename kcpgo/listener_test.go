package kcp

import (
	"math/rand/v2"
	"net"
	"slices"
	"testing"

	engine "github.com/arqnet/kcp"
)

// sessionsOf returns the sessions of an address, oldest first.
func (l *Listener) sessionsOf(a net.Addr) (all []*UDPSession) {
	for s := l.latest[keyOf(a)]; s != nil; s = s.older {
		if s.older != nil && s.older.newer != s {
			panic("a session is not the one after the one before it")
		}
		all = append(all, s)
	}
	slices.Reverse(all)
	return all
}

// TestSessionsOfAnAddress opens, closes and validates sessions in any order. A
// listener knows which are open, and a validated one leaves only newer ones.
func TestSessionsOfAnAddress(t *testing.T) {
	const seed = 1
	random := rand.New(rand.NewPCG(seed, 0))
	l := &Listener{latest: make(map[addressKey]*UDPSession), unshown: make(map[*engine.Conn]*UDPSession)}
	addrs := []net.Addr{&net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}, &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 2}}
	want := make([][]*UDPSession, len(addrs))
	var gone []*UDPSession
	for step := range 20_000 {
		at := random.IntN(len(addrs))
		open := want[at]
		switch op := random.IntN(5); {
		case op < 2 && len(open) < 20:
			s := &UDPSession{conn: new(engine.Conn), remote: addrs[at], l: l, validated: make(chan struct{})}
			s.closed.Store(true) // the engine has no part in this
			l.add(s)
			want[at] = append(open, s)
		case op == 2 && len(open) > 0:
			i := random.IntN(len(open))
			l.forget(open[i])
			gone, want[at] = append(gone, open[i]), slices.Delete(open, i, i+1)
		case op == 3 && len(open) > 0 && random.IntN(4) == 0:
			i := random.IntN(len(open))
			l.validated(open[i].conn)
			select {
			case <-open[i].validated:
				gone, want[at] = append(gone, open[:i]...), slices.Clone(open[i:])
			default:
				t.Fatal("seed", seed, "step", step, "not validated")
			}
		case op == 4 && len(gone) > 0: // a call that comes late
			s := gone[random.IntN(len(gone))]
			l.forget(s)
			l.settle(s)
		}
		known := 0
		for i, a := range addrs {
			if got := l.sessionsOf(a); !slices.Equal(got, want[i]) {
				t.Fatal("seed", seed, "step", step, "address", i, len(got), len(want[i]))
			}
			for _, s := range want[i] {
				if _, waits := l.unshown[s.conn]; waits {
					known++
				}
			}
		}
		if len(l.unshown) != known {
			t.Fatal("seed", seed, "step", step, "sessions that ended are kept")
		}
	}
}
