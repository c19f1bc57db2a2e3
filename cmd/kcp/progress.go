package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// progress shows, on one line of a terminal, what a session of listen or dial
// has delivered: what the peer has acknowledged, and what stdout has taken.
type progress struct {
	out    io.Writer
	lines  *jsonLines // nil: text
	size   int64      // bytes of stdin; 0: not known
	now    func() time.Time
	pipe   *pipe
	last   progressSample
	first  time.Time
	drawn  bool
	hidden func() bool // reports that nothing may be drawn; nil: never

	quit, done chan struct{}
}

// progressSample is what had been moved at a time.
type progressSample struct {
	at             time.Time
	sent, received int64
}

// newProgress returns the progress of p on stderr. It returns nil if stderr is not a
// terminal, or if the user types into the session. With -json it prints in any case.
func (n *netcat) newProgress(p *pipe) *progress {
	if n.lines.on {
		return &progress{lines: &n.lines, now: time.Now, pipe: p}
	}
	stderr := n.std.err
	if l, ok := stderr.(*lockedWriter); ok {
		stderr = l.w
	}
	if !canRedraw(stderr) || !n.receive && isTerminal(n.std.in) {
		return nil
	}
	g := &progress{out: n.std.err, now: time.Now, pipe: p}
	if f, ok := n.std.in.(*os.File); ok && !n.receive {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			g.size = info.Size()
		}
	}
	if isTerminal(n.std.out) {
		// What the peer sends stands on the same screen.
		g.hidden = func() bool { return p.written.Load() > 0 }
	}
	return g
}

// run starts showing the progress. It does nothing if g is nil.
func (g *progress) run() {
	if g == nil {
		return
	}
	g.quit, g.done = make(chan struct{}), make(chan struct{})
	g.first = g.now()
	g.last.at = g.first
	go func() {
		defer close(g.done)
		every := redrawEvery * 5
		if g.lines != nil {
			every = printEvery
		}
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-g.quit:
				return
			case <-tick.C:
				g.show()
			}
		}
	}()
}

// stop ends the line, with what was moved in all. err is why the session ended;
// nil: all is delivered. It does nothing if g is nil.
func (g *progress) stop(err error) {
	if g == nil {
		return
	}
	close(g.quit)
	<-g.done
	if !g.drawn {
		return
	}
	fmt.Fprintf(g.out, "\r%s\x1b[K\n", g.total(err))
}

// show draws the line, or erases it if it must be hidden by now.
func (g *progress) show() {
	if g.lines != nil {
		_ = g.lines.print(g.object("status")) // the session goes on without it
		return
	}
	if g.hidden != nil && g.hidden() {
		if g.drawn {
			io.WriteString(g.out, "\r\x1b[K")
		}
		g.drawn = false
		return
	}
	fmt.Fprintf(g.out, "\r\x1b[?7l%s\x1b[K\x1b[?7h", g.line())
	g.drawn = true
}

// sample returns what has been moved by now.
func (g *progress) sample() progressSample {
	s := g.pipe.conn.Stats()
	return progressSample{
		at:       g.now(),
		sent:     g.pipe.sent.Load() - int64(s.WriteBuffered),
		received: int64(g.pipe.written.Load()),
	}
}

// line returns the state as of now. Rates are those since the line before.
func (g *progress) line() string {
	now, stats := g.sample(), g.pipe.conn.Stats()
	elapsed := max(now.at.Sub(g.last.at).Seconds(), 1e-3)
	rate := func(now, last int64) float64 { return max(float64(now-last)/elapsed, 0) }
	parts := []string{now.at.Sub(g.first).Round(time.Second).String()}
	if now.sent > 0 || now.received == 0 {
		sent := "sent " + formatBytes(float64(max(now.sent, 0)))
		if g.size > 0 {
			sent += fmt.Sprintf(" of %s, %d%%", formatBytes(float64(g.size)), 100*min(max(now.sent, 0), g.size)/g.size)
		}
		parts = append(parts, sent, formatBytes(rate(now.sent, g.last.sent))+"/s")
	}
	if now.received > 0 {
		parts = append(parts, "received "+formatBytes(float64(now.received)), formatBytes(rate(now.received, g.last.received))+"/s")
	}
	parts = append(parts, "rtt "+formatTime(stats.RTT), "resent "+resentShare(&stats))
	g.last = now
	return "  " + strings.Join(parts, "  ")
}

// object returns the state as of now. Rates are those since the status before.
func (g *progress) object(kind string) jsonPipe {
	now, stats := g.sample(), g.pipe.conn.Stats()
	elapsed := max(now.at.Sub(g.last.at).Seconds(), 1e-6)
	o := jsonPipe{
		Type: kind, Remote: g.pipe.conn.RemoteAddr().String(), Seconds: now.at.Sub(g.first).Seconds(),
		Sent: max(now.sent, 0), Received: now.received,
		SentRate:     max(float64(now.sent-g.last.sent)/elapsed, 0),
		ReceivedRate: max(float64(now.received-g.last.received)/elapsed, 0),
		jsonSegments: segmentsOf(&stats),
	}
	g.last = now
	return o
}

// printResult prints the result of a session with -json. err is as in stop.
func (g *progress) printResult(err error) {
	g.last = progressSample{at: g.first} // the rates are over all
	o := g.object("result")
	complete := err == nil
	if o.Complete = &complete; !complete {
		o.Error = err.Error()
	}
	_ = g.lines.print(o) // the session is over
}

// total returns what was moved in all.
func (g *progress) total(err error) string {
	verb := "done in"
	if err != nil {
		verb = "stopped after"
	}
	now, stats := g.sample(), g.pipe.conn.Stats()
	took := now.at.Sub(g.first)
	mean := float64(now.sent+now.received) / max(took.Seconds(), 1e-3)
	return fmt.Sprintf("  %s %s  sent %s  received %s  %s/s  resent %s", verb, formatTime(took),
		formatBytes(float64(max(now.sent, 0))), formatBytes(float64(now.received)), formatBytes(mean), resentShare(&stats))
}
