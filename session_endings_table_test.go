package kcp

import (
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// state is one that our end may be in, and what becomes of the session when
// something happens then.
type state struct {
	name     string
	set      func(*Config)
	enter    func(*stage)
	dials    bool // our end has dialled
	both     bool // all is tried whether it has dialled or not
	noAEAD   bool // it does not come about with one
	sessions int  // of our end
	halfOpen int
	want     endings
}

// endings is what becomes of our end and of the peer, and after a restart of what
// has taken the peer's place, by event. Of each it is what Read and Close return;
// after io.EOF also why the session had ended before Close, or nil. "lives" says
// that the session goes on as before, "none" that Accept returns nothing. Of a
// session in TIME-WAIT it is whether the endpoint answers. A peer without
// signals is not shown. What begins with a dash is not tried, and says why.
//
// An event "with AEAD" is the event with an authenticating cipher, if that makes
// a difference.
type endings map[string]string

// but returns e with changes.
func (e endings) but(changes endings) endings {
	all := maps.Clone(e)
	maps.Copy(all, changes)
	return all
}

// Reasons to try nothing.
const (
	notDialled = "- Dial has not returned, so no application has a session to use"
	notOffered = "- Accept has not returned the session, so no application has it"
	noSignals  = "- a peer without signals has no word for it"
	noDial     = "- nobody dials"
	itHas      = "- it has closed"
	isOver     = "- the application has no session any more"
)

// whenOpen is for a session with nothing under way.
var whenOpen = endings{
	"peer vanishes":        "lost, nil | lost, nil",
	"peer aborts":          "reset, nil | closed, closed",
	"peer closes":          "EOF, peer closed, nil | closed, nil",
	"peer restarts":        "reset, nil | closed, nil | none",
	"peer moves":           "lost, nil | reset, nil",
	"peer moves with AEAD": "lives | lives",
	"peer repeats":         "lives | lives",
	"application closes":   "closed, nil | EOF, peer closed, nil",
	"application aborts":   "closed, closed | reset, nil",
	"Dial is cancelled":    "lives | lives",
	"listener closes":      "lives | lives",
	"endpoint closes":      "closed, nil | reset, nil",
}

// whenHalfClosed is for a peer that is told that we write nothing more.
var whenHalfClosed = whenOpen.but(endings{
	"peer vanishes":      "lost, nil | EOF, lost, nil",
	"peer aborts":        "reset, nil | EOF, closed, closed",
	"peer closes":        "EOF, peer closed, nil | EOF, nil, nil",
	"peer restarts":      "reset, nil | EOF, closed, nil | none",
	"peer moves":         "lost, nil | EOF, reset, nil",
	"application aborts": "closed, closed | EOF, reset, nil",
	"endpoint closes":    "closed, nil | EOF, reset, nil",
})

// whenDialling is before anything has come from the peer. A listener that closes
// drops the session that it has opened for the HELLO. Dial begins anew, and nobody
// listens.
var whenDialling = endings{
	"peer vanishes":      "no answer | none",
	"peer aborts":        notOffered,
	"peer closes":        notOffered,
	"peer restarts":      "lives | closed | lives",
	"peer moves":         "no answer | none",
	"peer repeats":       "lives | lives",
	"application closes": notDialled,
	"application aborts": notDialled,
	"Dial is cancelled":  "cancelled | none",
	"listener closes":    "refused | closed",
	"endpoint closes":    "closed | none",
}

// whenHalfOpen is for a session whose peer has the WELCOME, and says so in vain.
var whenHalfOpen = endings{
	"peer vanishes":        "none | lost, nil",
	"peer aborts":          "none | closed, closed",
	"peer closes":          "EOF, peer closed, nil | closed, nil",
	"peer restarts":        "none | closed, nil | none",
	"peer moves":           "none | reset, nil",
	"peer moves with AEAD": "lives | lives",
	"peer repeats":         "lives | lives",
	"application closes":   notOffered,
	"application aborts":   notOffered,
	"Dial is cancelled":    "lives | lives",
	"listener closes":      "closed | reset, nil",
	"endpoint closes":      "closed | reset, nil",
}

// whenUnheard is for a peer that has not got our answer, and whose Dial has not
// waited for it.
var whenUnheard = whenHalfOpen.but(endings{
	"peer closes": "none | closed, nil",
	"peer moves":  "lives | lives",
})

// whenLegacy is for a peer without signals.
var whenLegacy = endings{
	"peer vanishes":      "lost, nil",
	"peer aborts":        noSignals,
	"peer closes":        noSignals,
	"peer restarts":      "reset, nil | none",
	"peer moves":         "lost, nil",
	"peer repeats":       "lives",
	"application closes": "closed, nil",
	"application aborts": "closed, closed",
	"Dial is cancelled":  noDial,
	"listener closes":    "lives",
	"endpoint closes":    "closed, nil",
}

// whenGone is for our end of a session with such a peer that it has closed.
var whenGone = whenLegacy.but(endings{
	"peer vanishes":      "silent",
	"peer restarts":      "silent | none",
	"peer moves":         "silent",
	"peer repeats":       "silent",
	"application closes": itHas,
	"application aborts": isOver,
	"listener closes":    "silent",
	"endpoint closes":    "silent",
})

// inTimeWait is for a peer that has not heard of the end, and asks.
var inTimeWait = endings{
	"peer vanishes":        "silent | closed, not delivered",
	"peer aborts":          "silent | closed, closed",
	"peer closes":          itHas,
	"peer restarts":        "silent | closed, closed | none",
	"peer moves":           "answers | closed, reset",
	"peer moves with AEAD": "answers | closed, nil",
	"peer repeats":         "answers | closed, nil",
	"application closes":   isOver,
	"application aborts":   isOver,
	"Dial is cancelled":    "answers | closed, nil",
	"listener closes":      "answers | closed, nil",
	"endpoint closes":      "silent | closed, not delivered",
}

// walkStates are those of the table in WIRE.md §5.2.
var walkStates = []state{
	{
		name: "dialling", dials: true, sessions: 1,
		enter: func(s *stage) {
			s.deaf()
			s.dialler.live()
			time.Sleep(100 * time.Millisecond)
		},
		want: whenDialling,
	},
	{
		name: "dialling, not waiting", dials: true, sessions: 1,
		set: func(c *Config) { c.DialTimeout = -1 },
		enter: func(s *stage) {
			s.deaf()
			s.begin()
		},
		want: whenDialling.but(endings{
			"peer vanishes":      "lost, nil | none",
			"peer moves":         "lost, nil | none",
			"application closes": "closed, nil | none",
			"application aborts": "closed, closed | none",
			"Dial is cancelled":  "lives | lives",
			"listener closes":    "reset, nil | closed",
			"endpoint closes":    "closed, nil | none",
		}),
	},
	{
		name:  "unknown, COOKIE sent",
		set:   func(c *Config) { c.AddressValidation, c.DialTimeout = ValidateAlways, -1 },
		enter: func(s *stage) { s.first(1, true) },
		want:  whenUnheard.but(endings{"listener closes": "closed | refused, nil", "endpoint closes": "closed | lost, nil"}),
	},
	{
		name: "half open, by HELLO", sessions: 1, halfOpen: 1,
		enter: func(s *stage) { s.first(1, true) },
		want:  whenHalfOpen,
	},
	{
		name: "half open, by HELLO, WELCOME lost", sessions: 1, halfOpen: 1,
		set:   func(c *Config) { c.DialTimeout = -1 },
		enter: func(s *stage) { s.first(1, false) },
		want:  whenUnheard,
	},
	{
		name: "half open, by COOKIE", sessions: 1, noAEAD: true,
		set: func(c *Config) { c.AddressValidation = ValidateAlways },
		enter: func(s *stage) {
			s.first(2, true)
			s.acceptor.c = accepted(s.t, s.acceptor.l)
		},
		want: whenOpen,
	},
	{
		name: "opened by PUSH", sessions: 1, halfOpen: 1, noAEAD: true,
		enter: func(s *stage) { s.legacy() },
		want:  whenLegacy,
	},
	{
		name: "open", both: true, sessions: 1,
		enter: func(s *stage) { s.opened() },
		want:  whenOpen,
	},
	{
		name: "data under way", both: true, sessions: 1,
		enter: func(s *stage) {
			s.opened()
			s.us.put(content(1, 50000))
			s.them.put(content(2, 50000))
		},
		want: whenOpen.but(endings{ // who closes reads no more
			"peer closes":        "EOF, peer closed, not delivered | closed, nil",
			"application closes": "closed, nil | EOF, peer closed, not delivered",
		}),
	},
	{
		name: "half closed by us", both: true, sessions: 1,
		enter: func(s *stage) {
			s.opened()
			require.NoError(s.t, s.us.c.CloseWrite())
			time.Sleep(time.Second)
		},
		want: whenHalfClosed,
	},
	{
		name: "half closed by the peer", both: true, sessions: 1,
		enter: func(s *stage) {
			s.opened()
			require.NoError(s.t, s.them.c.CloseWrite())
			time.Sleep(time.Second)
		},
		want: whenOpen.but(endings{
			"peer vanishes":      "EOF, lost, nil | lost, nil",
			"peer aborts":        "EOF, reset, nil | closed, closed",
			"peer restarts":      "EOF, reset, nil | closed, nil | none",
			"peer moves":         "EOF, lost, nil | reset, nil",
			"application closes": "EOF, nil, nil | EOF, peer closed, nil",
			"application aborts": "EOF, closed, closed | reset, nil",
			"endpoint closes":    "EOF, closed, nil | reset, nil",
		}),
	},
	{
		name: "over", both: true, sessions: 1,
		enter: func(s *stage) {
			s.opened()
			require.NoError(s.t, s.them.c.CloseWrite())
			require.NoError(s.t, s.us.c.CloseWrite())
			time.Sleep(time.Second)
		},
		want: endings{ // nobody but the application changes that
			"peer vanishes":      "lives | lives",
			"peer aborts":        "lives | EOF, closed, closed",
			"peer closes":        "lives | EOF, nil, nil",
			"peer restarts":      "lives | EOF, closed, nil | none",
			"peer moves":         "lives | lives",
			"peer repeats":       "lives | lives",
			"application closes": "EOF, nil, nil | lives",
			"application aborts": "EOF, closed, closed | lives",
			"Dial is cancelled":  "lives | lives",
			"listener closes":    "lives | lives",
			"endpoint closes":    "EOF, closed, nil | lives",
		},
	},
	{
		name: "lingering", both: true, sessions: 1,
		enter: func(s *stage) {
			s.opened()
			s.deaf()
			s.us.put(content(1, 5000))
			s.us.close()
			time.Sleep(roundTrip)
		},
		want: endings{ // the peer has all of it, and our end does not know
			"peer vanishes":      "closed, not delivered | EOF, peer closed, nil",
			"peer aborts":        "closed, nil | EOF, peer closed, closed",
			"peer closes":        "closed, nil | EOF, peer closed, nil",
			"peer restarts":      "closed, reset | EOF, peer closed, nil | none",
			"peer moves":         "closed, not delivered | EOF, peer closed, nil", // it sends nothing that would tell where it is
			"peer repeats":       "closed, nil | EOF, peer closed, nil",
			"application closes": itHas,
			"application aborts": "closed, closed | EOF, peer closed, nil",
			"Dial is cancelled":  "closed, nil | EOF, peer closed, nil",
			"listener closes":    "closed, nil | EOF, peer closed, nil",
			"endpoint closes":    "closed, closed | EOF, peer closed, nil",
		},
	},
	{
		name: "draining", sessions: 1, noAEAD: true,
		enter: func(s *stage) {
			s.legacy()
			s.us.put([]byte("bye"))
			s.us.leave()
		},
		want: whenGone.but(endings{
			"peer repeats":       "answers",
			"application aborts": "silent",
		}),
	},
	{
		name: "TIME-WAIT, in order", both: true,
		enter: func(s *stage) {
			s.opened()
			s.dumb()
			s.them.put([]byte("all of it"))
			s.them.close()
			_, err := io.Copy(&s.us.got, s.us.c)
			require.NoError(s.t, err)
			s.us.leave()
		},
		want: inTimeWait,
	},
	{
		name: "TIME-WAIT, aborted", both: true,
		enter: func(s *stage) {
			s.opened()
			s.dumb()
			require.NoError(s.t, s.us.c.Abort())
			s.us.gone = true
			time.Sleep(roundTrip)
		},
		want: inTimeWait.but(endings{
			"peer vanishes":        "silent | lost, nil",
			"peer closes":          "answers | closed, nil",
			"peer restarts":        "silent | closed, nil | none",
			"peer moves":           "answers | reset, nil",
			"peer moves with AEAD": "answers | reset, nil",
			"peer repeats":         "answers | reset, nil",
			"Dial is cancelled":    "answers | reset, nil",
			"listener closes":      "answers | reset, nil",
			"endpoint closes":      "silent | lost, nil",
		}),
	},
	{
		name: "TIME-WAIT, legacy", noAEAD: true,
		enter: func(s *stage) {
			s.legacy()
			s.us.leave()
			time.Sleep(5 * time.Second)
		},
		want: whenGone,
	},
}

var walkEvents = []struct {
	name string
	do   func(*stage)
}{
	{"peer vanishes", func(s *stage) { s.net.Cut("10.0.0.1", "10.0.0.2") }},
	{"peer aborts", func(s *stage) { require.NoError(s.t, s.them.c.Abort()) }},
	{"peer closes", func(s *stage) { s.them.close() }},
	{"peer restarts", (*stage).restart},
	{"peer moves", func(s *stage) { require.NoError(s.t, s.them.pc.Rebind(movedAddr)) }},
	{"peer repeats", (*stage).repeat},
	{"application closes", func(s *stage) { s.us.close() }},
	{"application aborts", func(s *stage) { require.NoError(s.t, s.us.c.Abort()) }},
	{"Dial is cancelled", func(s *stage) { s.dialler.stop() }},
	{"listener closes", func(s *stage) { require.NoError(s.t, s.acceptor.l.Close()) }},
	{"endpoint closes", func(s *stage) { require.NoError(s.t, s.us.e.Close()) }},
}

// Whatever happens in whichever state: all calls return in their time and say what
// is so, nothing is left of the session if the peer is gone, and it goes on if the
// peer lives.
func TestStatesAndEvents(t *testing.T) {
	t.Parallel()
	long(t)
	for _, st := range walkStates {
		for _, ev := range walkEvents {
			for _, aead := range []bool{false, true} {
				for _, dials := range []bool{false, true} {
					if !st.both && dials != st.dials || aead && st.noAEAD {
						continue
					}
					want, ok := st.want[ev.name+" with AEAD"]
					if !aead || !ok {
						want = st.want[ev.name]
					}
					require.NotEmpty(t, want, "%s, %s: neither tried nor left out", st.name, ev.name)
					if strings.HasPrefix(want, "- ") {
						continue
					}
					t.Run(fmt.Sprintf("%s, %s, aead %v, dials %v", st.name, ev.name, aead, dials), func(t *testing.T) {
						inWorld(t, 4, clean, func(t *testing.T, w *world) { w.tryIn(&st, ev.do, aead, dials, want) })
					})
				}
			}
		}
	}
}

// tryIn has something happen in a state.
func (w *world) tryIn(st *state, event func(*stage), aead, dials bool, want string) {
	cfg := mortal()
	cfg.DialTimeout = 4 * time.Second
	if aead {
		cfg.Cipher = testAEAD(w.t)
	}
	if st.set != nil {
		st.set(cfg)
	}
	s := newStage(w, cfg, dials)
	st.enter(s)
	synctest.Wait()
	us := s.us.e.Stats()
	require.Equal(w.t, st.sessions, us.Sessions, "sessions in this state")
	require.Equal(w.t, st.halfOpen, us.HalfOpen, "half open in this state")
	limit := allAtAnEnd(cfg)
	if st.halfOpen > 0 {
		limit = max(limit, handshakeTime+time.Second)
	}
	require.Equal(w.t, want, s.try(event, limit))
	if s.us.gone {
		return
	}
	keepAlive := cfg.KeepAlive * 3 / 2
	for how, limit := range map[string]time.Duration{
		"closed": 0, "cancelled": 0, "no answer": cfg.DialTimeout, "EOF": 5 * roundTrip,
		"reset": keepAlive + roundTrip, "lost": keepAlive + cfg.PeerTimeout,
	} {
		if strings.HasPrefix(want, how) {
			require.LessOrEqual(w.t, s.heardAfter, limit, "time until our end has heard of it")
		}
	}
	if s.us.how == "lives" && s.them.pc.PublicAddrPort().String() == movedAddr && st.name != "over" {
		require.Equal(w.t, movedAddr, s.us.c.RemoteAddr().String())
	}
}

// Who breaks off a session that is half open at the other end ends it at once.
func TestAbortOfHalfOpenSession(t *testing.T) {
	inWorld(t, 4, clean, func(t *testing.T, w *world) {
		s := newStage(w, mortal(), false)
		s.first(1, true)
		s.lose(nil)
		require.Equal(t, 1, s.acceptor.e.Stats().HalfOpen)
		require.NoError(t, s.dialler.c.Abort())
		time.Sleep(roundTrip)
		require.Zero(t, s.acceptor.e.Stats().Sessions)
		require.Zero(t, s.acceptor.e.Stats().HalfOpen)
	})
}

// In TIME-WAIT the endpoint answers how the session has ended. After that it does
// not know the session any more.
func TestTimeWaitExpires(t *testing.T) {
	for _, aborts := range []bool{true, false} {
		inWorld(t, 4, clean, func(t *testing.T, w *world) {
			s := newStage(w, mortal(), false)
			s.opened()
			end, want := (*Conn).Close, sigClose
			if aborts {
				end, want = (*Conn).Abort, sigAbort
			}
			require.NoError(t, end(s.us.c))
			start := time.Now()
			answerAt := func(at time.Duration) signalCode {
				time.Sleep(at - time.Since(start))
				s.take()
				w.net.Inject(diallerAddr, acceptorAddr, packetOf(s.us.c.Conv(), bytesOf(signal{sigPing, 1, 2})))
				w.settle()
				seen := s.take()
				require.Len(t, seen, 1)
				h := decodeHeader(seen[0].data)
				answer, _ := h.signal()
				return answer.code
			}
			require.Equal(t, want, answerAt(timeWaitTime-time.Second))
			require.Equal(t, sigReset, answerAt(timeWaitTime+time.Second))
			require.Zero(t, s.us.e.Stats().Sessions)
		})
	}
}
