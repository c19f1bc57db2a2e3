package closing

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/container"
	"github.com/stretchr/testify/require"
)

// end is an end of a session, with what else matters. Of the peer 100 segments have
// arrived, and of this end 50 were acknowledged.
type end struct {
	State
	with Session
	now  time.Duration
	due  Due
}

func newEnd() *end {
	return &end{State: State{Linger: 5 * time.Second}, with: Session{Next: 100, Una: 50, Unsent: true, Signals: true}, now: time.Minute}
}

// states are those of WIRE.md §5.2, and those that it shows as one.
var states = []struct {
	name  string
	enter func(e *end)
}{
	{"open", func(*end) {}},
	{"FIN-WAIT", func(e *end) { e.Fin() }},
	{"half closed", func(e *end) { e.Fin(); e.acknowledged(); e.Answer() }},
	{"peer half closed", func(e *end) { e.final(100, false) }},
	{"peer half closed, data missing", func(e *end) { e.final(101, false) }},
	{"over", func(e *end) { e.Fin(); e.acknowledged(); e.Answer(); e.final(100, false) }},
	{"flushing", func(e *end) { e.begin(false); e.Flush(e.now, e.with.Una) }},
	{"lingering", func(e *end) { e.begin(false); e.Close(e.now, &e.with) }},
	{"lingering, acknowledged", func(e *end) { e.begin(false); e.Close(e.now, &e.with); e.acknowledged() }},
	{"lingering, unattended", func(e *end) { e.begin(true); e.Close(e.now, &e.with); e.acknowledged() }},
	{"lingering for FIN", func(e *end) { e.Fin(); e.begin(false); e.Close(e.now, &e.with) }},
	{"lingering after FIN", func(e *end) { e.Fin(); e.Answer(); e.begin(false); e.Close(e.now, &e.with); e.acknowledged() }},
	{"lingering, over", func(e *end) {
		e.Fin()
		e.acknowledged()
		e.Answer()
		e.final(100, false)
		e.begin(false)
		e.Close(e.now, &e.with)
	}},
	{"draining", func(e *end) {
		e.with.Signals = false
		e.begin(false)
		e.acknowledged()
		e.Close(e.now, &e.with)
		e.Drain(e.now, 0)
	}},
	{"ended", func(e *end) { e.End() }},
	{"retired", func(e *end) { e.End(); e.Retire() }},
}

// events are what happens to an end.
var events = []struct {
	name   string
	happen func(e *end)
}{
	{"FIN", func(e *end) { e.final(100, false) }},
	{"FIN early", func(e *end) { e.final(101, false) }},
	{"CLOSE", func(e *end) { e.final(100, true) }},
	{"CLOSE early", func(e *end) { e.final(101, true) }},
	{"data", func(e *end) { e.with.Next++ }},
	{"some acked", func(e *end) { e.now += time.Second; e.with.Una++ }},
	{"all acked", func(e *end) { e.acknowledged() }},
	{"answered", func(e *end) { e.Answer() }},
	{"FIN answered", func(e *end) { e.AnswerFin() }},
	{"silence", func(e *end) { e.now = max(e.now, e.Next()) }},
	{"given up", func(e *end) {
		if e.now = max(e.now, e.Next()); e.Phase == Lingering && e.Late(e.now) {
			e.GoOn(e.now, e.with.Unsent)
		}
	}},
	{"CloseWrite", func(e *end) {
		if e.Caller == Uses && e.Write == WriteOpen {
			e.Fin()
		}
	}},
	{"Close", func(e *end) {
		if e.Caller == Uses && e.Phase < Ended {
			e.begin(false)
			e.Close(e.now, &e.with)
		}
	}},
	{"Abort", func(e *end) { e.Stop(); e.End() }},
}

func (e *end) acknowledged() { e.with.Unsent = false; e.with.Una = 60 }

func (e *end) begin(unattended bool) { e.Begin(e.now, time.Minute, unattended) }

func (e *end) final(at container.Serial, closed bool) { e.TakeFinal(at, closed, &e.with) }

// step does what a step of a session does.
func (e *end) step() {
	e.due = Nothing
	if e.Phase < Draining {
		e.Progress(e.now, e.with.Una, false)
		e.due = e.Step(e.now, &e.with)
	}
}

