package schedules

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/testenv/life"
	"github.com/arqnet/kcp/internal/testenv/life/ends"
	"github.com/arqnet/kcp/stats"
)

// conversation is what the two applications do, each in the order of the script. What is
// wrong is said by the judge of package life.
type conversation struct {
	name   string
	script life.Script
	mode   bool // messages
	legacy int  // the end that knows no signals; none
	unread bool // something is left unread, of which calls may complain
	shuts  bool // the server is shut down
}

const none = -1

// All conversations between two ends of ours.
var allLives = []*conversation{
	talk("request", `a:write:0,1500 a:fin a:readall a:close
		b:readall b:write:0,3000 b:close`),
	// Two streams: messages with receipts in any order, and bytes that come back.
	talk("streams", `a:open:0,0,1 a:open a:write:1,100,4 a:write:1,2500,4 a:write:1,30,4 a:fin:1 a:write:3,1500 a:fin:3
		a:readall:3 a:readall:1 a:endstream:1 a:endstream:3 a:close
		b:accept b:accept b:readall:1 b:write:1,700,4 b:write:1,20,4 b:fin:1 b:readall:3 b:write:3,3000 b:fin:3 b:readall b:close`),
	// The session itself writes before there is a stream, and beside it, both ways.
	talk("beside", `a:write:0,700 a:open a:write:1,3000 a:write:0,800 a:fin:1 a:fin a:readall a:readall:1 a:endstream:1 a:close
		b:write:0,10 b:accept b:write:0,2990 b:write:1,1500 b:fin:1 b:fin b:readall:1 b:readall b:close`),
	// Streams whose messages are given up after a time, in order and in any order.
	talk("lifetimes", `a:open:0,0,4 a:write:1,100,4 a:write:1,2500,4 a:write:1,30,4 a:fin:1 a:readall:1
		a:open:0,0,5 a:write:3,100,4 a:write:3,2500,4 a:write:3,30,4 a:fin:3 a:readall:3 a:close
		b:accept b:readall:1 b:endstream:1 b:accept b:readall:3 b:endstream:3 b:readall b:close`),
	talk("datagrams", `a:datagram:0,12 a:wait:0,1 a:datagram:0,13 a:wait:0,1 a:datagram:0,14 a:write:0,1500 a:fin a:readall a:close
		b:readall b:datagram:0,12 b:wait:0,1 b:datagram:0,13 b:write:0,3000 b:close`),
	// Both ends have read all, and close at one instant.
	talk("closes", `a:write:0,10 a:read:0,3000 a:meet a:close
		b:read:0,10 b:write:0,3000 b:meet b:close`),
	// The same, and the client writes something that the server does not read.
	talk("lastwords", `a:write:0,10 a:read:0,3000 a:meet a:write:0,10 a:close
		b:read:0,10 b:write:0,3000 b:meet b:close`),
	// The server shuts down with the answer on its way.
	talk("shutdown", `a:write:0,1500 a:readall a:close
		b:read:0,1500 b:write:0,3000 b:shutdown`),
	// Nothing is written. No answer comes sooner than the path allows.
	talk("pings", `a:ping a:ping a:close
		b:ping b:readall b:close`),
	talk("messages", `a:write:0,100,4 a:write:0,2500,6 a:write:0,30,4 a:fin a:readall a:close
		b:readall b:write:0,700,4 b:write:0,20,4 b:close`),
}

// Conversations with a peer that knows no signals: the bare state machine. It hears of no
// end, so they have sizes. No event comes beside them: a session with such a peer has no
// way to survive one, or to tell it.
var legacyLives = []*conversation{
	talk("asked", `a:write:0,1500 a:read:0,3000 b:read:0,1500 b:write:0,3000 b:close`),
	talk("receipts", `a:write:0,12 a:read:0,2 b:read:0,1 b:write:0,700,4 b:write:0,20,4 b:close`),
	talk("asking", `a:write:0,1500 a:read:0,3000 a:close b:read:0,1500 b:write:0,3000`),
}

func talk(name, text string) *conversation {
	c := &conversation{name: name, script: life.MustParse(text), legacy: none}
	c.mode = name == "messages" || name == "receipts"
	c.unread, c.shuts = name == "lastwords" || name == "pings", name == "shutdown"
	switch name {
	case "asked", "receipts":
		c.legacy = 0
	case "asking":
		c.legacy = 1
	}
	return c
}

// end is one end of a session, as a conversation has it.
type end struct {
	*trial
	*life.Party
	conn *ends.End // nil: the end knows no signals
	of   *process
}

