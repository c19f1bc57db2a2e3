package liveness

import (
	"math"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/stretchr/testify/require"
)

const (
	never = time.Duration(0)
	end   = time.Duration(math.MaxInt64)
)

// usual is a session with a peer that answers, with the time-outs that are usual.
func usual() Session {
	return Session{
		KeepAlive: 25 * time.Second, PeerTimeout: 30 * time.Second, StallTimeout: 30 * time.Minute,
		RTO: 200 * time.Millisecond, Open: true, Dialled: true, Signals: true, MayPing: true,
	}
}

// One row is one session, of which something is due at one time alone, and for the first
// time then.
func TestNext(t *testing.T) {
	t.Parallel()
	const s = time.Second
	asked := func(l *State) { l.Waits(20*s, true); l.Asked(20 * s) }
	for name, tc := range map[string]struct {
		tell func(l *State)
		with func(s *Session)
		at   time.Duration // 0: never
		due  Due
	}{
		"keep-alive":                  {at: 35 * s, due: Ping},
		"keep-alive, accepted":        {with: func(s *Session) { s.Dialled = false }, at: 47*s + 500*time.Millisecond, due: Ping},
		"keep-alive, heard":           {tell: func(l *State) { l.Heard(20 * s) }, at: 45 * s, due: Ping},
		"keep-alive, off":             {with: func(s *Session) { s.KeepAlive = -1 }},
		"keep-alive, closed":          {with: func(s *Session) { s.Open = false }},
		"keep-alive, not now":         {with: func(s *Session) { s.MayPing = false }},
		"not confirmed":               {with: func(s *Session) { s.Confirm = 10 * s1 }, at: 20 * s, due: Ping},
		"not confirmed, no keepalive": {with: func(s *Session) { s.Confirm, s.KeepAlive = 10*s1, 0 }, at: 20 * s, due: Ping},
		"unacknowledged":              {tell: asked, at: 21 * s, due: Ping},
		"unacknowledged, heard later": {tell: func(l *State) { asked(l); l.Heard(25 * s) }, at: 26 * s, due: Ping},
		"unacknowledged, no signals":  {tell: asked, with: func(s *Session) { s.Signals = false }, at: 35 * s, due: Ping},
		"path":                        {tell: func(l *State) { l.MoreExpected(12 * s) }, with: func(s *Session) { s.Migrates = true }, at: 14 * s, due: Ping},
		"path, heard later": {tell: func(l *State) { l.MoreExpected(12 * s); l.Heard(13 * s) },
			with: func(s *Session) { s.Migrates = true }, at: 15 * s, due: Ping},
		"path, checked": {tell: func(l *State) { l.MoreExpected(12 * s); l.PathChecked() },
			with: func(s *Session) { s.Migrates = true }, at: 35 * s, due: Ping},
		"path, does not migrate": {tell: func(l *State) { l.MoreExpected(12 * s) }, at: 35 * s, due: Ping},
		"path, no signals":       {tell: func(l *State) { l.MoreExpected(12 * s) }, with: func(s *Session) { s.Migrates, s.Signals = true, false }, at: 35 * s, due: Ping},
		"lost":                   {tell: asked, with: quietly, at: 50 * s, due: Lost},
		"lost, closed":           {tell: asked, with: func(s *Session) { quietly(s); s.Open = false }, at: 50 * s, due: Lost},
		"lost, off":              {tell: asked, with: func(s *Session) { quietly(s); s.PeerTimeout = -1 }},
		"lost, dials":            {tell: asked, with: func(s *Session) { quietly(s); s.Dialling = true }},
		"nothing asked":          {tell: func(l *State) { l.Waits(20*s, true) }, with: quietly},
		"nothing waits":          {tell: func(l *State) { asked(l); l.Waits(21*s, false) }, with: quietly},
		"asked, nothing waits":   {tell: func(l *State) { l.Asked(20 * s) }, with: func(s *Session) { quietly(s); s.Unvalidated = true }},
		"unvalidated":            {tell: func(l *State) { l.Waits(20*s, true) }, with: func(s *Session) { quietly(s); s.Unvalidated = true }, at: 50 * s, due: Lost},
		"idle":                   {with: func(s *Session) { quietly(s); s.IdleTimeout = 3 * s1 }, at: 13 * s, due: Idle},
		"idle, closed":           {with: func(s *Session) { quietly(s); s.IdleTimeout, s.Open = 3*s1, false }},
		"idle, dials":            {with: func(s *Session) { quietly(s); s.IdleTimeout, s.Dialling = 3*s1, true }},
		"idle, heard is nothing": {tell: func(l *State) { l.Heard(12 * s) }, with: func(s *Session) { quietly(s); s.IdleTimeout = 3 * s1 }, at: 13 * s, due: Idle},
		"stalled":                {tell: func(l *State) { l.Progressed(11*s, Progress{}, true) }, with: quietly, at: 11*s + 30*time.Minute, due: Stalled},
		"stalled, off":           {tell: func(l *State) { l.Progressed(11*s, Progress{}, true) }, with: func(s *Session) { quietly(s); s.StallTimeout = -1 }},
		"stalled, closed":        {tell: func(l *State) { l.Progressed(11*s, Progress{}, true) }, with: func(s *Session) { quietly(s); s.Open = false }},
		"stalled, dials":         {tell: func(l *State) { l.Progressed(11*s, Progress{}, true) }, with: func(s *Session) { quietly(s); s.Dialling = true }},
		"look":                   {tell: asked, with: func(s *Session) { quietly(s); s.Looks, s.PeerTimeout = true, 0 }, at: 20*s + 300*time.Millisecond, due: Look},
		"look, listens":          {tell: func(l *State) { l.MoreExpected(12 * s) }, with: func(s *Session) { quietly(s); s.Looks = true }, at: 13 * s, due: Look},
		"look, cannot":           {tell: asked, with: func(s *Session) { quietly(s); s.PeerTimeout = 0 }},
		"look, nothing waits":    {tell: func(l *State) { l.Asked(20 * s) }, with: func(s *Session) { quietly(s); s.Looks = true }, at: 20*s + 300*time.Millisecond, due: Look},
		"look, no reason":        {with: func(s *Session) { quietly(s); s.Looks = true }},
		// Of all that a Duration can say nothing comes around.
		"for ever":       {tell: asked, with: func(s *Session) { quietly(s); s.PeerTimeout, s.IdleTimeout, s.StallTimeout = end, end, end }},
		"keep-alive end": {with: func(s *Session) { s.KeepAlive = end }},
		"accepted end":   {with: func(s *Session) { s.KeepAlive, s.Dialled = end, false }},
		"last instant":   {with: func(s *Session) { s.KeepAlive = end - 10*s1 }, at: end, due: Ping},
		"at once":        {with: func(s *Session) { quietly(s); s.IdleTimeout = 1 }, at: 10*s + 1, due: Idle},
		"long ago":       {tell: func(l *State) { *l = New(-end) }, with: func(s *Session) { quietly(s); s.IdleTimeout = s1 }, at: 1, due: Idle},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, with := New(10*s), usual()
			if tc.tell != nil {
				tc.tell(&l)
			}
			if tc.with != nil {
				tc.with(&with)
			}
			at, due := l.Next(10*s, &with)
			require.Equal(t, tc.at, at)
			if name != "long ago" {
				require.Zero(t, due, "before it")
				_, due = l.Next(max(tc.at, 1)-1, &with)
				require.Zero(t, due, "just before it")
			}
			last := tc.at
			if tc.at == never {
				last = end
			}
			_, due = l.Next(last, &with)
			require.Equal(t, tc.due, due, "then")
		})
	}
}

