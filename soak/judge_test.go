package soak

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/stretchr/testify/require"
)

// facts is what a trial has brought to light.
type facts struct {
	Start   time.Time // of the path's time
	EventAt time.Time // zero: Plan.Event did not happen
	Dials   []dialled
	Clients []record
	Servers []record
}

// verdict collects what is wrong. Notes are of what a path may cause that loses
// a great share of the packets, or takes none while an ending is under way.
type verdict struct {
	plan            *plan
	facts           facts
	failures, notes []string
}

// judge applies the rules.
func judge(p *plan, f facts) (failures, notes []string) {
	v := &verdict{plan: p, facts: f}
	for i, d := range f.Dials {
		if d.Err != "" {
			v.dial(i, d)
		}
	}
	for _, c := range f.Clients {
		peer, ok := v.peer(c)
		v.side(c, peer, ok)
	}
	for _, s := range f.Servers {
		if v.stale(s) {
			continue
		}
		peer, ok := v.peer(s)
		v.side(s, peer, ok)
	}
	return v.failures, v.notes
}

// stale reports whether a session has been accepted a second time, at another
// address: the client moved in the middle of the handshake. Only one may have
// got anything.
func (v *verdict) stale(r record) bool {
	if r.Session < 0 || r.Blocked != "" {
		return false
	}
	for _, o := range v.facts.Servers {
		if o.Session != r.Session || o.Conv != r.Conv || o.Life != r.Life || reflect.DeepEqual(o, r) {
			continue
		}
		if o.Read > 0 && r.Read > 0 {
			v.fail(r, "accepted twice, and %d and %d bytes read", r.Read, o.Read)
		}
		if v.plan.Rebind > 0 && r.Read == 0 && r.ReadErr != eof {
			return true
		}
	}
	return false
}

// peer returns what the other side of a session has seen.
func (v *verdict) peer(r record) (peer record, ok bool) {
	others := v.facts.Clients
	if !r.Server {
		others = v.facts.Servers
	}
	for _, o := range others {
		if o.Session == r.Session && o.Conv == r.Conv && (r.Server || r.Life < 0 || r.Life == o.Life) &&
			(!ok || o.Read > peer.Read) {
			peer, ok = o, true
		}
	}
	return peer, ok
}

func (v *verdict) steps(r record) (own, peer []step) {
	if r.Session < 0 {
		return []step{{Op: readAny}, {Op: closing}}, nil
	}
	s := v.plan.Sessions[r.Session]
	if r.Server {
		return s.Server, s.Client
	}
	return s.Client, s.Server
}

func (v *verdict) name(r record) string {
	side, kind := "client", "unknown to its client"
	if r.Server {
		side = fmt.Sprintf("server %d", r.Life)
	}
	if r.Session >= 0 {
		kind = v.plan.Sessions[r.Session].Kind
	}
	return fmt.Sprintf("session %d (%s), %s", r.Session, kind, side)
}

func (v *verdict) fail(r record, format string, args ...any) {
	v.failures = append(v.failures, v.name(r)+": "+fmt.Sprintf(format, args...))
}

// object is fail where the path can be no excuse, and a note where it can.
func (v *verdict) object(excuse bool, r record, format string, args ...any) {
	if !excuse {
		v.fail(r, format, args...)
		return
	}
	v.notes = append(v.notes, v.name(r)+": "+fmt.Sprintf(format, args...))
}

// at returns a time on the path's clock.
func (v *verdict) at(t time.Time) time.Duration { return t.Sub(v.facts.Start) }

// disturbed reports whether something has happened to the server's process, or
// the path has ended, before a time.
func (v *verdict) disturbed(before time.Time) bool {
	return !v.facts.EventAt.IsZero() && (before.IsZero() || v.facts.EventAt.Before(before))
}

// out reports whether the path was out for so long that a peer may have been
// taken for lost.
func (v *verdict) out(before time.Time) bool {
	for _, o := range v.plan.Outages {
		if v.at(before) > o.At && v.plan.outage()+time.Second > v.plan.PeerTimeout/2 {
			return true
		}
	}
	return false
}

