package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// meter shows how far a transfer is. A terminal has one line, which is drawn again and
// again; elsewhere a line is printed every second. A nil meter shows nothing.
type meter struct {
	out        io.Writer
	redraw     bool
	line       func(elapsed time.Duration) string
	start      time.Time
	quit, done chan struct{}
}

// startMeter returns a meter at work.
func startMeter(out io.Writer, redraw bool, line func(elapsed time.Duration) string) *meter {
	m := &meter{out: out, redraw: redraw, line: line, start: time.Now(), quit: make(chan struct{}), done: make(chan struct{})}
	go m.run()
	return m
}

func (m *meter) run() {
	defer close(m.done)
	every := time.Second
	if m.redraw {
		every /= 4
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-m.quit:
			return
		case <-tick.C:
			m.show("\n")
		}
	}
}

// show prints the line. A narrow terminal cuts it off, and the next goes over it.
func (m *meter) show(end string) {
	text := m.line(time.Since(m.start))
	if m.redraw {
		fmt.Fprintf(m.out, "\r\x1b[?7l%s\x1b[K\x1b[?7h", text)
		return
	}
	fmt.Fprint(m.out, text+end)
}

// stop shows the last state of a terminal's line, and leaves it.
func (m *meter) stop() {
	if m == nil {
		return
	}
	close(m.quit)
	<-m.done
	if m.redraw {
		m.show("")
		fmt.Fprintln(m.out)
	}
}

// pace is a rate in bytes per second.
type pace struct {
	at    time.Duration
	bytes int64
}

// since returns the rate since the call before.
func (p *pace) since(at time.Duration, bytes int64) float64 {
	rate := float64(bytes-p.bytes) / max(at-p.at, time.Millisecond).Seconds()
	p.at, p.bytes = at, bytes
	return max(rate, 0)
}

// meter returns the meter of a session of listen or dial, on standard error. It is nil if
// that is no terminal, or if the user types into the session or reads it there.
func (n *netcat) meter(p *pipe) *meter {
	stderr := n.std.err
	if l, ok := stderr.(*lockedWriter); ok {
		stderr = l.w
	}
	if n.json || !canRedraw(stderr) || isTerminal(n.std.out) || !n.receive && isTerminal(n.std.in) {
		return nil
	}
	size := int64(0)
	if f, ok := n.std.in.(*os.File); ok && !n.receive {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			size = info.Size()
		}
	}
	var out, in pace
	return startMeter(n.std.err, true, func(elapsed time.Duration) string {
		return p.progress(elapsed, size, &out, &in)
	})
}

// delivered returns the bytes of standard input that the peer has acknowledged.
func (p *pipe) delivered() int64 {
	return max(p.sent.Load()-int64(p.conn.Stats().WriteBuffered), 0)
}

// progress describes the state of a session. size is the number of bytes to send; 0: it
// is not known.
func (p *pipe) progress(elapsed time.Duration, size int64, out, in *pace) string {
	sent, received, stats := p.delivered(), int64(p.written.Load()), p.conn.Stats()
	share := ""
	if size > 0 {
		share = fmt.Sprintf(" of %s, %d%%", formatBytes(float64(size)), 100*min(sent, size)/size)
	}
	return fmt.Sprintf("  %s  sent %s%s  %s/s  received %s  %s/s  rtt %s  resent %s", elapsed.Round(time.Second),
		formatBytes(float64(sent)), share, formatBytes(out.since(elapsed, sent)),
		formatBytes(float64(received)), formatBytes(in.since(elapsed, received)), formatTime(stats.RTT), resentShare(&stats))
}
