package pages

import (
	"encoding/json"
	"slices"
	"time"
)

// limits is for how long each limit has kept the session from sending more.
type limits struct {
	names   []string // by row of bins
	times   []time.Duration
	bins    bins
	present int // row; -1: none yet
	since   time.Duration
}

func newLimits() *limits { return &limits{bins: bins{width: firstBin}, present: -1} }

// change takes the limit that holds from a time on.
func (l *limits) change(name string, at time.Duration) {
	l.until(at)
	if name = cut(name); name == "" {
		return
	}
	l.present = slices.Index(l.names, name)
	if l.present < 0 && len(l.names) < binRows {
		l.present = len(l.names)
		l.names, l.times = append(l.names, name), append(l.times, 0)
	}
}

// until counts the present limit up to a time.
func (l *limits) until(at time.Duration) {
	if l.present >= 0 && at > l.since {
		l.times[l.present] += at - l.since
		for l.bins.add(at, l.present, 0); l.since < at; {
			end := min(at, (l.since/l.bins.width+1)*l.bins.width)
			l.bins.add(l.since, l.present, (end - l.since).Seconds())
			l.since = end
		}
	}
	l.since = max(at, l.since)
}

// MarshalJSON returns the names, with the seconds of each in all and by intervals.
func (l *limits) MarshalJSON() ([]byte, error) {
	seconds := make([]float64, len(l.times))
	for i, d := range l.times {
		seconds[i] = d.Seconds()
	}
	return json.Marshal(struct {
		Names   []string  `json:"names"`
		Seconds []float64 `json:"seconds"`
		Bins    *bins     `json:"bins"`
	}{append([]string{}, l.names...), seconds, &l.bins})
}