const s1 = time.Second

// quietly sends no PING.
func quietly(s *Session) { s.MayPing = false }

// Of several things the first one counts for the time, and all of them are due later.
func TestSeveralAreDue(t *testing.T) {
	t.Parallel()
	l, s := New(0), usual()
	s.IdleTimeout, s.Looks = time.Minute, true
	l.Waits(0, true)
	l.Asked(0)
	l.Progressed(0, Progress{}, true)
	at, due := l.Next(0, &s)
	require.Equal(t, 300*time.Millisecond, at, "the route is looked at")
	require.Zero(t, due)
	_, due = l.Next(time.Hour, &s)
	require.Equal(t, Ping|Look|Idle|Stalled|Lost, due)
	require.Equal(t, time.Hour, l.Silence(time.Hour, Idle))
	require.Equal(t, time.Hour-1, l.Silence(time.Hour, Stalled))
	l.Heard(time.Minute)
	require.Equal(t, 59*time.Minute, l.Silence(time.Hour, Lost))
	require.Equal(t, time.Minute, l.LastHeard())

	s = Session{DeadLink: true}
	_, due = l.Next(time.Hour, &s)
	require.Equal(t, Lost, due, "sent too often")
	s.Dialling = true
	_, due = l.Next(time.Hour, &s)
	require.Zero(t, due)
	s.Dialling = false
	l.Waits(time.Hour, false)
	_, due = l.Next(time.Hour, &s)
	require.Zero(t, due, "nothing waits")
}

