package main

import (
	"io"
	"sync"
	"time"
)

const (
	// maxWaiting is how many bytes may wait for whoever reads the log.
	maxWaiting = 1 << 20
	// flushTime is how long the end of the program waits for the last of it.
	flushTime = time.Second
)

// patientWriter writes on a goroutine of its own, so that nothing waits if the reader of
// a pipe has stopped, or a terminal (Ctrl-S). What does not fit is left out.
type patientWriter struct {
	w io.Writer
	// leftOut returns what to write once the reader goes on, instead of n writes; nil:
	// nothing is.
	leftOut func(n int) []byte

	mu      sync.Mutex
	waiting [][]byte
	bytes   int
	lost    int           // writes that were left out
	idle    chan struct{} // closed when all is written; nil: nothing is being written
}

// patient returns a patientWriter to w.
func patient(w io.Writer) *patientWriter {
	if p, ok := w.(*patientWriter); ok {
		return p
	}
	return &patientWriter{w: w}
}

func (p *patientWriter) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bytes+len(b) > maxWaiting {
		p.lost++
		return len(b), nil
	}
	p.waiting = append(p.waiting, append([]byte(nil), b...))
	p.bytes += len(b)
	if p.idle == nil {
		p.idle = make(chan struct{})
		go p.write()
	}
	return len(b), nil
}

// write writes what waits, until nothing does.
func (p *patientWriter) write() {
	for {
		p.mu.Lock()
		waiting := p.waiting
		p.waiting = nil
		if len(waiting) == 0 {
			close(p.idle)
			p.idle = nil
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		for _, b := range waiting {
			_, _ = p.w.Write(b)
			p.mu.Lock()
			p.bytes -= len(b)
			p.mu.Unlock()
		}
		p.mu.Lock()
		lost := p.lost
		p.lost = 0
		p.mu.Unlock()
		if lost > 0 && p.leftOut != nil {
			_, _ = p.Write(p.leftOut(lost))
		}
	}
}

// flush waits until all is written, for so long at most.
func (p *patientWriter) flush(limit time.Duration) {
	p.mu.Lock()
	idle := p.idle
	p.mu.Unlock()
	if idle == nil {
		return
	}
	select {
	case <-idle:
	case <-time.After(limit):
	}
}
