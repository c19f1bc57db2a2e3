package life

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Class is what sort of error a call has returned; "": none.
type Class string

// Classes of errors, as package kcp and net have them. Whoever plays a script has a
// function that returns the class of an error; one that it does not know has its text.
const (
	EOF          Class = "EOF"
	Told         Class = "the peer's reason" // PeerCloseError, not Aborted
	PeerClosed   Class = "peer closed"
	ResetByPeer  Class = "reset"
	Refused      Class = "refused"
	PeerLost     Class = "lost"
	NoAnswer     Class = "no answer"
	NotDelivered Class = "not delivered"
	ClosedHere   Class = "closed here"
	Abandoned    Class = "abandoned"
	StreamReset  Class = "stream reset"      // by the peer, or by the protocol
	StreamHere   Class = "stream reset here" //
	NoMemory     Class = "no memory"
	WouldBlock   Class = "would block"
	InGroup      Class = "in a group"
	Timeout      Class = "timeout"
	TooLarge     Class = "too large"
	Legacy       Class = "legacy peer"
	SocketEnded  Class = "socket ended"
)

// Unknown is the class of an error that no call returns.
func Unknown(err error) Class { return Class(unknown + err.Error()) }

const unknown = "unknown: "

// passing is what ends nothing: the call may be made again.
var passing = []Class{WouldBlock, InGroup, Timeout, TooLarge, Legacy}

// broken is what calls return when the peer is gone, or does not know the session.
var broken = []Class{ResetByPeer, PeerLost, NotDelivered, NoMemory, Refused, SocketEnded}

// Session is all that two applications have seen of a session, and its judge. What is not
// set does not apply. Each end may have a Session of its own, which Merge adds to that of
// the other.
type Session struct {
	Name  string // that content depends on
	Fail  func(text string)
	Now   func() time.Duration // nil: times do not matter
	Ends  [2]Seen
	Flows map[string]*Flow // by writer and stream

	Whole    bool          // both ends are here, so that more than was written shows at once
	Mode     bool          // all is messages
	Mixed    bool          // so are some streams in order, as their ID says
	Copies   int           // how often a datagram may come again
	Broken   bool          // something has happened that may end the session
	Clean    bool          // nothing has happened for which a call may fail
	Slack    time.Duration // after its lifetime, within which a message is read; 0: any time
	Accepted time.Duration // when Accept has returned the session
	Codes    []uint64      // of the protocol, with which streams may be reset

	mu sync.Mutex // guards Ends and Flows
}

// Seen is what calls of one end have returned, but for those that read: see Flow.
type Seen struct {
	There  bool  // the end has had a session
	Write  Class // the first error of a call that writes
	Fin    Class
	Close  Class
	Ended  bool // the call that closes has returned
	Called Op   // which of them; "": none
	Early  bool // it was called before all was read
	Left   bool // the endpoint has ended without a word behind it
	Killed bool
	Told   bool // of the peer's reason
	Gives  bool // a reason
	Calls  int  // that close: which of them comes first does not show
}

// Aborts reports whether the application has broken off.
func (e *Seen) aborts() bool { return e.Called == Abort || e.Killed }

// Flow returns what end from writes to a stream; 0 is the session itself.
func (s *Session) Flow(from int, id uint32) *Flow {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Flows[flowName(from, id)]
}

func flowName(from int, id uint32) string { return fmt.Sprintf("%c%d", 'a'+from, id) }

// Begin adds the flows of the session itself.
func (s *Session) Begin() {
	for from := range s.Ends {
		s.add(from, 0, s.Mode, true).own = true
		s.add(from, Datagrams, true, false)
	}
}

// Add adds the flows of a stream, unless they are known.
func (s *Session) Add(id uint32, o StreamOptions) {
	messages := s.Mode || o.Unordered || o.Partial() || s.Mixed && id>>1&1 > 0
	for from := range s.Ends {
		s.add(from, id, messages, !o.Unordered).may = o.Partial()
	}
}

func (s *Session) add(from int, id uint32, messages, ordered bool) *Flow {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := flowName(from, id)
	if s.Flows == nil {
		s.Flows = make(map[string]*Flow)
	}
	if s.Flows[name] == nil {
		s.Flows[name] = newFlow(s, s.Name+" "+name, messages, ordered)
	}
	return s.Flows[name]
}

// Merge adds what another Session knows of end side.
func (s *Session) Merge(o *Session, side int) {
	s.Ends[side], s.Broken = o.Ends[side], s.Broken || o.Broken
	for name, f := range o.Flows {
		if s.Flows[name] == nil {
			s.Flows[name] = newFlow(s, s.Name+" "+name, f.Messages, f.Ordered)
		}
		if name[0] == byte('a'+side) {
			s.Flows[name].Written = f.Written
		} else {
			s.Flows[name].Got = f.Got
		}
	}
}