// The user time-out begins with the first of what was sent since the peer was heard. One
// step of the story follows the other, a second later.
func TestStory(t *testing.T) {
	t.Parallel()
	l, s := New(0), usual()
	s.MayPing, s.StallTimeout = false, 0
	now := time.Duration(0)
	for _, step := range []struct {
		what string
		tell func()
		lost time.Duration
	}{
		{"data waits for the cap of the rate", func() { l.Waits(now, true) }, never},
		{"some leaves", func() { l.Asked(now) }, 32},
		{"more leaves", func() { l.Asked(now) }, 32},
		{"the peer is heard", func() { l.Heard(now) }, never},
		{"the rest leaves", func() { l.Asked(now) }, 35},
		{"it still waits", func() { l.Waits(now, true) }, 35},
		{"all is given up", func() { l.Waits(now, false) }, never},
		{"a PING waits", func() { l.Waits(now, true) }, never},
		{"it is sent", func() { l.Asked(now) }, 39},
	} {
		now += time.Second
		step.tell()
		at, _ := l.Next(now, &s)
		require.Equal(t, step.lost*time.Second, at, step.what)
	}
}

// What shows that a session is in use, and that its peer takes data.
func TestProgress(t *testing.T) {
	t.Parallel()
	const unsent, waits = false, true
	begin := Progress{Received: 1000, Next: 10, Una: 20, Datagrams: 5}
	for name, tc := range map[string]struct {
		to     Progress
		waits  bool
		active bool
		acked  bool
		taken  time.Duration // since when the peer takes nothing
	}{
		"nothing":           {to: begin, waits: waits, taken: 1},
		"data":              {to: Progress{1100, 11, 20, 5}, waits: waits, active: true, taken: 1},
		"duplicates":        {to: Progress{1100, 10, 20, 5}, waits: waits, taken: 1},
		"without data":      {to: Progress{1000, 11, 20, 5}, waits: waits, taken: 1},
		"acknowledged":      {to: Progress{1000, 10, 21, 5}, waits: waits, active: true, acked: true, taken: 2},
		"all acknowledged":  {to: Progress{1000, 10, 21, 5}, waits: unsent, active: true, acked: true},
		"around the end":    {to: Progress{1000, 10, 3, 5}, waits: waits, active: true, acked: true, taken: 2},
		"datagram":          {to: Progress{1000, 10, 20, 6}, waits: waits, active: true, taken: 1},
		"given up, no data": {to: begin, waits: unsent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, s := New(0), Session{IdleTimeout: time.Minute, StallTimeout: time.Minute, Open: true}
			require.True(t, l.Progressed(time.Second, begin, true))
			require.Equal(t, tc.acked, l.Progressed(2*time.Second, tc.to, tc.waits))
			active := time.Second
			if tc.active {
				active = 2 * time.Second
			}
			now := time.Hour
			require.Equal(t, now-active, l.Silence(now, Idle))
			_, due := l.Next(now, &s)
			require.Equal(t, tc.taken > 0, due&Stalled != 0)
			require.Equal(t, now-tc.taken*time.Second, l.Silence(now, Stalled))
		})
	}
	t.Run("segments that waited for earlier ones count with these", func(t *testing.T) {
		t.Parallel()
		l := New(0)
		l.Progressed(1, Progress{Received: 100}, false)
		require.Equal(t, time.Duration(5), l.Silence(5, Idle))
		l.Progressed(2, Progress{Received: 100, Next: 3}, false)
		require.Equal(t, time.Duration(3), l.Silence(5, Idle))
	})
}

