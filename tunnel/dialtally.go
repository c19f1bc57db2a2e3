package tunnel

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/arqnet/kcp/internal/neterr"
)

// Histogram counts times.
type Histogram struct {
	Bounds []float64 // in seconds
	Counts []uint64  // of times up to each bound
	Count  uint64    // of all
	Sum    float64   // seconds
}

// histogram is Histogram while it changes.
type histogram struct {
	counts [11]atomic.Uint64 // by bound, and those above all
	sum    atomic.Int64      // ns
}

// bounds are those of a histogram.
func (*histogram) bounds() []float64 {
	return []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5}
}

// observe counts a time.
func (h *histogram) observe(d time.Duration) {
	i, _ := slices.BinarySearch(h.bounds(), d.Seconds())
	h.counts[i].Add(1)
	h.sum.Add(int64(d))
}

// figures returns the counts.
func (h *histogram) figures() Histogram {
	f := Histogram{Bounds: h.bounds(), Sum: time.Duration(h.sum.Load()).Seconds()}
	for i := range h.counts {
		f.Count += h.counts[i].Load()
		if i < len(f.Bounds) {
			f.Counts = append(f.Counts, f.Count)
		}
	}
	return f
}

// dialTally counts what an end dials for its peers.
type dialTally struct {
	resolve, connect histogram

	mu     sync.Mutex
	failed map[string]uint64 // by cause
}

// failures returns the counts by cause.
func (d *dialTally) failures() map[string]uint64 {
	all := map[string]uint64{"forbidden": 0, "refused": 0, "timeout": 0, "unreachable": 0, "resolve": 0, "descriptors": 0, "other": 0}
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.Copy(all, d.failed)
	return all
}

// fail counts a target that was not dialled because of err, and returns the cause.
// Nothing: nobody waits for it any more, or the peer does not speak the protocol.
func (d *dialTally) fail(err error) (cause string) {
	var dialling *dialError
	switch failed := errors.As(err, &dialling); {
	case errors.Is(err, refusal(codeForbidden)):
		cause = "forbidden"
	case !failed:
		return ""
	case dialling.cause == errTooMany, neterr.Is(dialling.cause, syscall.EMFILE), neterr.Is(dialling.cause, syscall.ENFILE):
		cause = "descriptors"
	case dialling.refusal == codeConnRefused:
		cause = "refused"
	case dialling.refusal == codeTimeout:
		cause = "timeout"
	case dialling.refusal == codeUnreachable:
		cause = "unreachable"
	case dialling.refusal == codeUnresolvable:
		cause = "resolve"
	default:
		cause = "other"
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failed == nil {
		d.failed = make(map[string]uint64)
	}
	d.failed[cause]++
	return cause
}

const (
	// slowTarget is how long a target may take and not be in the log.
	slowTarget = time.Second
	// saidEvery and saidAtOnce bound the records of slow and failed targets of a user.
	saidEvery, saidAtOnce = 20 * time.Second, 3
)

// dialled notes how long a target has taken, and how that has ended.
func (s *session) dialled(network, target string, resolve, connect time.Duration, err error) {
	var dns *net.DNSError
	if resolve > 0 {
		s.dials.resolve.observe(resolve)
	}
	if network == "tcp" && !errors.As(err, &dns) && !errors.Is(err, context.Canceled) {
		s.dials.connect.observe(connect)
	}
	if err != nil || resolve+connect < slowTarget {
		return
	}
	if _, say := s.account.saidSlow.Allow(s.account.now(), saidEvery, saidAtOnce); say {
		s.log.Info("target slow", "target", target, "resolve", resolve.Round(time.Millisecond), "connect", connect.Round(time.Millisecond))
	}
}