func (e *end) String() string {
	phase := [...]string{"open", "flush", "linger", "drain", "end", "retire"}[e.Phase]
	write := [...]string{"", " fin", " fin!", " close", " fin+close", " fin!+close", " close!"}[e.Write]
	read := [...]string{"", " | fin", " | close"}[e.Read]
	due := [...]string{"", " -> peer closed", " -> delivered", " -> overdue"}[e.due]
	if e.Caller == Leaves {
		phase += ", unattended"
	}
	return phase + write + read + due
}

// What each event makes of each state: the phase, what this end has sent of its end, and
// after a bar the peer. What is not here changes nothing.
const transitions = `
open                           FIN          open | fin
open                           FIN early    open | fin
open                           CLOSE        open | close -> peer closed
open                           CLOSE early  open | close
open                           CloseWrite   open fin
open                           Close        linger close
open                           Abort        end
FIN-WAIT                       FIN          open fin | fin
FIN-WAIT                       FIN early    open fin | fin
FIN-WAIT                       CLOSE        open fin | close -> peer closed
FIN-WAIT                       CLOSE early  open fin | close
FIN-WAIT                       answered     open fin!
FIN-WAIT                       Close        linger fin+close
FIN-WAIT                       Abort        end fin
half closed                    FIN          open fin! | fin
half closed                    FIN early    open fin! | fin
half closed                    CLOSE        open fin! | close -> peer closed
half closed                    CLOSE early  open fin! | close
half closed                    Close        linger fin!+close
half closed                    Abort        end fin!
peer half closed               CLOSE        open | close -> peer closed
peer half closed               CloseWrite   open fin | fin
peer half closed               Close        linger close | fin
peer half closed               Abort        end | fin
peer half closed, data missing CLOSE early  open | close
peer half closed, data missing CloseWrite   open fin | fin
peer half closed, data missing Close        linger close | fin
peer half closed, data missing Abort        end | fin
over                           CLOSE        open fin! | close -> peer closed
over                           Close        linger fin! | fin -> delivered
over                           Abort        end fin! | fin
flushing                       FIN          flush | fin
flushing                       FIN early    flush | fin
flushing                       CLOSE        flush | close -> peer closed
flushing                       CLOSE early  flush | close
flushing                       Abort        end
lingering                      FIN          linger close | fin
lingering                      FIN early    linger close | fin
lingering                      CLOSE        linger close | close -> peer closed
lingering                      CLOSE early  linger close | close
lingering                      answered     linger close!
lingering                      silence      linger close -> overdue
lingering                      given up     linger close -> overdue
lingering                      Abort        end close
lingering, acknowledged        FIN          linger close | fin
lingering, acknowledged        FIN early    linger close | fin
lingering, acknowledged        CLOSE        linger close | close -> peer closed
lingering, acknowledged        CLOSE early  linger close | close
lingering, acknowledged        answered     linger close! -> delivered
lingering, acknowledged        silence      linger close -> overdue
lingering, acknowledged        given up     linger, unattended close
lingering, acknowledged        Abort        end close
lingering, unattended          FIN          linger, unattended close | fin
lingering, unattended          FIN early    linger, unattended close | fin
lingering, unattended          CLOSE        linger, unattended close | close -> peer closed
lingering, unattended          CLOSE early  linger, unattended close | close
lingering, unattended          answered     linger, unattended close! -> delivered
lingering, unattended          silence      linger, unattended close -> overdue
lingering, unattended          given up     linger, unattended close -> overdue
lingering, unattended          Abort        end, unattended close
lingering for FIN              FIN          linger fin+close | fin
lingering for FIN              FIN early    linger fin+close | fin
lingering for FIN              CLOSE        linger fin+close | close -> peer closed
lingering for FIN              CLOSE early  linger fin+close | close
lingering for FIN              answered     linger close!
lingering for FIN              FIN answered linger fin!+close
lingering for FIN              silence      linger fin+close -> overdue
lingering for FIN              given up     linger fin+close -> overdue
lingering for FIN              Abort        end fin+close
lingering after FIN            FIN          linger fin!+close | fin -> delivered
lingering after FIN            FIN early    linger fin!+close | fin
lingering after FIN            CLOSE        linger fin!+close | close -> peer closed
lingering after FIN            CLOSE early  linger fin!+close | close
lingering after FIN            answered     linger close! -> delivered
lingering after FIN            silence      linger fin!+close -> overdue
lingering after FIN            given up     linger, unattended fin!+close
lingering after FIN            Abort        end fin!+close
lingering, over                CLOSE        linger fin! | close -> peer closed
lingering, over                given up     linger, unattended fin! | fin -> delivered
lingering, over                Abort        end fin! | fin
draining                       FIN          drain close | fin
draining                       FIN early    drain close | fin
draining                       CLOSE        drain close | close
draining                       CLOSE early  drain close | close
draining                       answered     drain close!
draining                       Abort        end close
ended                          FIN          end | fin
ended                          FIN early    end | fin
ended                          CLOSE        end | close
ended                          CLOSE early  end | close
ended                          CloseWrite   end fin
retired                        FIN          retire | fin
retired                        FIN early    retire | fin
retired                        CLOSE        retire | close
retired                        CLOSE early  retire | close
retired                        CloseWrite   retire fin
`