// Note changes what is known of an end.
func (s *Session) Note(side int, change func(e *Seen)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.Ends[side])
}

// Seen returns what is known of an end.
func (s *Session) Seen(side int) Seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Ends[side]
}

func (s *Session) now() time.Duration {
	if s.Now == nil {
		return 0
	}
	return s.Now()
}

func (s *Session) failAt(name, format string, args ...any) {
	s.Fail(name + ": " + fmt.Sprintf(format, args...))
}

// Complete reports whether all has arrived that has to, in both directions.
func (s *Session) Complete() bool {
	for _, f := range s.Flows {
		if !f.Complete() && !f.datagrams() {
			return false
		}
	}
	return true
}

// Check judges the session when all has ended. These are the rules, beside what holds for
// each flow: what is read is what was written, once, and in its order; io.EOF comes after
// the last of it; each message has one receipt, and it is true.
//
//   - Without something that breaks the session, or an application that aborts, no call
//     fails but for a peer that has closed, and reading ends with io.EOF.
//   - Close returns no error only if the peer's application can have all, and
//     ErrNotDelivered only if it has not read it to the end.
//   - A reason to close arrives if the peer had one, and not else.
func (s *Session) Check() {
	s.Broken = s.Broken || !s.Ends[0].There || !s.Ends[1].There
	for _, name := range slices.Sorted(maps.Keys(s.Flows)) {
		s.Flows[name].check(s.Ends[name[0]-'a'].Ended)
	}
	for side := range s.Ends {
		if e := &s.Ends[side]; e.There && !e.Killed { // what its calls return concerns nobody
			s.checkErrors(side, e, &s.Ends[1-side])
			s.checkClose(side, e, &s.Ends[1-side])
		}
	}
}

// checkErrors judges the errors of an end.
func (s *Session) checkErrors(side int, e, peer *Seen) {
	in := s.Flows[flowName(1-side, 0)]
	allowed := []Class{""}
	if e.Called != "" {
		allowed = append(allowed, ClosedHere)
	}
	if s.Broken || peer.Left {
		allowed = append(allowed, broken...)
	}
	if peer.Called != "" || s.Broken {
		allowed = append(allowed, PeerClosed, Told)
	}
	if peer.aborts() || e.aborts() || peer.Early || e.Early {
		allowed = append(allowed, ResetByPeer, PeerLost, NotDelivered)
	}
	lost, _ := s.lost(side)
	all := map[string]Class{"Write": e.Write, "CloseWrite": e.Fin, "Read": in.Got.Ended, "Close": e.Close}
	for _, call := range slices.Sorted(maps.Keys(all)) {
		is := all[call]
		switch {
		case slices.Contains(allowed, is) && (is == "" || !s.Clean):
		case call == "Read" && is == EOF:
		case call == "Close" && is == NotDelivered && lost && !s.Clean: // a stream was given up with the session
		default:
			s.failAt(s.Name, "end %c: %s: %s (%v)", 'a'+side, call, is, s.Ends)
		}
	}
	switch reason := peer.Called == Reason; {
	case e.Told && !peer.Gives:
		s.failAt(s.Name, "end %c was told of a reason, and the peer had none", 'a'+side)
	case reason && !s.Broken && peer.Calls == 1 && in.Got.Ended == EOF && !e.Told && !in.Written.Fin:
		s.failAt(s.Name, "end %c was not told of the peer's reason", 'a'+side)
	}
}

// checkClose judges what Close says.
func (s *Session) checkClose(side int, e, peer *Seen) {
	out := s.Flows[flowName(side, 0)]
	if !e.Ended || e.Called != Close && e.Called != Reason || !peer.There {
		return
	}
	maybe, surely := s.lost(side)
	reads := !peer.Early && !peer.aborts() && !peer.Left
	switch {
	case e.Close == "" && e.Write == "" && reads && !s.Broken && !e.Early && peer.Called != "" && (out.Got.Ended != EOF || !out.complete()):
		s.failAt(s.Name, "end %c: Close is nil, and the peer has not read all: %s", 'a'+side, out.Got.Ended)
	case e.Close == "" && reads && !s.Broken && !e.Early && surely:
		s.failAt(s.Name, "end %c: Close is nil, and something was lost", 'a'+side)
	case e.Close == NotDelivered && !s.Broken && !peer.Left && !peer.aborts() && out.Got.Ended == EOF && !maybe:
		s.failAt(s.Name, "end %c: Close is %s, and the peer has read all", 'a'+side, e.Close)
	}
}

// lost is that of all flows of an end.
func (s *Session) lost(side int) (maybe, surely bool) {
	for name, f := range s.Flows {
		if name[0] == byte('a'+side) && !f.datagrams() {
			m, is := f.lost()
			maybe, surely = maybe || m, surely || is
		}
	}
	return maybe, surely
}
