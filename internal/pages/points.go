package pages

import (
	"encoding/json"
	"time"
)

// points are values over time. If there are more than maxPoints, every second
// one is dropped, and from then on only each second one taken, and so on.
type points struct {
	columns [][]any // the times, and then one for each value
	stride  int     // each stride-th point is taken
	skip    int     // points to drop until the next one is taken
	dropped int
}

// add adds a point: its time in seconds, and its values, each a float64 or nil.
func (p *points) add(at float64, values ...any) {
	if p.skip > 0 {
		p.skip--
		p.dropped++
		return
	}
	p.skip = p.stride - 1
	if p.columns == nil {
		p.columns = make([][]any, 1+len(values))
	}
	p.columns[0] = append(p.columns[0], at)
	for i, v := range values {
		p.columns[1+i] = append(p.columns[1+i], v)
	}
	if n := len(p.columns[0]); n >= 2*maxPoints {
		p.stride *= 2
		p.dropped += n / 2
		for i, c := range p.columns {
			for j := range n / 2 {
				c[j] = c[2*j]
			}
			p.columns[i] = c[:n/2]
		}
	}
}

// MarshalJSON returns the columns, and how many points are not shown.
func (p *points) MarshalJSON() ([]byte, error) {
	columns := p.columns
	if columns == nil {
		columns = [][]any{}
	}
	return json.Marshal(struct {
		Columns [][]any `json:"columns"`
		Dropped int     `json:"dropped"`
	}{columns, p.dropped})
}

// Rows of bins.
const (
	binSent = iota // bytes
	binAcked
	binReceived
	binLost // segments, by cause
	binRows = binLost + maxCauses
)

// bins adds values up over intervals of equal width, which doubles when there
// would be more than maxBins.
type bins struct {
	width time.Duration
	rows  [binRows][]float64
}

// add adds v to a row at a time.
func (b *bins) add(at time.Duration, row int, v float64) {
	for at/b.width >= maxBins {
		b.width *= 2
		for i, r := range b.rows {
			for j := range r {
				if j > 0 {
					x := r[j]
					r[j] = 0
					r[j/2] += x
				}
			}
			b.rows[i] = r[:(len(r)+1)/2]
		}
	}
	i := int(at / b.width)
	for len(b.rows[row]) <= i {
		b.rows[row] = append(b.rows[row], 0)
	}
	b.rows[row][i] += v
}

// finish makes all rows equally long.
func (b *bins) finish() {
	n := 0
	for _, r := range b.rows {
		n = max(n, len(r))
	}
	for i := range b.rows {
		b.rows[i] = append(b.rows[i], make([]float64, n-len(b.rows[i]))...)
	}
}

// MarshalJSON returns the width in seconds and the rows.
func (b *bins) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Width float64     `json:"width"`
		Rows  [][]float64 `json:"rows"`
	}{b.width.Seconds(), b.rows[:]})
}

// unwrap continues 32-bit sequence numbers beyond their end.
type unwrap struct {
	started bool
	last    int64
}

// of returns the number that sn stands for: the nearest to the last one.
func (u *unwrap) of(sn uint32) float64 {
	if !u.started {
		u.started, u.last = true, int64(sn)
		return float64(sn)
	}
	u.last += int64(int32(sn - uint32(u.last)))
	return float64(u.last)
}