func TestTransitions(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for _, s := range states {
		for _, v := range events {
			if before, after := result(s.enter, func(*end) {}), result(s.enter, v.happen); after != before {
				fmt.Fprintf(&b, "%-30s %-12s %s\n", s.name, v.name, after)
			}
		}
	}
	require.Equal(t, strings.TrimSpace(transitions), strings.TrimSpace(b.String()))
}

// result returns what an event makes of a state.
func result(enter, happen func(e *end)) string {
	e := newEnd()
	enter(e)
	e.step()
	happen(e)
	e.step()
	return e.String()
}

// How long a closed session goes on.
func TestTimes(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for name, tc := range map[string]struct {
		happen func(e *end)
		at     time.Duration // after Close
	}{
		"open":          {func(*end) {}, -60 * s}, // never
		"linger":        {func(e *end) { e.close(false) }, 5 * s},
		"progress":      {func(e *end) { e.close(false); e.now += 3 * s; e.Progress(e.now, 51, false) }, 8 * s},
		"no progress":   {func(e *end) { e.close(false); e.now += 3 * s; e.Progress(e.now, 50, false) }, 5 * s},
		"path":          {func(e *end) { e.close(false); e.now += 3 * s; e.Progress(e.now, 50, true) }, 8 * s},
		"at the most":   {func(e *end) { e.close(false); e.now += 58 * s; e.Progress(e.now, 51, false) }, 60 * s},
		"long linger":   {func(e *end) { e.Linger = time.Hour; e.close(false) }, time.Hour},
		"unattended":    {func(e *end) { e.close(true) }, 30 * s},
		"awaited again": {func(e *end) { e.close(true); e.now += 20 * s; e.Await(e.now) }, 25 * s},
		"on unattended": {func(e *end) { e.close(false); e.now += 5 * s; e.GoOn(e.now, false) }, 35 * s},
		"not lacking":   {func(e *end) { e.close(false); e.now += 5 * s; e.GoOn(e.now, true) }, 5 * s},
		"flushing":      {func(e *end) { e.begin(false); e.Flush(e.now, 50) }, 5 * s},
		"flushing, on":  {func(e *end) { e.begin(false); e.Flush(e.now, 50); e.now += 4 * s; e.Progress(e.now, 51, false) }, 9 * s},
		"flush, then close": {func(e *end) {
			e.begin(false)
			e.Flush(e.now, 50)
			e.now += 4 * s
			e.Progress(e.now, 51, false)
			e.now += 2 * s
			e.Close(e.now, &e.with)
		}, 11 * s},
		"drain":       {func(e *end) { e.close(false); e.Drain(e.now, 20*time.Millisecond) }, s},
		"drain, far":  {func(e *end) { e.close(false); e.Drain(e.now, 400*time.Millisecond) }, 2400 * time.Millisecond},
		"drain, most": {func(e *end) { e.close(false); e.Drain(e.now, time.Minute) }, 6 * s},
		"ended":       {func(e *end) { e.close(false); e.End() }, -60 * s},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnd()
			begin := e.now
			tc.happen(e)
			require.Equal(t, tc.at, e.Next()-begin)
			if at := e.Next(); at > 0 {
				require.False(t, e.Late(at-1))
				require.True(t, e.Late(at))
			}
		})
	}
}

func (e *end) close(unattended bool) { e.begin(unattended); e.Close(e.now, &e.with) }

