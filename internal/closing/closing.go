// Package closing has the states of a session's end (WIRE.md §5.2): of what the
// application has done, of what this end sends, and of what the peer sends. They say
// how long a closed session goes on, and what ends it.
//
// It is told what happens, and when. It has no clock: times are since any epoch.
package closing

import (
	"time"

	"github.com/arqnet/kcp/internal/container"
)

const (
	// Background is how long a session goes on without progress once no call waits for
	// it: to deliver what was written, if Close did not wait, or CLOSE.
	Background = 30 * time.Second
	// drainTime is the minimum time in which a closed session goes on to acknowledge
	// what a legacy peer retransmits. An acknowledgement may be lost, and nothing else
	// would show the peer that its data has arrived.
	drainTime = time.Second
	// drainRTOs is how many retransmission time-outs draining lasts, at least drainTime
	// and at most drainRTOs times drainTime. The peer's RTO is about the same as ours.
	drainRTOs = 6
)

// Phase is how far a session is. A session never goes back to an earlier one.
type Phase uint8

const (
	Open      Phase = iota
	Flushing        // closed; streams give the machine what they have to send
	Lingering       // closed; waits for acknowledgements
	Draining        // closed; still acknowledges (closing state, RFC 9000 §10.2.1)
	Ended           // over; the endpoint keeps a TIME-WAIT entry of it
	Retired         // ended, and removed from the endpoint's tables
)

// Caller is what the application has done.
type Caller uint8

const (
	Uses   Caller = iota
	Waits         // it has called Close or Abort, and Close may wait
	Leaves        // it has called Close, which does not wait, or no longer does
)

// Write is what this end has said of the end of its data.
type Write uint8

const (
	WriteOpen     Write = iota
	FinSent             // FIN is repeated until it is answered
	FinAnswered         // half closed
	CloseSent           // CLOSE is repeated until it is answered
	CloseForFin         // as CloseSent, and a FIN without an answer came before
	CloseAfterFin       // as CloseSent, and the peer has answered a FIN
	CloseAnswered
)

// Read is what the peer has said of the end of its data.
type Read uint8

const (
	ReadOpen   Read = iota
	ReadFinal       // FIN has told where the peer's data ends
	ReadClosed      // CLOSE has, and the peer reads nothing more
)

// Due is what a step of a closed session leads to.
type Due uint8

const (
	Nothing    Due = iota
	PeerClosed     // the session ends: the peer's data is all there, and it reads nothing
	Delivered      // Close has done all that it can
	Overdue        // there was no progress for too long
)

// Session is what else of a session matters.
type Session struct {
	Next    container.Serial // rcv_nxt
	Una     container.Serial // snd_una
	Unsent  bool             // something that was written is not acknowledged
	Streams bool             // there have been some
	Signals bool             // the peer answers CLOSE
	Unsure  bool             // it may yet turn out to do so
}

// State is the state of an end. The zero value is for an open session that does not
// linger.
type State struct {
	Linger time.Duration // how long Close waits without progress; <= 0: not at all

	endAt   time.Duration    // when the phase ends; 0: by events alone
	closeBy time.Duration    // when the session ends at the latest
	una     container.Serial // at the last progress
	final   container.Serial // where the peer's data ends, except for ReadOpen

	// Only the methods change these.
	Phase  Phase
	Caller Caller
	Write  Write
	Read   Read

	lacks bool // see Undelivered
}

// Closing reports whether Close waits for the peer, or would.
func (s *State) Closing() bool { return s.Phase == Flushing || s.Phase == Lingering }

// Undelivered reports whether the session has ended, or the peer has closed it, before
// the peer had taken all that was written.
func (s *State) Undelivered() bool { return s.lacks }

// Lacks tells that the peer lacks something of what was written, and will not get it.
func (s *State) Lacks() { s.lacks = true }

// Next returns when the phase ends if nothing happens; 0: it does not.
func (s *State) Next() time.Duration {
	if s.Phase >= Ended {
		return 0
	}
	return s.endAt
}

// Late reports whether the time of Next has come.
func (s *State) Late(now time.Duration) bool { return s.endAt > 0 && now >= s.endAt }

// Stop tells that the application has called Close or Abort.
func (s *State) Stop() { s.Caller = max(s.Caller, Waits) }

// Begin tells that the session is closed in order, for most at the most. With
// unattended no call waits.
func (s *State) Begin(now, most time.Duration, unattended bool) {
	s.Stop()
	if unattended {
		s.Caller = Leaves
	}
	s.closeBy = now + max(most, s.Linger)
}

// Flush begins to wait for what streams have to send.
func (s *State) Flush(now time.Duration, una container.Serial) {
	s.Phase, s.una = Flushing, una
	s.wait(now)
}

