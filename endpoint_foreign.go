package kcp

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/arqnet/kcp/internal/neterr"
	"github.com/arqnet/kcp/internal/readturn"
)

// Sockets that somebody else may use, too: those of NewEndpoint. Their owners may
// set read deadlines, their reads may not be interruptible, and their errors may
// last. None of it must leave a call waiting for ever.

const (
	// closeWait is how long Endpoint.Close waits for writes in progress, and for the
	// readers of a socket that it does not close.
	closeWait = time.Second

	// manyFailures is how many read errors in a row make a socket suspect.
	manyFailures = 8
	// lastingErrors is how long a socket may return nothing but errors.
	lastingErrors = 5 * time.Second
	// manyTimeouts is how many time-outs in a row that interrupt has not caused
	// count as errors, if there is more than one in timeoutGap.
	manyTimeouts = 64
	timeoutGap   = 20 * time.Millisecond
)

// failures are the errors in a row of a socket's reads. Its zero value is none.
// Only the present reader of the socket uses it.
type failures struct {
	errors, timeouts int
	since            time.Duration // time of the first of errors, or of timeouts, since the epoch
	personal         bool          // one of errors was of the system: it may concern one packet
}

// many reports whether the socket is suspect.
func (f *failures) many() bool { return f.errors >= manyFailures }

// interrupt ends the read of the call that reads the socket: it returns with a
// time-out. The owner of a socket may set another deadline before the call has
// noticed, so the interrupt is repeated until the call has left its turn.
func (s *shard) interrupt() {
	s.expire()
	if s.foreign {
		s.lead.Insist(s.expire)
	}
}

// expire makes a read in progress return with a time-out, or else the next one.
func (s *shard) expire() {
	s.asked.Store(true)
	_ = s.link.Load().SetReadDeadline(longAgo())
}

// longAgo returns a deadline that has passed.
func longAgo() time.Time { return time.Unix(1, 0) }

// interrupted reports whether err is a read deadline that has passed, which it
// clears: the one of interrupt, or one that the owner of the socket has set. It does
// not clear the one that stopReaders sets. A socket that returns time-outs
// without end is not interrupted.
func (e *Endpoint) interrupted(s *shard, err error) bool {
	if !isInterrupt(err) || e.stopped() {
		return false
	}
	f, now := &s.failures, e.now()
	if f.timeouts == 0 && f.errors == 0 {
		f.since = now
	}
	if s.asked.Swap(false) {
		f.timeouts = 0
	} else if f.timeouts++; f.timeouts >= manyTimeouts && now-f.since < time.Duration(f.timeouts)*timeoutGap {
		return false
	}
	_ = s.link.Load().SetReadDeadline(time.Time{})
	if e.stopped() { // that deadline may have been set just before it was cleared above
		_ = s.link.Load().SetReadDeadline(longAgo())
		return false
	}
	return true
}

// survives handles a read error, and reports whether the socket can still be
// read. Most errors concern one packet, such as an ICMP message about one sent
// before. A closed socket is final. So are errors of a net.PacketConn that last
// for lastingErrors, unless the system reports them. From manyFailures errors in
// a row on it pauses, 1 ms at first and up to 100 ms.
func (e *Endpoint) survives(s *shard, err error) bool {
	if e.stopped() {
		return false
	}
	if errors.Is(err, net.ErrClosed) {
		e.shut(errSocketClosed)
		return false
	}
	e.counters.readErrors.Add(1)
	e.noteSocketError(err)
	e.refused(err)
	e.troubled(err)
	e.warn("socket read failed", err)
	f, now := &s.failures, e.now()
	if f.errors == 0 {
		f.since = now
	}
	f.errors++
	f.personal = f.personal || isPersonal(err)
	if !f.many() {
		return true
	}
	if !f.personal && now-f.since >= lastingErrors {
		e.shut(&SocketError{err})
		return false
	}
	pause := time.NewTimer(min(time.Millisecond<<min(f.errors-manyFailures, 8), 100*time.Millisecond))
	defer pause.Stop()
	select {
	case <-pause.C:
		return true
	case <-e.socket.done:
		return false
	}
}

// refused handles ECONNREFUSED: the system reports that no socket is open at
// the address that this one is connected to. It ends the sessions that wait for
// a first answer, and those that wait only for the answer to CLOSE.
func (e *Endpoint) refused(err error) {
	if !neterr.PortUnreachable(err) {
		return
	}
	e.mu.RLock()
	var waiting []*Conn
	if e.socket.connected {
		waiting = e.table.Sessions()
	}
	e.mu.RUnlock()
	each(waiting, (*Conn).unreachable)
}

// isInterrupt reports whether err is of a read deadline that has passed.
func isInterrupt(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// isPersonal reports whether a read error may concern a single packet, or pass by
// itself: it is of the system, or a time-out.
func isPersonal(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) || isInterrupt(err)
}

// stopReaders makes the readers end. It closes owned sockets, and sets a read
// deadline in the past on the others.
func (e *Endpoint) stopReaders() {
	e.takeover.Before.Close()
	for i := range e.socket.shards {
		s := &e.socket.shards[i]
		s.lead.Stop()
		link := s.link.Load()
		if e.socket.owned {
			_ = link.Conn.Close()
		}
		if !e.socket.owned || link.Inbox != nil {
			_ = link.SetReadDeadline(longAgo())
		}
	}
}

// awaitReaders waits until no reader uses the sockets any more, which are not
// owned. It reports false after closeWait. It repeats the deadline of
// stopReaders, which the owner of a socket may have replaced.
func (e *Endpoint) awaitReaders() bool {
	ended := make(chan struct{})
	go func() {
		e.socket.readers.Wait()
		close(ended)
	}()
	limit := time.NewTimer(closeWait)
	defer limit.Stop()
	for wait := readturn.Soon; ; wait = min(2*wait, readturn.Late) {
		again := time.NewTimer(wait)
		select {
		case <-ended:
			again.Stop()
			return true
		case <-limit.C:
			again.Stop()
			return false
		case <-again.C:
			e.stopReaders()
		}
	}
}

// releaseSockets waits for the readers, and restores the options and the read
// deadline of sockets that the caller owns. If a read does not end, the deadline
// is restored nevertheless, and the rest is left to the reader's end.
func (e *Endpoint) releaseSockets() error {
	ended := e.awaitReaders()
	var errs []error
	for i := range e.socket.shards {
		s := &e.socket.shards[i]
		if ended && s.link.Load().Inbox == nil { // else it is another process's to set
			errs = append(errs, s.sock().Release())
		}
		errs = append(errs, s.conn().SetReadDeadline(time.Time{}))
	}
	if !ended {
		return opError("close", nil, e.LocalAddr(), ErrReadPending)
	}
	return errors.Join(errs...)
}
