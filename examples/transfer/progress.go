package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// progress shows on one line of a terminal how far something is; nil shows nothing.
type progress struct{ out io.Writer }

// newProgress returns nil if out is not a terminal that can erase a line.
func newProgress(out io.Writer) *progress {
	f, ok := out.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return nil
	}
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	return &progress{out}
}

// show shows what done returns, of total bytes, twice a second until stop is called,
// which erases the line.
func (p *progress) show(verb string, total int64, done func() int64) (stop func()) {
	if p == nil {
		return func() {}
	}
	quit, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		tick := time.NewTicker(time.Second / 2)
		defer tick.Stop()
		start, first := time.Now(), done()
		for {
			select {
			case <-quit:
				fmt.Fprint(p.out, "\r\x1b[K")
				return
			case <-tick.C:
				n := min(done(), total)
				rate := float64(n-first) / time.Since(start).Seconds()
				fmt.Fprintf(p.out, "\r%s: %d of %d MB, %d %%, %.1f MB/s\x1b[K",
					verb, n/1e6, total/1e6, 100*n/max(total, 1), rate/1e6)
			}
		}
	}()
	return func() { close(quit); <-gone }
}