func (v *verdict) dial(i int, d dialled) {
	s := v.plan.Sessions[i]
	r := record{Session: i}
	excuse := v.plan.rough() || v.plan.down(v.at(d.From), v.at(d.To))
	switch {
	case d.Err == cancelled && s.GiveUp > 0:
	case (d.Err == noAnswer || d.Err == refused) && v.disturbed(d.To):
	case d.Err == noAnswer:
		v.object(excuse, r, "Dial: no answer")
	default:
		v.fail(r, "Dial: %s", d.Err)
	}
}

// side judges what one side has seen, beside what its peer has, if that is known.
func (v *verdict) side(r, peer record, known bool) {
	if r.Blocked != "" {
		v.fail(r, "%s has not returned", r.Blocked)
		return
	}
	if r.Slowest > v.plan.callBound() {
		v.fail(r, "%s took %v", r.SlowestOp, r.Slowest)
	}
	v.content(r, peer, known)
	v.errors(r)
	v.endOfReading(r, peer, known)
	v.endOfClose(r, peer, known)
	v.receipts(r, peer, known)
	for i := range r.Streams {
		v.stream(i, r, peer, known)
	}
}

// content: what is read is what was written, in order, and nothing else; at
// io.EOF it is all of it.
func (v *verdict) content(r, peer record, known bool) {
	if r.BadAt >= 0 {
		v.fail(r, "wrong content at byte %d of %d", r.BadAt, r.Read)
	}
	if r.BadSize != "" {
		v.fail(r, "wrong boundary: %s", r.BadSize)
	}
	if r.Session < 0 {
		return
	}
	_, peerSteps := v.steps(r)
	all := total(peerSteps)
	if known {
		all = peer.Wrote
	}
	if r.Read > all {
		v.fail(r, "%d bytes read of %d written", r.Read, all)
	}
	if r.ReadErr == eof && r.Read != all && (known || !v.disturbed(time.Time{})) {
		v.fail(r, "io.EOF after %d bytes of %d", r.Read, all)
	}
}

// errors: each is one of those that the call is documented to return.
func (v *verdict) errors(r record) {
	for _, e := range []struct{ op, err, allowed string }{
		{"Read", r.ReadErr, eof + "," + reset + "," + lost},
		{"Write", r.WriteErr, reset + "," + lost + "," + peerClosed},
		{"CloseWrite", r.FinErr, reset + "," + lost + "," + peerClosed},
		{"Close", r.CloseErr, reset + "," + lost + "," + notDelivered},
	} {
		allowed := strings.Split(e.allowed, ",")
		if e.op == "CloseWrite" && r.Server && r.Life > 0 { // opened by data, as by a legacy peer, until it is told apart
			allowed = append(allowed, legacyPeer)
		}
		if r.Terminated || r.Session >= 0 && does(v.own(r), abort) {
			allowed = append(allowed, closedHere)
		}
		if e.err != "" && !contains(allowed, e.err) {
			v.fail(r, "%s: %s", e.op, e.err)
		}
	}
}

func (v *verdict) own(r record) []step {
	own, _ := v.steps(r)
	return own
}

func contains(all []string, s string) bool {
	for _, a := range all {
		if a == s {
			return true
		}
	}
	return false
}

// endOfReading: reading ends before io.EOF only for a reason.
func (v *verdict) endOfReading(r, peer record, known bool) {
	_, peerSteps := v.steps(r)
	if r.Session < 0 || r.Terminated || v.disturbed(r.CloseTo) {
		return
	}
	peerFailed := known && (peer.CloseErr != "" || peer.ReadErr != "" && peer.ReadErr != eof ||
		peer.WriteErr != "" && peer.WriteErr != peerClosed)
	switch r.ReadErr {
	case reset:
		if !does(peerSteps, abort) && !peerFailed {
			v.object(v.plan.rough() || v.out(r.CloseTo) || does(peerSteps, closeExit), r, "Read: reset after %d bytes, and the peer did not break off", r.Read)
		}
	case lost:
		v.object(v.plan.rough() || v.out(r.CloseTo) || does(peerSteps, abort, closeExit) || peerFailed, r,
			"Read: the peer is lost after %d bytes, and it was there", r.Read)
	}
}