// A wake-up that is late by an eighth of the user time-out leaves the time out.
func TestThaw(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		late, timeout time.Duration
		frozen        bool
	}{
		"a bit":              {late: time.Second - 1, timeout: 8 * time.Second},
		"an eighth":          {late: time.Second, timeout: 8 * time.Second, frozen: true},
		"hours":              {late: 5 * time.Hour, timeout: 8 * time.Second, frozen: true},
		"no time-out, a bit": {late: 3750*time.Millisecond - 1, timeout: -1},
		"no time-out":        {late: 3750 * time.Millisecond, frozen: true},
		"early":              {late: -1, timeout: 8 * time.Second},
		"for ever":           {late: time.Hour, timeout: end},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, s := New(0), usual()
			s.IdleTimeout, s.MayPing, s.Signals = time.Hour, false, false
			l.Waits(time.Second, true)
			l.Asked(time.Second)
			l.Progressed(time.Second, Progress{}, true)
			l.Thaw(tc.late, tc.timeout)
			now, shift := 10*time.Hour, time.Duration(0)
			if tc.frozen {
				shift = tc.late
			}
			require.Equal(t, now-shift, l.Silence(now, Idle))
			require.Equal(t, now-time.Second-shift, l.Silence(now, Stalled))
			require.Equal(t, now, l.Silence(now, Lost))
			_, due := l.Next(now, &s)
			require.Equal(t, !tc.frozen, due&Lost != 0)
		})
	}
	l, s := New(0), Session{StallTimeout: time.Hour, Open: true}
	l.Thaw(2*time.Hour, 0)
	_, due := l.Next(end, &s)
	require.Zero(t, due, "nothing waits to be taken after it either")
}

// A peer whose address is not validated is asked after 10 s of silence. It is lost after
// 25, or after as long as it was there before, up to the user time-out.
func TestUnvalidatedPeersAreLostSoon(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ there, timeout, silence time.Duration }{
		{0, 30 * time.Second, 25 * time.Second},
		{24 * time.Second, 30 * time.Second, 25 * time.Second},
		{28 * time.Second, 30 * time.Second, 28 * time.Second},
		{time.Hour, 30 * time.Second, 30 * time.Second},
		{time.Hour, -1, time.Hour},
		{time.Hour, time.Second, 25 * time.Second},
	} {
		const begun = 5 * time.Minute
		s := usual()
		s.PeerTimeout, s.KeepAlive, s.Begun = tc.timeout, -1, begun
		s.Unvalidated, s.Dialled, s.Signals = true, false, false
		l := New(begun)
		heard := begun + tc.there
		l.Heard(heard)
		at, due := l.Next(heard, &s)
		require.Equal(t, heard+10*time.Second, at)
		require.Zero(t, due)
		_, due = l.Next(at, &s)
		require.Equal(t, Ping, due)
		s.MayPing = false
		at, _ = l.Next(at, &s)
		require.Equal(t, heard+tc.silence, at)
		_, due = l.Next(at-1, &s)
		require.Zero(t, due)
		_, due = l.Next(at, &s)
		require.Equal(t, Lost, due)
		for _, change := range []func(){func() { s.Dialled = true }, func() { s.Dialled, s.Unvalidated = false, false }} {
			change()
			_, due = l.Next(at, &s)
			require.Zero(t, due)
		}
	}
}