// Where the peer's data may end: what is impossible changes nothing. rcv_nxt is 100.
func TestFinal(t *testing.T) {
	t.Parallel()
	const fin, close = false, true
	type end struct {
		at     container.Serial
		closed bool
	}
	none := end{}
	for name, tc := range map[string]struct {
		before  end // none: the peer has announced none
		end     end
		ok      bool // without streams
		streams bool // with them
	}{
		"now":                     {none, end{100, fin}, true, true},
		"later":                   {none, end{1000, close}, true, true},
		"before rcv_nxt":          {none, end{99, close}, false, false},
		"FIN before rcv_nxt":      {none, end{99, fin}, false, true},
		"farthest":                {none, end{100 + 1<<31 - 1, close}, true, true},
		"beyond any window":       {none, end{100 + 1<<31, close}, false, false},
		"FIN beyond any window":   {none, end{100 + 1<<31, fin}, false, true},
		"FIN again":               {end{105, fin}, end{105, fin}, true, true},
		"another FIN":             {end{105, fin}, end{106, fin}, false, false},
		"CLOSE as FIN":            {end{105, fin}, end{105, close}, true, true},
		"CLOSE after FIN":         {end{105, fin}, end{106, close}, false, true},
		"CLOSE before FIN":        {end{105, fin}, end{104, close}, false, false},
		"FIN, as CLOSE":           {end{105, close}, end{105, fin}, true, true},
		"FIN, another than CLOSE": {end{105, close}, end{104, fin}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for streams, want := range map[bool]bool{false: tc.ok, true: tc.streams} {
				var s State
				with := Session{Next: 100, Streams: streams}
				if tc.before != none {
					require.True(t, s.TakeFinal(tc.before.at, tc.before.closed, &with))
				}
				was := s
				require.Equal(t, want, s.TakeFinal(tc.end.at, tc.end.closed, &with), streams)
				if !want {
					require.Equal(t, was, s)
					continue
				}
				require.True(t, s.Read != ReadOpen)
				require.Equal(t, tc.before.closed || tc.end.closed, s.Read == ReadClosed)
				require.False(t, s.AllReceived(tc.end.at-1))
				require.True(t, s.AllReceived(tc.end.at))
			}
		})
	}
}

// What else of a session decides whether Close has done all that it can.
func TestDelivered(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		tell func(e *end)
		due  Due
	}{
		"answered":                      {func(e *end) { e.Answer() }, Delivered},
		"not answered":                  {func(*end) {}, Nothing},
		"not acknowledged":              {func(e *end) { e.Answer(); e.with.Unsent = true }, Nothing},
		"no signals":                    {func(e *end) { e.with.Signals = false }, Delivered},
		"no signals, not acknowledged":  {func(e *end) { e.with.Signals, e.with.Unsent = false, true }, Nothing},
		"perhaps signals":               {func(e *end) { e.with.Signals, e.with.Unsure = false, true }, Nothing},
		"FIN answered":                  {func(e *end) { e.fin() }, Nothing},
		"FIN answered, the peer's too":  {func(e *end) { e.fin(); e.final(100, false) }, Delivered},
		"FIN answered, the peer's data": {func(e *end) { e.fin(); e.final(101, false) }, Nothing},
		"with streams":                  {func(e *end) { e.with.Streams = true; e.fin(); e.final(100, false) }, Nothing},
		"with streams, answered":        {func(e *end) { e.with.Streams = true; e.Answer() }, Delivered},
		"the peer closes":               {func(e *end) { e.with.Streams = true; e.fin(); e.final(100, true) }, PeerClosed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnd()
			e.close(false)
			e.acknowledged()
			tc.tell(e)
			require.Equal(t, tc.due, e.Step(e.now, &e.with))
			require.Equal(t, e.Read == ReadClosed, e.Over(&e.with), "CLOSE is not answered, or the peer may send")
		})
	}
}

// fin is a FIN before CLOSE, which is answered after it.
func (e *end) fin() { e.Write = CloseForFin; e.AnswerFin() }

// A session that is overdue goes on once, unless something is lost.
func TestGoOn(t *testing.T) {
	t.Parallel()
	e := newEnd()
	e.close(false)
	overdue, never := e.Next(), time.Minute+e.now
	before := e.State
	require.False(t, e.GoOn(overdue, true), "something is lost")
	require.False(t, e.GoOn(never, false), "it has closed for long enough")
	require.False(t, e.Undelivered())
	e.Lacks()
	require.False(t, e.GoOn(overdue, false), "something was lost")
	require.True(t, e.Undelivered())
	e.State = before
	require.False(t, e.Await(overdue), "a call waits")
	require.True(t, e.GoOn(overdue, false))
	require.False(t, e.GoOn(overdue, false))
	require.True(t, e.Await(overdue))
	e.End()
	require.True(t, e.Retire())
	require.False(t, e.Retire())
	e.End()
	require.True(t, e.Phase == Retired, "it does not come back")
}