// session returns the judge of a conversation, which both ends share.
func (tr *trial) session(conv uint32) *life.Session {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	s := tr.sessions[conv]
	if s != nil {
		return s
	}
	s = &life.Session{
		Name: fmt.Sprint(conv), Whole: true, Mode: tr.life.mode, Broken: tr.mayBreak() && !tr.again, Codes: ends.Codes,
		Fail: func(text string) { tr.fail("%s", text) },
		Now:  func() time.Duration { return time.Since(tr.begun) },
	}
	s.Clean = !s.Broken && !tr.mayBreak() && !tr.life.unread && tr.plan.Event() != testenv.Move && tr.life.legacy == none && !tr.life.shuts
	if !tr.wire.moves { // packets have no numbers that nobody can repeat
		s.Copies = tr.plan.Faults()
	}
	s.Slack = pathDelay + 10*time.Millisecond
	for _, step := range tr.plan {
		switch step.Act {
		case testenv.Hold:
			s.Slack += heldFor
		case testenv.Move: // what is kept until a new address is validated
			s.Slack += runLimit
		}
	}
	s.Begin()
	tr.sessions[conv] = s
	return s
}

// newEnd returns an end of a session.
func (tr *trial) newEnd(side int, c *kcp.Conn, of *process) *end {
	e := &ends.End{Conn: c, Path: 2 * pathDelay}
	return &end{tr, life.NewParty(tr.session(c.Conv()), side, e), e, of}
}

// converse dials, and performs the client's part. It reports whether there is no more to
// do. After an event that may end sessions the client tries once more.
func (tr *trial) converse(attempt int) bool {
	tr.mu.Lock()
	tr.dials++
	tr.again = attempt > 1
	tr.mu.Unlock()
	if tr.life.legacy == 0 {
		m := tr.bare(testenv.Client, "10.0.0.7:7", serverUDP)
		e := &end{tr, life.NewParty(tr.session(legacyConv), 0, m), nil, tr.client}
		e.perform()
		return true
	}
	c, err := tr.client.endpoint.Dial(context.Background(), serverUDP, nil)
	if err != nil {
		is, _ := ends.Class(err)
		over := tr.life.shuts && tr.broken() // nobody is there for another one
		if !tr.broken() || attempt > 1 && !over || !slices.Contains([]life.Class{life.NoAnswer, life.ResetByPeer, life.PeerLost}, is) {
			tr.fail("Dial: %v", err)
			return true
		}
		return over
	}
	if tr.newEnd(0, c, tr.client).perform() {
		tr.satisfied.Store(true)
		return true
	}
	return attempt > 1 || !tr.broken() || tr.life.shuts
}

// perform performs the steps of an end. It reports false, and breaks off, if a call has
// failed; the judge decides whether it may.
func (e *end) perform() bool {
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		for time.Sleep(3 * time.Microsecond); e.conn != nil; {
			if b, err := e.conn.Conn.ReceiveDatagram(context.Background()); err != nil || !e.Takes(life.Datagrams, b, nil) {
				return
			}
		}
	}()
	done := true
	for _, s := range e.life.script.Steps {
		if s.End != e.Side {
			continue
		}
		if e.step(s); s.Op != life.Close && e.failed() {
			_ = e.End.Close(life.Abort)
			done = false
			break
		}
	}
	<-heard
	time.Sleep(time.Microsecond)
	return done
}

func (e *end) step(s life.Step) {
	switch s.Op {
	case life.Wait:
		time.Sleep(time.Duration(s.N) * time.Millisecond)
	case life.Meet:
		e.meet()
	case life.Accept:
		if s, err := e.conn.Conn.AcceptStream(context.Background()); err == nil {
			e.conn.Accepted(e.Party, s)
		} else {
			e.Takes(0, nil, err)
		}
	case life.Shutdown:
		e.Note(e.Side, func(s *life.Seen) { s.Called, s.Early = life.Close, true })
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		var ended *kcp.ShutdownError
		err := e.of.endpoint.Shutdown(ctx)
		if errors.As(err, &ended) && ended.Cut == 0 && e.plan.Event() == testenv.Move {
			return // as ErrNotDelivered of Close, if the client has closed after it has moved
		}
		if err != nil && !e.broken() && !e.of.dead.Load() {
			e.fail("Shutdown: %v", err)
		}
	default:
		if e.Do(s) || s.ID == 0 {
			return
		}
	}
}

// failed reports whether a call has failed, so that the conversation cannot go on.
func (e *end) failed() bool {
	seen := e.Seen(e.Side)
	_, read := e.In(0).Read()
	if seen.Write != "" || seen.Fin != "" || read != "" && read != life.EOF {
		return true
	}
	for _, id := range e.Streams() {
		if _, read := e.In(id).Read(); read != "" && read != life.EOF {
			return true
		}
	}
	return e.conn != nil && e.conn.Conn.Err() != nil && !errors.Is(e.conn.Conn.Err(), kcp.ErrPeerClosed) && seen.Called == ""
}

// live performs the part of an accepted session.
func (e *end) live() {
	e.Accepted = time.Since(e.begun)
	if !e.perform() && (e.of.dead.Load() || e.broken() && e.life.shuts) { // what its calls return concerns nobody
		e.Note(e.Side, func(s *life.Seen) { s.Killed = true })
	}
}