// How long a PING waits for its answer, and at most after more of them.
func TestPingWait(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		rto, timeout time.Duration
		unvalidated  bool
		wait, most   time.Duration
	}{
		"usual":                    {200 * time.Millisecond, 32 * time.Second, false, 200 * time.Millisecond, 2 * time.Second},
		"short time-out":           {200 * time.Millisecond, time.Second, false, 200 * time.Millisecond, 200 * time.Millisecond},
		"a 16th":                   {200 * time.Millisecond, 16 * time.Second, false, 200 * time.Millisecond, time.Second},
		"no time-out":              {200 * time.Millisecond, -1, false, 200 * time.Millisecond, 3 * time.Second},
		"unvalidated":              {200 * time.Millisecond, 30 * time.Second, true, 5 * time.Second, 5 * time.Second},
		"unvalidated, no time-out": {200 * time.Millisecond, 0, true, 5 * time.Second, 3 * time.Second},
		"for ever":                 {200 * time.Millisecond, end, false, 200 * time.Millisecond, end / 16},
	} {
		wait, most := PingWait(tc.rto, 3*time.Second, tc.timeout, tc.unvalidated)
		require.Equal(t, tc.wait, wait, name)
		require.Equal(t, tc.most, most, name)
	}
}

// A peer without signals was restarted if its una is below an earlier one for 5 s, and in
// 2 answers to PINGs.
func TestRestarted(t *testing.T) {
	t.Parallel()
	type packet struct {
		at           time.Duration // in seconds
		back, answer bool
	}
	for name, tc := range map[string]struct {
		packets   []packet
		restarted bool // by the last
	}{
		"none":          {packets: []packet{{1, false, true}, {9, false, true}}},
		"for long":      {packets: []packet{{1, true, false}, {20, true, false}}},
		"one answer":    {packets: []packet{{1, true, false}, {2, true, true}, {20, true, false}}},
		"first answer":  {packets: []packet{{1, true, true}, {2, true, true}, {20, true, false}}},
		"two answers":   {packets: []packet{{1, true, false}, {2, true, true}, {6, true, true}}, restarted: true},
		"too soon":      {packets: []packet{{1, true, false}, {2, true, true}, {5, true, true}}},
		"not an answer": {packets: []packet{{1, true, false}, {2, true, true}, {3, true, true}, {6, true, false}}, restarted: true},
		"interrupted":   {packets: []packet{{1, true, false}, {2, true, true}, {5, false, true}, {6, true, true}, {12, true, true}}},
		"many": {packets: func() (all []packet) {
			for i := range 1000 {
				all = append(all, packet{1 + time.Duration(i)/250, true, true})
			}
			return append(all, packet{6, true, true})
		}(), restarted: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := New(0)
			for i, p := range tc.packets {
				restarted, ask := l.Restarted(p.at*time.Second, p.back, p.answer)
				require.Equal(t, tc.restarted && i == len(tc.packets)-1, restarted)
				want := never
				if p.back && !restarted {
					want = (p.at + 1) * time.Second
				}
				require.Equal(t, want, ask, "when to ask the peer")
			}
		})
	}
}

// The figures of RULES.md are those of the code.
func TestRuleFigures(t *testing.T) {
	t.Parallel()
	const restart, route = "| Restart of a peer without signals", "| A dialled socket's route"
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Keep-alive", "1 s", ProbeAfter},
		{"| Keep-alive", "16 times", pingTries},
		{"| Peer timeout 30 s", "30 s", DefaultPeerTimeout},
		{restart, "5 s", restartAfter},
		{restart, "2 answers", restartAnswers},
		{"| Migration: by", "2 s", pathCheckAfter},
		{route, "300 ms", leastPatience},
		{route, "1 s", longPatience},
		{route, "500 ms", listening},
		{route, "every 250 ms", lookEvery},
		{route, "5 s", lookWhile},
		{route, "every 500 ms", lookLater},
	})
}