// Close begins to linger. CLOSE is sent, unless both directions are over.
func (s *State) Close(now time.Duration, with *Session) {
	if !s.Over(with) {
		switch s.Write {
		case WriteOpen:
			s.Write = CloseSent
		case FinSent:
			s.Write = CloseForFin
		case FinAnswered:
			s.Write = CloseAfterFin
		}
	}
	s.Phase, s.una = Lingering, with.Una
	s.wait(now)
}

// wait restarts the time that a closed session may spend without progress.
func (s *State) wait(now time.Duration) {
	limit := s.Linger
	if s.Caller == Leaves {
		limit = Background
	}
	s.endAt = min(now+limit, s.closeBy)
}

// Progress restarts the time if more is acknowledged than before, or if the path may be
// why nothing is.
func (s *State) Progress(now time.Duration, una container.Serial, path bool) {
	if s.Closing() && (una != s.una || path) {
		s.una = una
		s.wait(now)
	}
}

// Await has a call wait for the end of a session that was closed without one. It reports
// whether there was none.
func (s *State) Await(now time.Duration) bool {
	if s.Caller != Leaves {
		return false
	}
	s.Caller = Waits
	s.wait(now)
	return true
}

// Step returns what has become of a session that is not over.
func (s *State) Step(now time.Duration, with *Session) Due {
	switch {
	case s.Read == ReadClosed && s.AllReceived(with.Next):
		return PeerClosed
	case s.Phase != Lingering:
		return Nothing
	case s.delivered(with):
		return Delivered
	case s.Late(now):
		return Overdue
	}
	return Nothing
}

// delivered reports whether a closed session has delivered all that it can.
func (s *State) delivered(with *Session) bool {
	switch {
	case with.Unsent, with.Unsure:
		return false
	case !with.Signals:
		return true
	case s.Write == CloseAfterFin && s.AllReceived(with.Next):
		// A peer that has sent all its data need not learn that we read no more. With
		// streams, FIN does not say that it has.
		return !with.Streams || s.Read == ReadClosed
	}
	return s.Answered()
}

// GoOn reports whether a session that is overdue goes on, and no call waits for it any
// more. It does once, if the peer has all data: then only the answer to CLOSE is missing.
func (s *State) GoOn(now time.Duration, lacks bool) bool {
	if s.lacks || lacks || s.Caller == Leaves || now >= s.closeBy {
		return false
	}
	s.Caller = Leaves
	s.wait(now)
	return true
}

// Drain begins to drain.
func (s *State) Drain(now, rto time.Duration) {
	s.Phase = Draining
	s.endAt = now + max(drainTime, min(drainRTOs*rto, drainRTOs*drainTime))
}

// End ends the session.
func (s *State) End() { s.Phase = max(s.Phase, Ended) }

// Retire tells that an ended session leaves the endpoint's tables. It reports false if it
// has left them before.
func (s *State) Retire() bool {
	was := s.Phase
	s.Phase = Retired
	return was != Retired
}

// Fin tells that the application writes nothing more, but reads on.
func (s *State) Fin() { s.Write = FinSent }

// Answered reports whether the peer has answered what was sent last, FIN or CLOSE.
func (s *State) Answered() bool { return s.Write == FinAnswered || s.Write == CloseAnswered }

// Answer tells that the peer has answered what was sent last, FIN or CLOSE.
func (s *State) Answer() {
	switch s.Write {
	case FinSent:
		s.Write = FinAnswered
	case CloseSent, CloseForFin, CloseAfterFin:
		s.Write = CloseAnswered
	}
}

// AnswerFin tells that the peer's answer to a FIN has arrived after CLOSE has replaced
// that.
func (s *State) AnswerFin() {
	if s.Write == CloseForFin {
		s.Write = CloseAfterFin
	}
}

// AllReceived reports whether all of the peer's data has arrived, as next is rcv_nxt.
func (s *State) AllReceived(next container.Serial) bool {
	return s.Read != ReadOpen && !next.Before(s.final)
}

// Over reports whether both directions have ended, so that the session needs nothing
// more from the peer.
func (s *State) Over(with *Session) bool {
	switch {
	case !s.AllReceived(with.Next):
		return false
	case s.Read == ReadClosed:
		return true
	}
	return !with.Streams && s.Answered() && !with.Unsent
}

// TakeFinal takes the end of the peer's data from a CLOSE, if closed is set, or a FIN. It
// reports false if that end is impossible: below rcv_nxt, beyond what any window reaches,
// or another one than the peer has announced before. With streams, whose segments may
// follow FIN, the answer to a CLOSE may be later.
func (s *State) TakeFinal(final container.Serial, closed bool, with *Session) bool {
	if !final.Within(with.Next, with.Next+1<<31) && (closed || !with.Streams) {
		return false
	}
	if s.Read != ReadOpen && s.final != final && (!with.Streams || !closed || final.Before(s.final)) {
		return false
	}
	s.final, s.Read = final, max(s.Read, ReadFinal)
	if closed {
		s.Read = ReadClosed
	}
	return true
}
