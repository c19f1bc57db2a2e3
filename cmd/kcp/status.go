package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

const (
	redrawEvery = 100 * time.Millisecond
	printEvery  = time.Second
	// rateWindow is the time over which the live rate is measured.
	rateWindow = time.Second
	barWidth   = 18
)

// status shows the progress of a demo. On a terminal it redraws its lines;
// elsewhere it prints a line every second.
type status struct {
	out        io.Writer
	redraw     bool
	directions []*direction
	start      time.Time
	history    []sample // oldest first, over rateWindow or slightly more
	drawn      bool
	failed     func(error)          // called when out fails; nil: nothing
	object     func(jsonDemo) error // prints the status with -json; nil: text

	quit, done chan struct{} // nil before run
}

// sample is the bytes received by a point in time.
type sample struct {
	at      time.Time
	arrived []int64
}

func newStatus(out io.Writer, directions ...*direction) *status {
	return &status{out: out, redraw: canRedraw(out), directions: directions, start: time.Now()}
}

// run starts showing the status.
func (s *status) run() {
	s.quit, s.done = make(chan struct{}), make(chan struct{})
	s.note(s.start)
	go func() {
		defer close(s.done)
		every := printEvery
		if s.redraw {
			every = redrawEvery
		}
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-s.quit:
				return
			case now := <-tick.C:
				s.show(now)
			}
		}
	}()
}

// stop stops showing the status. If all went well, it shows the final one.
func (s *status) stop(well bool) {
	if s.quit == nil {
		return
	}
	close(s.quit)
	<-s.done
	switch {
	case well && (s.redraw || !s.drawn):
		s.show(time.Now())
	case s.redraw:
		io.WriteString(s.out, "\n") // the terminal may have echoed ^C
	}
}

// show prints the status as of now.
func (s *status) show(now time.Time) {
	rates := s.rates(now)
	s.note(now)
	var err error
	switch {
	case s.object != nil:
		err = s.object(s.json(now, rates))
	case s.redraw:
		_, err = io.WriteString(s.out, s.block(rates))
	default:
		_, err = io.WriteString(s.out, s.line(now, rates))
	}
	if err != nil && s.failed != nil {
		s.failed(&localError{"writing standard output", err})
	}
	s.drawn = true
}

// json returns the status as an object, except for what the demo as a whole knows.
func (s *status) json(now time.Time, rates []float64) jsonDemo {
	o := jsonDemo{Type: "status", Seconds: now.Sub(s.start).Seconds()}
	for i, dir := range s.directions {
		stats := dir.from.Stats()
		o.Directions = append(o.Directions, jsonDirection{
			Name: dir.name, Size: dir.size, Arrived: dir.arrived.Load(), Rate: rates[i], jsonSegments: segmentsOf(&stats),
		})
	}
	return o
}

// block returns the lines that replace those drawn before. A narrow terminal
// cuts them off, since a line that wraps would spoil the redraw.
func (s *status) block(rates []float64) string {
	var b strings.Builder
	if s.drawn {
		fmt.Fprintf(&b, "\x1b[%dA", len(s.directions))
	}
	b.WriteString("\x1b[?7l")
	for i, dir := range s.directions {
		stats := dir.from.Stats()
		filled := int(barWidth * dir.arrived.Load() / dir.size)
		fmt.Fprintf(&b, "\r  %-14s [%s%s] %4s %-22s resent %5s\x1b[K\n",
			dir.name, strings.Repeat("#", filled), strings.Repeat(".", barWidth-filled), dir.percent(),
			dir.speed(rates[i]), resentShare(&stats))
	}
	b.WriteString("\x1b[?7h")
	return b.String()
}

// line returns the whole status in one line.
func (s *status) line(now time.Time, rates []float64) string {
	var parts []string
	for i, dir := range s.directions {
		stats := dir.from.Stats()
		parts = append(parts, fmt.Sprintf("%s %4s %s resent %s", dir.name, dir.percent(), dir.speed(rates[i]), resentShare(&stats)))
	}
	return fmt.Sprintf("  %5.1fs  %s\n", now.Sub(s.start).Seconds(), strings.Join(parts, "  |  "))
}

// speed returns the rate and the round-trip time of a direction, or how long it
// took if all has arrived.
func (dir *direction) speed(rate float64) string {
	if took := dir.finished.Load(); took > 0 {
		return "done in " + formatTime(time.Duration(took))
	}
	return fmt.Sprintf("%8s/s rtt %s", formatBytes(rate), formatTime(dir.from.Stats().RTT))
}

// note records the bytes received by now.
func (s *status) note(now time.Time) {
	arrived := make([]int64, len(s.directions))
	for i, dir := range s.directions {
		arrived[i] = dir.arrived.Load()
	}
	s.history = append(s.history, sample{now, arrived})
	for len(s.history) > 2 && now.Sub(s.history[1].at) >= rateWindow {
		s.history = s.history[1:]
	}
}

// rates returns the bytes per second since the oldest sample.
func (s *status) rates(now time.Time) []float64 {
	rates := make([]float64, len(s.directions))
	elapsed := now.Sub(s.history[0].at).Seconds()
	for i, dir := range s.directions {
		if elapsed > 0 {
			rates[i] = float64(dir.arrived.Load()-s.history[0].arrived[i]) / elapsed
		}
	}
	return rates
}