// judgeSessions judges what the applications have seen, when all has ended.
func (tr *trial) judgeSessions() {
	for _, s := range tr.sessions {
		if tr.satisfied.Load() && tr.plan.Event() == testenv.Move {
			// If the client's last acknowledgements are lost, the server cannot know.
			s.Note(0, func(e *life.Seen) { e.Left = true })
		}
		s.Check()
		f := s.Flow(0, life.Datagrams)
		if n, _ := f.Read(); len(tr.plan) == 0 && n < len(f.Written.Sent) {
			tr.fail("%d datagrams of %d were lost by nobody", len(f.Written.Sent)-n, len(f.Written.Sent))
		}
		for i := range s.Ends {
			if s.Ends[i].There || tr.life.legacy == 1-i || tr.mayBreak() {
				continue
			}
			tr.fail("end %d has had no session", i)
		}
	}
}

// judgeTime judges how long the conversation took.
func (tr *trial) judgeTime(took time.Duration) {
	limit := runLimit
	if tr.mayBreak() {
		limit = tr.breakLimit()
	}
	if took > limit {
		tr.fail("it took %v", took)
	}
}

// breakLimit is how long it may take until a first session is known to be lost, and a
// second one.
func (tr *trial) breakLimit() time.Duration {
	return tr.rules.KeepAlive*3/2 + tr.rules.PeerTimeout + tr.rules.Linger + runLimit
}

// judgeRest judges how many sessions there were, and what is left of them.
func (tr *trial) judgeRest() {
	time.Sleep(heldFor + 2*pathDelay) // what is held has arrived, a killed server is back
	var of []*process                 // that should have had sessions
	if tr.life.legacy != 0 {
		of = append(of, tr.client)
	}
	if tr.life.legacy != 1 {
		of = append(of, tr.server())
	}
	open := func() (n int) {
		for _, p := range of {
			n += p.endpoint.Stats().Sessions
		}
		return n
	}
	limit := runLimit
	switch {
	case tr.mayBreak():
		limit = tr.breakLimit()
	case tr.plan.Event() == testenv.Move:
		limit = movedLimit
	}
	for waited := time.Duration(0); open() > 0 && waited < limit; waited += time.Second / 4 {
		time.Sleep(time.Second / 4)
	}
	time.Sleep(quietAfter)
	close(tr.rests)
	tr.mu.Lock()
	sent, returned := len(tr.sent), 0
	for _, s := range tr.servers {
		returned += int(s.accepted.Load())
	}
	tr.mu.Unlock()
	time.Sleep(quietFor)
	tr.mu.Lock()
	more := len(tr.sent) - sent
	tr.sent = tr.sent[:sent]
	tr.mu.Unlock()
	if more > 0 {
		tr.fail("%d packets were sent after the end", more)
	}
	if tr.life.legacy != 1 && (returned > tr.dials || returned < tr.dials && !tr.broken()) {
		tr.fail("Accept has returned %d sessions of %d", returned, tr.dials)
	}
	for _, p := range of {
		s := p.endpoint.Stats()
		if text := leftOf(p.endpoint); text != "" {
			tr.fail("left: %s", text)
		}
		tr.judgeOpened(p.who, &s)
	}
}

// judgeOpened judges how many sessions there were at one end. The first packets of a
// client that moves could be those of two clients, and its Dial may begin anew.
func (tr *trial) judgeOpened(who string, s *stats.Endpoint) {
	opened, half := s.Dialled+s.Accepted, s.Ended.Unaccepted
	good := opened == uint64(tr.dials) && half == 0
	if tr.plan.Event() == testenv.Move {
		good = opened-half >= uint64(tr.dials) && opened <= uint64(tr.dials)+2
	}
	if !good && !tr.broken() {
		tr.fail("%s: %d sessions in %d dials, and %d of them half-open to their end", who, opened, tr.dials, half)
	}
}

// leftOf returns what is left of the sessions of an endpoint, "" if nothing is.
func leftOf(e *kcp.Endpoint) string {
	var left []string
	s, streams := e.Stats(), e.Totals().Streams
	for what, n := range map[string]int{
		"sessions": s.Sessions, "half-open": s.HalfOpen, "in the backlog": s.Backlog,
		"bytes": int(s.Buffered), "bytes to be written": int(s.WriteBuffered),
		"not counted as ended":    int(s.Dialled + s.Accepted - s.Ended.Total()),
		"streams that have ended": int(streams.Opened + streams.Accepted - streams.Ended),
	} {
		if n != 0 {
			left = append(left, fmt.Sprint(n, " ", what))
		}
	}
	slices.Sort(left)
	return strings.Join(left, ", ")
}

var _ net.PacketConn = leadableSocket{}