// endOfClose: Close returns nil only if the peer got all, and an error only if
// it did not.
func (v *verdict) endOfClose(r, peer record, known bool) {
	own, peerSteps := v.steps(r)
	if !known || r.Session < 0 || does(own, abort) || r.Terminated || !r.Closed || r.Background {
		return
	}
	clean := r.WriteErr == "" && (r.ReadErr == "" || r.ReadErr == eof)
	reads := does(peerSteps, readAll) && !peer.Terminated
	if r.CloseErr == "" && clean && reads && (peer.ReadErr != eof || peer.Read != r.Wrote) {
		told := peer.Read == r.Wrote && v.out(r.CloseTo) // the bytes have arrived, and the end of them is no byte
		v.object(told || v.disturbed(time.Time{}), r, "Close is nil, and the peer read %d bytes of %d, then: %s", peer.Read, r.Wrote, peer.ReadErr)
	}
	if r.CloseErr == "" || v.disturbed(r.CloseTo) {
		return
	}
	excuse := v.plan.rough() || v.plan.down(v.at(r.CloseFrom)-time.Second, v.at(r.CloseTo))
	if does(peerSteps, closeExit) && !v.plan.lossless() {
		excuse = true // nobody is there any more who could repeat the last answer
	}
	if peer.ReadErr == eof && peer.Read == r.Wrote {
		v.object(excuse, r, "Close after %v: %s, and the peer has read all %d bytes and io.EOF", r.CloseTo.Sub(r.CloseFrom).Round(time.Millisecond), r.CloseErr, r.Wrote)
		return
	}
	if reads && !does(peerSteps, abort) {
		v.object(excuse || v.out(r.CloseTo), r, "Close after %v: %s; the peer read %d bytes of %d, then: %s",
			r.CloseTo.Sub(r.CloseFrom).Round(time.Millisecond), r.CloseErr, peer.Read, r.Wrote, peer.ReadErr)
	}
}

// receipts: each message has one, and it says what has become of it. After
// Flush the peer has everything.
func (v *verdict) receipts(r, peer record, known bool) {
	n := r.Receipts
	if n.Twice > 0 || r.Closed && r.Sent != n.Nil+n.Failed {
		v.fail(r, "%d messages, and receipts %+v", r.Sent, n)
	}
	if v.succeeded(r) && n.Failed > 0 {
		v.fail(r, "Close is nil, and receipts are %+v", n)
	}
	if r.Session < 0 {
		return
	}
	_, peerSteps := v.steps(r)
	reason := does(peerSteps, closeReason)
	if r.Told && !reason {
		v.fail(r, "Read tells a reason to close, and the peer had none")
	}
	if reason && r.ReadErr == eof && !r.Told && known && !peer.Terminated {
		v.object(v.plan.rough() || v.disturbed(r.CloseTo), r, "Read: io.EOF without the peer's reason")
	}
	switch r.FlushErr {
	case "none", reset, lost, peerClosed:
	case "":
		if known && peer.Read != r.Wrote {
			v.object(v.disturbed(time.Time{}), r, "Flush is nil, and the peer read %d bytes of %d, then: %s", peer.Read, r.Wrote, peer.ReadErr)
		}
	default:
		v.object(v.plan.rough() || v.disturbed(r.CloseTo), r, "Flush: %s", r.FlushErr)
	}
}

// succeeded reports whether Close says that the peer's endpoint has everything.
func (v *verdict) succeeded(r record) bool {
	return r.Session >= 0 && r.Closed && r.CloseErr == "" && r.WriteErr == "" && (r.ReadErr == "" || r.ReadErr == eof) && !r.Terminated && !r.Background && !does(v.own(r), abort)
}

