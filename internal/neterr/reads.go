package neterr

import (
	"errors"
	"os"
	"syscall"
	"time"
)

const (
	// ManyFailures is how many read errors in a row make a socket suspect.
	ManyFailures = 8
	// LastingErrors is how long a socket may return nothing but errors.
	LastingErrors = 5 * time.Second
	// manyTimeouts is how many time-outs in a row that interrupt has not caused
	// count as errors, if there is more than one in timeoutGap.
	manyTimeouts = 64
	timeoutGap   = 20 * time.Millisecond
)

// Failures are the errors in a row of a socket's reads. Its zero value is none.
// Only the present reader of the socket uses it.
type Failures struct {
	errors, timeouts int
	since            time.Duration // time of the first of errors, or of timeouts, since the epoch
	personal         bool          // one of errors was of the system: it may concern one packet
}

// Many reports whether the socket is suspect.
func (f *Failures) Many() bool { return f.errors >= ManyFailures }

// TimedOut records a time-out, at a time. asked says that it was asked for. It reports
// false if the socket returns time-outs without end.
func (f *Failures) TimedOut(asked bool, now time.Duration) bool {
	if f.timeouts == 0 && f.errors == 0 {
		f.since = now
	}
	if asked {
		f.timeouts = 0
		return true
	}
	f.timeouts++
	return f.timeouts < manyTimeouts || now-f.since >= time.Duration(f.timeouts)*timeoutGap
}

// Failed records an error, at a time. It returns for how long to pause before the next
// read. last says that errors have lasted, and the socket cannot be read any more.
func (f *Failures) Failed(err error, now time.Duration) (pause time.Duration, last bool) {
	if f.errors == 0 {
		f.since = now
	}
	f.errors++
	f.personal = f.personal || isPersonal(err)
	switch {
	case !f.Many():
		return 0, false
	case !f.personal && now-f.since >= LastingErrors:
		return 0, true
	}
	return min(time.Millisecond<<min(f.errors-ManyFailures, 8), 100*time.Millisecond), false
}

// TimedOut reports whether err is of a read deadline that has passed.
func TimedOut(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// isPersonal reports whether a read error may concern a single packet, or pass by
// itself: it is of the system, or a time-out.
func isPersonal(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) || TimedOut(err)
}
