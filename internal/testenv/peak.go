package testenv

import "sync/atomic"

// Peak is the greatest number that it was shown. Several goroutines may show it numbers
// at once.
type Peak struct{ n atomic.Int64 }

// Saw shows p the number n.
func (p *Peak) Saw(n int64) {
	for old := p.n.Load(); n > old && !p.n.CompareAndSwap(old, n); old = p.n.Load() {
	}
}

// Load returns the greatest number so far, at least 0.
func (p *Peak) Load() int64 { return p.n.Load() }
