package recovery

import "github.com/arqnet/kcp/internal/container"

const (
	// overdueMargin is the least by which a segment has to be late, in milliseconds.
	overdueMargin = 5
	// OverdueReach is how many segments are looked at, from the oldest in flight on, and
	// MostOverdue how many may be in flight. More show by their ACKs what is missing.
	OverdueReach = 8
	MostOverdue  = 16
	// OverdueSends is how often a segment may have been sent. A path that takes nothing
	// of what this end sends is not to get it again each round trip.
	OverdueSends = 2
)

// Overdue finds segments that are lost by the una of what the peer sends. Its data bears
// the time at which it left. So it is known what must have arrived before, however long
// the data was in a queue. Times are in milliseconds, the peer's on its own clock. The
// zero value is ready.
type Overdue struct {
	at      container.Serial // when the peer's latest data came
	delay   int32            // of it, from the peer's clock to this one
	first   int32            // age of the first segment that una covered, less the delay then
	age     int32            // smoothed difference of later ones from first, times 8
	dev     int32            // its mean deviation, times 4
	sampled bool             // first, age and dev are valid
}

// Arrived records data of the peer that left at ts.
func (o *Overdue) Arrived(now, ts container.Serial) { o.at, o.delay = now, now.Diff(ts) }

// Covered records that the latest data is the first whose una covers a segment, which was
// sent once, at sent.
func (o *Overdue) Covered(sent container.Serial) {
	age := o.at.Diff(sent) - o.delay
	if !o.sampled {
		o.first, o.age, o.dev, o.sampled = age, 0, o.at.Diff(sent)/2, true
		return
	}
	off := age - o.first - o.age>>3
	o.age += off
	o.dev += max(off, -off) - o.dev>>2
}

// Before returns the time before which a segment must have left that is lost, unless the
// latest data acknowledges it. ok is false if none came now, or there is nothing to
// compare it with. rtt is the least round trip.
func (o *Overdue) Before(now container.Serial, rtt int32) (sent container.Serial, ok bool) {
	age := max(o.first+o.age>>3+o.delay+max(o.dev, overdueMargin), rtt+overdueMargin)
	return now - container.Serial(age), o.sampled && o.at == now
}