// stream: messages of a stream arrive once, in order unless it is without, and all
// of them unless they may be given up. A receipt without an error is true.
func (v *verdict) stream(i int, r, peer record, known bool) {
	plan, ok := v.streamPlan(i, r)
	if !ok {
		v.fail(r, "stream %d is none of the client's", i)
		return
	}
	s, p := r.Streams[i], peer.Streams[i]
	if s.Wrong != "" {
		v.fail(r, "stream %d: %s", i, s.Wrong)
	}
	if r.Closed && s.Sent != s.Nil+s.Failed {
		v.fail(r, "stream %d: %d messages, %d receipts without an error and %d with one", i, s.Sent, s.Nil, s.Failed)
	}
	sorted := slices.Sorted(slices.Values(s.Read))
	if len(slices.Compact(slices.Clone(sorted))) != len(sorted) {
		v.fail(r, "stream %d: a message twice: %d", i, s.Read)
	}
	if !plan.Options.Unordered && !slices.Equal(sorted, s.Read) {
		v.fail(r, "stream %d: out of order: %d", i, s.Read)
	}
	whole := plan.Reset < 0 && !plan.unreliable()
	if v.succeeded(r) && whole && s.Failed > 0 && !peer.Terminated {
		v.fail(r, "stream %d: Close is nil, and %d of %d receipts have an error", i, s.Failed, s.Sent)
	}
	if known && s.Err == eof && p.SendErr == "" && len(s.Read) != p.Sent && whole {
		v.fail(r, "stream %d: io.EOF after %d messages of %d", i, len(s.Read), p.Sent)
	}
	if known && s.Err == eof && p.Nil > len(s.Read) {
		v.fail(r, "stream %d: io.EOF after %d messages, of which %d were acknowledged", i, len(s.Read), p.Nil)
	}
	v.endOfStream(i, r, peer, known, plan)
}

// unfinished reports whether the sender of a stream has not come to its end, so that the
// end of the session may have come before.
func (s streamSeen) unfinished() bool { return s.SendErr != "" || s.Sent == 0 }

// endOfStream: a stream ends before io.EOF only for a reason.
func (v *verdict) endOfStream(i int, r, peer record, known bool, plan streamPlan) {
	s := r.Streams[i]
	own, peerSteps := v.steps(r)
	switch s.Err {
	case "":
	case eof:
		if plan.Reset >= 0 {
			v.fail(r, "stream %d: io.EOF of a stream that was reset", i)
		}
	case streamWasReset:
		// A server that was told to end closes its session, and takes no more streams.
		ended := !r.Server && peer.Terminated && s.Code == kcp.StreamRefused
		if !ended && (!r.Server || plan.Reset < 0 || s.Code != plan.Code) {
			v.fail(r, "stream %d: reset with code %d", i, s.Code)
		}
	case closedHere:
		if plan.Reset < 0 && !does(own, abort) && !r.Terminated {
			v.fail(r, "stream %d: closed here", i)
		}
	default:
		excuse := does(append(own, peerSteps...), abort) || v.disturbed(time.Time{}) || v.plan.rough() || v.out(r.CloseTo) ||
			!known || peer.Streams[i].unfinished() || r.ReadErr != eof || r.CloseErr != "" || peer.ReadErr != eof || peer.CloseErr != ""
		v.object(excuse, r, "stream %d: %s after %d messages", i, s.Err, len(s.Read))
	}
}

// streamPlan returns the plan of stream i of a session.
func (v *verdict) streamPlan(i int, r record) (plan streamPlan, ok bool) {
	if r.Session < 0 {
		return plan, false
	}
	for _, s := range v.plan.Sessions[r.Session].Client {
		if s.Op == openStreams || s.Op == streamsAside {
			all := v.plan.streamPlans(r.Session, s.Bytes)
			if i < len(all) {
				return all[i], true
			}
		}
	}
	return plan, false
}

// lossless reports whether the path delivers everything.
func (p *plan) lossless() bool {
	return p.loss() == 0 && len(p.Outages) == 0 && p.Rebind == 0 && p.Up.Rate == 0 && p.Down.Rate == 0 &&
		p.Up.MTU == 0 && p.Down.MTU == 0
}

