package netpath

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// onPath returns a path whose packets have had size bytes.
func onPath(least, size, limit int) *PathMTU {
	p := new(PathMTU)
	p.Begin(NewSearch(least, size, limit, EtherIPv4))
	return p
}

// A path is asked before anything is known of it.
func TestPathUnknown(t *testing.T) {
	for _, p := range []*PathMTU{nil, new(PathMTU)} {
		p.Restart()
		require.False(t, p.Begun())
		require.False(t, p.Confirming())
		require.False(t, p.Awaits(0))
		require.False(t, p.Answered(0, 0, 1))
		require.Zero(t, p.Counts())
	}
	p := new(PathMTU)
	p.Revive(1)
	require.Zero(t, p.Next())
	require.Equal(t, 1500, p.Whole(1500))
}

// Large packets are lost. If small ones are not, three probes show that, and packets
// shrink. If the least size does not pass either, packets of more than 548 bytes may be
// fragmented until a probe is answered. Another path is searched anew.
func TestPathShrinks(t *testing.T) {
	p, now := onPath(BaseMTU, 1400, 1400), time.Second
	lost := Watched{Probes: true, Lost: 3, Suspect: true}
	expire := func() (do Do) {
		for range maxProbes {
			require.Equal(t, Probe, p.Step(now, lost)&^Forget)
			p.Sent(7, now, 0)
			require.Equal(t, now+minWait, p.Next())
			require.Zero(t, p.Step(now, lost), "one is outstanding")
			require.False(t, p.Awaits(8))
			require.True(t, p.Awaits(7))
			p.Heard(now)
			now = p.Next()
		}
		return p.Step(now, lost)
	}
	require.Zero(t, p.Step(now, Watched{Probes: true, Lost: 2}))
	require.Zero(t, p.Step(now, Watched{Probes: true}), "nothing is in doubt")
	require.Zero(t, expire()&Forget)
	require.Equal(t, BaseMTU, p.Size())
	require.Zero(t, p.Whole(0))
	require.Equal(t, Counts{Sent: 3, Lost: 3, BlackHoles: 1}, p.Counts())

	require.Equal(t, Forget, expire()&Forget)
	require.Equal(t, BaseMTU, p.Size())
	require.Equal(t, FloorMTU, p.Whole(0))
	require.Equal(t, Counts{Sent: 6, Lost: 6, BlackHoles: 2}, p.Counts())

	p.Step(now, lost)
	p.Sent(9, now, 0)
	require.False(t, p.Answered(9, p.ProbeSize()+1, now))
	require.True(t, p.Answered(9, p.ProbeSize(), now))
	require.Zero(t, p.Whole(0))

	p.Restart()
	require.False(t, p.Begun())
	require.Equal(t, Counts{Sent: 7, Lost: 6, BlackHoles: 2}, p.Counts())
}

// Acknowledged data ends the doubts without an answer. After an answer losses do not
// count for a while.
func TestPathIsConfirmed(t *testing.T) {
	p, now := onPath(BaseMTU, 1400, 1400), time.Second
	lost := Watched{Probes: true, Lost: 3, Suspect: true}
	require.Equal(t, Probe, p.Step(now, lost))
	p.Sent(1, now, 0)
	require.Zero(t, p.Step(now, Watched{Probes: true}))
	require.False(t, p.Confirming())
	require.Zero(t, p.Next())

	require.Equal(t, Probe, p.Step(now, lost))
	p.Sent(2, now, 0)
	require.True(t, p.Answered(2, 1400, now))
	require.Equal(t, Forget, p.Step(now+minTrust-1, lost))
	require.False(t, p.Confirming())
	require.Equal(t, Probe, p.Step(now+minTrust, lost))
	require.Equal(t, Counts{Sent: 2}, p.Counts())
}

// A peer answers no probes. Losses show a black hole if they come again after a sign of
// life, for 15 s. In an outage there is none.
func TestPathWithoutProbes(t *testing.T) {
	const asked = time.Minute
	lost := Watched{Lost: 3, Suspect: true}
	begin := func() *PathMTU {
		p := onPath(BaseMTU, 1400, 1400)
		require.Zero(t, p.Step(asked, Watched{Lost: 2}))
		require.Equal(t, Ping, p.Step(asked, lost))
		lost.Heard = asked
		require.Zero(t, p.Step(asked+time.Hour, lost), "the peer is silent")
		lost.Heard = asked + 1
		require.Equal(t, Watch, p.Step(asked+1, lost))
		return p
	}
	p := begin()
	require.Zero(t, p.Step(asked+2, Watched{}))
	require.Zero(t, p.Step(asked+doubtTime, lost))
	require.Equal(t, BaseMTU, p.Size())
	require.Equal(t, BaseMTU, p.Whole(0), "segments were cut for more")
	require.Equal(t, Counts{BlackHoles: 1}, p.Counts())
	require.Equal(t, Ping, p.Step(asked+doubtTime, lost), "one answer shows one black hole")
	lost.Heard = 2 * asked
	require.Equal(t, Watch, p.Step(2*asked, lost))
	require.Equal(t, Forget, p.Step(2*asked, lost))
	require.Equal(t, BaseMTU, p.Size())
	require.Equal(t, FloorMTU, p.Whole(0))
	require.Zero(t, p.Next(), "it is sent no probes")

	require.Equal(t, Ping, begin().Step(asked+1+doubtTime, lost), "that is too long ago")
	p = begin()
	require.Zero(t, p.Step(asked+2, Watched{Arrived: true}))
	require.Equal(t, Ping, p.Step(asked+3, lost), "a large packet has arrived")
	require.Zero(t, p.Step(asked+4, Watched{}))
	require.Equal(t, Ping, p.Step(asked+5, lost), "nothing is lost any more")
	require.Equal(t, 1400, p.Size())
}

