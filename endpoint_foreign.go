package kcp

import (
	"errors"
	"net"
	"time"

	"github.com/arqnet/kcp/internal/neterr"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/wakeup"
)

// Sockets that somebody else may use, too: sockets of NewEndpoint. Their owners may
// set read deadlines, their reads may not be interruptible, and their errors may
// last. None of it must leave a call waiting forever.

// closeWait is how long Endpoint.Close waits for writes in progress, and for the
// readers of a socket that it does not close.
const closeWait = time.Second

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
	if !neterr.TimedOut(err) || e.stopped() {
		return false
	}
	if !s.failures.TimedOut(s.asked.Swap(false), e.now()) {
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
	e.Counters.ReadErrors.Add(1)
	e.noteSocketError(err)
	e.refused(err)
	e.troubled(err)
	e.warn("socket read failed", err)
	wait, last := s.failures.Failed(err, e.now())
	if last {
		e.shut(&SocketError{err})
	}
	if last || wait == 0 {
		return !last
	}
	pause := time.NewTimer(wait)
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
	each(waiting, func(c *Conn) { c.endFor(session.CauseRefused, nil) })
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
	for wait := wakeup.Soon; ; wait = min(2*wait, wakeup.Late) {
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
		return opError("close", nil, e.LocalAddr(), errReadPending)
	}
	return errors.Join(errs...)
}