// The judge finds each kind of wrong, and nothing where nothing is.
func TestJudge(t *testing.T) {
	p := &plan{KeepAlive: time.Second, PeerTimeout: 3 * time.Second, Linger: 3 * time.Second}
	p.Sessions = []script{{
		Client: []step{{Op: write, Bytes: 10}, {Op: closeWrite}, {Op: readAll}, {Op: closing}},
		Server: []step{{Op: readAll}, {Op: write, Bytes: 20}, {Op: closing}},
	}}
	now := time.Now()
	good := func() facts {
		c := record{FlushErr: "none", Wrote: 10, Read: 20, ReadErr: eof, Closed: true, BadAt: -1, CloseFrom: now, CloseTo: now}
		s := record{FlushErr: "none", Wrote: 20, Read: 10, ReadErr: eof, Closed: true, BadAt: -1, CloseFrom: now, CloseTo: now, Server: true}
		return facts{Start: now, Dials: []dialled{{Done: true}}, Clients: []record{c}, Servers: []record{s}}
	}
	failures, notes := judge(p, good())
	require.Empty(t, failures)
	require.Empty(t, notes)
	for name, spoil := range map[string]func(f *facts, c, s *record){
		"a wrong byte":                func(_ *facts, c, _ *record) { c.BadAt = 3 },
		"a wrong boundary":            func(_ *facts, c, _ *record) { c.BadSize = "3" },
		"io.EOF too soon":             func(_ *facts, c, _ *record) { c.Read = 19 },
		"a byte too much":             func(_ *facts, _, s *record) { s.Read, s.ReadErr = 11, reset },
		"an unknown error":            func(_ *facts, c, _ *record) { c.WriteErr = "unknown: x" },
		"an error of another call":    func(_ *facts, c, _ *record) { c.ReadErr = peerClosed },
		"Dial without an answer":      func(f *facts, _, _ *record) { f.Dials[0].Err = noAnswer },
		"Dial with the wrong error":   func(f *facts, _, _ *record) { f.Dials[0].Err, f.EventAt = lost, now.Add(-time.Second) },
		"reset without a reason":      func(_ *facts, c, _ *record) { c.ReadErr, c.Read = reset, 3 },
		"lost without a reason":       func(_ *facts, c, _ *record) { c.ReadErr, c.Read = lost, 3 },
		"Close nil, not delivered":    func(_ *facts, _, s *record) { s.ReadErr, s.Read = lost, 3 },
		"Close not nil, delivered":    func(_ *facts, c, _ *record) { c.CloseErr = notDelivered },
		"Close not nil, not at fault": func(_ *facts, c, s *record) { c.CloseErr, s.Read, s.ReadErr = notDelivered, 3, reset },
		"data delivered twice": func(f *facts, _, s *record) {
			again := *s
			again.CloseTo = now.Add(1)
			f.Servers = append(f.Servers, again)
		},
		"a receipt twice":            func(_ *facts, c, _ *record) { c.Receipts.Twice = 1 },
		"a missing receipt":          func(_ *facts, c, _ *record) { c.Sent = 1 },
		"Close nil, a receipt not":   func(_ *facts, c, _ *record) { c.Sent, c.Receipts.Failed = 1, 1 },
		"a reason of nobody":         func(_ *facts, c, _ *record) { c.Told = true },
		"Flush nil, not delivered":   func(_ *facts, c, s *record) { c.FlushErr, s.Read, s.ReadErr = "", 3, reset },
		"Flush that gives up":        func(_ *facts, c, _ *record) { c.FlushErr = cancelled },
		"a call that hangs":          func(_ *facts, c, _ *record) { c.Blocked = read },
		"a call that takes too long": func(_ *facts, c, _ *record) { c.Slowest = time.Hour },
	} {
		f := good()
		spoil(&f, &f.Clients[0], &f.Servers[0])
		failures, _ := judge(p, f)
		require.NotEmpty(t, failures, name)
	}
	f := good() // a server that was killed excuses that it did not answer
	f.EventAt, f.Servers, f.Clients[0].ReadErr, f.Clients[0].Read = now.Add(-time.Second), nil, lost, 5
	failures, _ = judge(p, f)
	require.Empty(t, failures)
}