// The system refuses packets. They become smaller if they can, and what cannot may be
// fragmented. What was refused leaves again if that changes anything.
func TestPathRefuses(t *testing.T) {
	for _, test := range []struct {
		name        string
		refused     int
		probes      bool
		do          Do
		size, whole int
	}{
		{"less is searched for", 1300, true, Resend, BaseMTU, 0},
		{"the size in use is too large", 1400, true, Resend, BaseMTU, 0},
		{"the least is left", BaseMTU, true, Resend, BaseMTU, 0},
		{"segments were cut for more", 1300, false, Resend, BaseMTU, BaseMTU},
		{"a segment cut before", 1401, true, Forget | Resend, 1400, 1400},
	} {
		p := onPath(BaseMTU, 1400, 1400)
		require.Equal(t, test.do, p.Refused(test.refused, 1, test.probes), test.name)
		require.Equal(t, test.size, p.Size(), test.name)
		require.Equal(t, test.whole, p.Whole(0), test.name)
	}
	p := onPath(BaseMTU, BaseMTU, 1400)
	require.Equal(t, Forget|Resend, p.Refused(BaseMTU, 1, true))
	require.Equal(t, BaseMTU-1, p.Whole(0))
	require.Equal(t, Forget, p.Refused(BaseMTU, 1, true), "that is known")
	require.Equal(t, Forget|Resend, p.Refused(1000, 1, true))
	require.Equal(t, Forget, p.Refused(1100, 1, true))
	require.Equal(t, 999, p.Whole(0))
}

// A probe that the system refuses is lost at once.
func TestPathRefusesProbes(t *testing.T) {
	p := onPath(BaseMTU, BaseMTU, 1400)
	require.Equal(t, Probe, p.Step(1, Watched{Probes: true, Full: SearchAfter}))
	p.Sent(1, 1, 0)
	require.Zero(t, p.ProbeRefused(1))
	require.False(t, p.Awaits(1))
	require.Less(t, p.ProbeSize(), 1400)
	require.Equal(t, Counts{Sent: 1, Lost: 1}, p.Counts())

	require.Equal(t, Probe, p.Step(2, Watched{Probes: true, Lost: 3, Suspect: true}))
	require.Equal(t, BaseMTU, p.ProbeSize())
	p.Sent(2, 2, 0)
	require.Equal(t, Forget, p.ProbeRefused(2))
	require.Equal(t, BaseMTU-1, p.Whole(0))
	require.EqualValues(t, 1, p.Counts().BlackHoles)
}

// Packets that nobody acknowledges have the size in use confirmed, at once and while they
// leave. Until then the base size is promised, and less if that does not pass.
func TestPathConfirms(t *testing.T) {
	p, now := onPath(FloorMTU, 1400, 1400), time.Second
	step := func(recent int) Do { return p.Step(now, Watched{Probes: true, Recent: recent}) }
	promised := func(size int, known bool) {
		t.Helper()
		n, k := p.Promised(50, p.Size())
		require.Equal(t, size, n)
		require.Equal(t, known, k)
	}
	answer := func() {
		t.Helper()
		require.Equal(t, Probe, step(0))
		p.Sent(7, now, 0)
		require.True(t, p.Answered(7, p.ProbeSize(), now))
	}
	lose := func(heard bool) {
		t.Helper()
		require.Equal(t, Probe, step(0)&Probe)
		p.Sent(8, now, 0)
		if heard {
			p.Heard(now)
		}
		now = p.Next()
	}
	promised(BaseMTU, false)
	require.Zero(t, step(1400), "nobody wants to know")
	require.Zero(t, p.Next())
	promised(BaseMTU, false)
	require.False(t, p.Wanted())

	require.True(t, p.Want(0))
	require.False(t, p.Want(1400), "that is known")
	require.EqualValues(t, 1, p.Next())
	answer()
	promised(1400, true)
	require.False(t, p.search.Trusts(now), "no loss has asked")

	now += ConfirmAfter
	require.False(t, p.Want(0))
	require.False(t, p.Want(FloorMTU))
	require.Zero(t, step(0), "none has left that may be too large")
	require.True(t, p.Want(FloorMTU+1))
	require.Zero(t, step(1400), "data shows it")
	require.True(t, p.Want(1400))
	now += ConfirmAfter - 1
	require.Zero(t, step(0))
	now++
	for range maxProbes {
		promised(1400, true)
		lose(true)
	}
	require.Equal(t, Probe, step(0)&Probe, "the base is tried at once")
	require.Equal(t, BaseMTU, p.ProbeSize())
	promised(BaseMTU, false)
	for range maxProbes {
		lose(true)
	}
	require.Equal(t, Probe, step(0)&Probe)
	promised(FloorMTU, false)
	answer()
	promised(FloorMTU, true)
	require.Greater(t, p.ProbeSize(), FloorMTU, "it is searched from there")

	p.Restart()
	require.True(t, p.Wanted())
	p.Begin(NewSearch(BaseMTU, BaseMTU, 1400, EtherIPv4))
	for range maxUnheard {
		lose(false)
	}
	require.Zero(t, step(0), "silence ends it")
	require.Zero(t, p.Next())
	require.True(t, p.Want(1000))
	for range maxProbes {
		now = max(now, p.Next())
		lose(true)
	}
	step(0)
	promised(FloorMTU, true)
	require.Equal(t, now+RaiseAfter, p.Next(), "the least size does not pass")

	n, known := (*PathMTU)(nil).Promised(1300, 1400)
	require.Equal(t, 1300, n, "the least that a session may have")
	require.False(t, known)
}
