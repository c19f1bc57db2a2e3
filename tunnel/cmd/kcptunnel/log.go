package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/arqnet/kcp/tunnel"
	"golang.org/x/term"
)

// screen is standard error: log records, and below them, on a terminal, a line that
// says how things are.
type screen struct {
	log *patientWriter // what w writes to

	mu       sync.Mutex
	w        io.Writer
	line     string // that stands on the terminal now; guarded by mu, as is w
	terminal bool
}

// newScreen returns the screen of w.
func newScreen(w io.Writer) *screen {
	log := patient(w)
	f, ok := log.w.(*os.File)
	return &screen{log: log, w: log, terminal: ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"}
}

// clear is what removes the line.
const clear = "\r\x1b[K"

// Write writes records of the log above the line.
func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line == "" {
		return s.w.Write(b)
	}
	if _, err := io.WriteString(s.w, clear+string(b)+s.line); err != nil {
		return 0, err
	}
	return len(b), nil
}

// show puts another line in place of the line. A narrow terminal cuts it off.
func (s *screen) show(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line = line
	if line != "" {
		s.line = "\x1b[?7l" + line + "\x1b[?7h"
	}
	_, _ = io.WriteString(s.w, clear+s.line)
}

// logger returns the logger that the flags ask for.
func (s *screen) logger(format string, verbose bool) *slog.Logger {
	options := &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: asText}
	if verbose {
		options.Level = slog.LevelDebug
	}
	logger := func(w io.Writer) *slog.Logger {
		if format == "json" {
			return slog.New(slog.NewJSONHandler(w, options))
		}
		return slog.New(slog.NewTextHandler(w, options))
	}
	s.log.leftOut = func(n int) []byte {
		var b bytes.Buffer
		logger(&b).Warn("the log was not read, and these records are left out", "records", n)
		return b.Bytes()
	}
	return logger(s)
}

// asText makes text of values that say how, such as addresses, and of durations, in JSON
// too. It leaves out an error that is nil.
func asText(_ []string, a slog.Attr) slog.Attr {
	switch {
	case a.Value.Kind() == slog.KindDuration:
		a.Value = slog.StringValue(a.Value.Duration().String())
	case a.Key == "error" && a.Value.Kind() == slog.KindAny && a.Value.Any() == nil:
		return slog.Attr{}
	}
	if s, ok := a.Value.Any().(fmt.Stringer); ok && a.Value.Kind() == slog.KindAny {
		a.Value = slog.StringValue(s.String())
	}
	return a
}

// statusEvery is how often the line is drawn.
const statusEvery = time.Second

// watch shows the status on a terminal until stop is called.
func (s *screen) watch(status func() tunnel.Status) (stop func()) {
	if !s.terminal {
		return func() {}
	}
	return inBackground(func(quit <-chan struct{}) {
		tick := time.NewTicker(statusEvery)
		defer tick.Stop()
		last := status()
		for {
			select {
			case <-quit:
				s.show("")
				return
			case <-tick.C:
				now := status()
				if s.log.busy() { // nobody reads
					continue
				}
				s.show(statusLine(last, now, statusEvery))
				last = now
			}
		}
	})
}

// statusLine says in one line what there is, and what has passed since last.
func statusLine(last, now tunnel.Status, since time.Duration) string {
	parts := []string{plural(now.Sessions, "session"), fmt.Sprintf("%s, %d in all", plural(now.Connections, "connection"), now.Opened)}
	rate := func(name string, before, after uint64) {
		n := float64(0)
		if after > before { // sessions that have ended take theirs away
			n = float64(after-before) / since.Seconds()
		}
		parts = append(parts, fmt.Sprintf("%s %s/s", name, bytesText(n)))
	}
	rate("out", last.Sent, now.Sent)
	rate("in", last.Received, now.Received)
	if now.RTT > 0 {
		parts = append(parts, fmt.Sprintf("rtt %v", now.RTT.Round(100*time.Microsecond)))
	}
	return strings.Join(parts, " | ")
}

// plural returns "1 session", "2 sessions".
func plural(n int, name string) string {
	if n == 1 {
		return "1 " + name
	}
	return fmt.Sprintf("%d %ss", n, name)
}

// bytesText returns a number of bytes in units of 1000.
func bytesText(n float64) string {
	for _, unit := range []string{"B", "KB", "MB"} {
		if n < 999.5 {
			return fmt.Sprintf("%.3g %s", n, unit)
		}
		n /= 1000
	}
	return fmt.Sprintf("%.3g GB", n)
}