// The judge finds each kind of wrong in streams.
func TestJudgeOfStreams(t *testing.T) {
	p := &plan{Seed: 1, KeepAlive: time.Second, PeerTimeout: 3 * time.Second, Linger: 3 * time.Second}
	p.Sessions = []script{{
		Client: []step{{Op: openStreams, Bytes: 1000}, {Op: closeWrite}, {Op: readAll}, {Op: closing}},
		Server: []step{{Op: echoStreams}, {Op: readAll}, {Op: closing}},
	}}
	reliable, reset, unreliable := -1, -1, -1
	for ; reliable < 0 || reset < 0 || unreliable < 0; p.Seed++ {
		reliable, reset, unreliable = -1, -1, -1
		for i, s := range p.streamPlans(0, 1000) {
			switch {
			case s.Reset >= 0:
				reset = i
			case s.unreliable():
				unreliable = i
			case !s.Options.Unordered:
				reliable = i
			}
		}
	}
	p.Seed--
	now := time.Now()
	seen := func(i, n int, code uint64) streamSeen {
		s := streamSeen{Sent: n, Nil: n, Err: eof}
		for m := range n {
			s.Read = append(s.Read, m)
		}
		if i == reset {
			s.Err, s.Code = streamWasReset, code
		}
		return s
	}
	for name, spoil := range map[string]func(c, s map[int]streamSeen){
		"":                  func(_, _ map[int]streamSeen) {},
		"a message twice":   func(c, _ map[int]streamSeen) { c[reliable] = streamSeen{Sent: 2, Nil: 2, Read: []int{0, 0}, Err: eof} },
		"out of order":      func(c, _ map[int]streamSeen) { c[reliable] = streamSeen{Sent: 2, Nil: 2, Read: []int{1, 0}, Err: eof} },
		"a message missing": func(c, _ map[int]streamSeen) { c[reliable] = streamSeen{Sent: 2, Nil: 2, Read: []int{0}, Err: eof} },
		"a false receipt":   func(c, _ map[int]streamSeen) { c[unreliable] = streamSeen{Sent: 2, Nil: 2, Read: []int{0}, Err: eof} },
		"a failed receipt": func(c, _ map[int]streamSeen) {
			c[reliable] = streamSeen{Sent: 2, Nil: 1, Failed: 1, Read: []int{0, 1}, Err: eof}
		},
		"a missing receipt":          func(c, _ map[int]streamSeen) { c[reliable] = streamSeen{Sent: 2, Nil: 1, Read: []int{0, 1}, Err: eof} },
		"an end without a reason":    func(c, _ map[int]streamSeen) { c[reliable] = streamSeen{Sent: 2, Nil: 2, Read: []int{0, 1}, Err: lost} },
		"io.EOF of a stream reset":   func(_, s map[int]streamSeen) { s[reset] = streamSeen{Err: eof} },
		"another code":               func(_, s map[int]streamSeen) { s[reset] = streamSeen{Err: streamWasReset, Code: 1 << 40} },
		"a stream nobody has opened": func(_, s map[int]streamSeen) { s[99] = streamSeen{Err: eof} },
	} {
		c := record{FlushErr: "none", ReadErr: eof, Closed: true, BadAt: -1, CloseFrom: now, CloseTo: now, Streams: map[int]streamSeen{}}
		s := c
		s.Server, s.Streams = true, map[int]streamSeen{}
		code := p.streamPlans(0, 1000)[reset].Code
		for _, i := range []int{reliable, unreliable} {
			c.Streams[i], s.Streams[i] = seen(i, 2, 0), seen(i, 2, 0)
		}
		s.Streams[reset] = seen(reset, 1, code)
		spoil(c.Streams, s.Streams)
		failures, _ := judge(p, facts{Start: now, Dials: []dialled{{Done: true}}, Clients: []record{c}, Servers: []record{s}})
		require.Equal(t, name != "", len(failures) > 0, "%s: %v", name, failures)
	}
}
