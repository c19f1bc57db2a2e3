package fec

import "slices"

const (
	maxSamples = 512 // what a learner holds, two groups of the largest kind
	minWindow  = 32  // the fewest newest samples it judges apart from the rest
	minRun     = 32  // the shortest run that tells a ratio after a contradiction
)

// Bounds of the searches that allow for contradictions. One takes up to a
// millisecond, and some 2 µs for each of its samples.
const (
	minSearch    = 128 // the fewest samples to search; as many have to come until the next search
	searchPeriod = 50  // milliseconds between two searches
)

// learner finds the ratio that a peer uses from the seqids and types of its
// shards.
//
// As groups begin at multiples of their size, the ratio alone decides what type
// goes with which seqid. The learner takes the one ratio that no sample of a run
// contradicts. If all ratios are contradicted, a new run begins.
//
// A forged or damaged packet now and then may end all runs early. The learner
// therefore counts at times, for every ratio there is, how many of its samples
// contradict it. It takes the one with the fewest if it stands out from all
// others. A few wrong samples make every ratio worse, and the right one still
// stands out.
type learner struct {
	run     candidates
	runs    int      // that have ended with no ratio left
	samples []sample // a ring from head on once it has maxSamples
	head    int
	agree   int // newest samples in a row that fit the ratio in use
	against int // samples that did not
}

func newLearner() *learner {
	l := new(learner)
	l.run.reset()
	return l
}

// sample is the seqid and the type of a shard. The type is in the form that
// tally adds up: -1 for data, 1 for parity.
type sample struct {
	seqid uint32
	typ   int16
}

func newSample(seqid uint32, isData bool) sample {
	if isData {
		return sample{seqid, -1}
	}
	return sample{seqid, 1}
}

// add takes a sample; fits tells whether it fits the ratio in use.
func (l *learner) add(s sample, fits bool) {
	if fits {
		l.agree++
	} else {
		l.agree = 0
		l.against++
	}
	if !l.run.add(s, fits) {
		l.runs++
		l.run.reset()
		l.run.add(s, fits)
	}
	if len(l.samples) < maxSamples {
		if len(l.samples) == cap(l.samples) {
			l.samples = slices.Grow(l.samples, max(minWindow, len(l.samples)))
		}
		l.samples = append(l.samples, s)
		return
	}
	l.samples[l.head] = s
	l.head = (l.head + 1) % maxSamples
}

// settled reports whether the ratio in use has fitted for so long that no other
// can be the right one: two patterns of periods p and q that agree on p+q
// places are one.
func (l *learner) settled() bool { return l.agree >= 2*maxShards }

// only returns the one ratio that the present run leaves, if it is not inUse. A
// run has to be longer where it follows on a contradiction.
func (l *learner) only(inUse ratio) (ratio, bool) {
	r, ok := l.run.only()
	switch {
	case !ok || r == inUse:
		return ratio{}, false
	case (inUse.known() || l.runs > 0) && l.run.shards < minRun, inUse.known() && l.run.against < 2:
		return ratio{}, false
	}
	return r, true
}

// searchable reports whether a search may find what the runs do not.
func (l *learner) searchable(inUse ratio) bool {
	return l.runs > 0 && len(l.samples) >= minSearch && (!inUse.known() || l.against >= 2)
}

// search returns the ratio that the samples speak for, if it is not inUse. It
// looks at all samples first and then, as they may be from before a change, at
// ever fewer of the newest.
func (l *learner) search(inUse ratio) (ratio, bool) {
	for n := len(l.samples); n >= minWindow; n /= 4 {
		if r, ok := l.judge(n, inUse); ok {
			return r, true
		}
	}
	return ratio{}, false
}

// newest returns the n newest samples, in two parts.
func (l *learner) newest(n int) (a, b []sample) {
	start := l.head + len(l.samples) - n
	if start >= len(l.samples) {
		start -= len(l.samples)
	}
	a = l.samples[start:min(start+n, len(l.samples))]
	return a, l.samples[:n-len(a)]
}

// judge is search over the n newest samples.
func (l *learner) judge(n int, inUse ratio) (ratio, bool) {
	v := verdict{best: n + 1, second: n + 1, current: n + 1}
	a, b := l.newest(n)
	data := countData(a) + countData(b)
	if data == 0 || data == n {
		return ratio{}, false
	}
	for size := 2; size <= maxShards; size++ {
		var t tally
		t.add(a, size)
		t.add(b, size)
		v.take(&t, data, size, inUse)
	}
	// One sample in eight may be wrong; the more are, the more must the next
	// best be worse, and the ratio in use as well.
	switch {
	case 8*v.best > n, v.second <= 2*v.best, v.ratio == inUse:
		return ratio{}, false
	case inUse.known() && v.current < 2*v.best+2:
		return ratio{}, false
	}
	return v.ratio, true
}

// verdict has numbers of samples that contradict a ratio.
type verdict struct {
	best, second, current int   // of the best ratio, the next best, that in use
	ratio                 ratio // the best
}

// take compares all ratios of groups of the given size. If no shard of a
// group were data, every data sample would contradict that; each further place that
// is taken for data adds the samples of parity there and takes off the samples of data.
func (v *verdict) take(t *tally, data, size int, inUse ratio) {
	wrong := data
	for d := 1; d < size; d++ {
		wrong += int(t[d-1])
		if d == inUse.data && size-d == inUse.parity {
			v.current = wrong
		}
		if wrong < v.best {
			v.best, v.second, v.ratio = wrong, v.best, ratio{d, size - d}
		} else if wrong < v.second {
			v.second = wrong
		}
	}
}

// tally is the sum of the types of the samples at each place of a group.
type tally [maxShards]int16

func (t *tally) add(samples []sample, size int) {
	for _, s := range samples {
		t[s.seqid%uint32(size)] += s.typ
	}
}

func countData(samples []sample) (n int) {
	for _, s := range samples {
		if s.typ < 0 {
			n++
		}
	}
	return n
}
