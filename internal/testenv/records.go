package testenv

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"sync"
)

// Records is a slog.Handler that keeps what it gets as text, one record a line.
type Records struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write appends p to the records.
func (r *Records) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.Write(p)
}

// Logger returns a logger that writes to r.
func (r *Records) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(r, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Of returns the records that have all of what is wanted.
func (r *Records) Of(want ...string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(r.buf.String()), "\n")
	return slices.DeleteFunc(lines, func(l string) bool {
		return slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(l, w) })
	})
}

// String returns all records.
func (r *Records) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.String()
}
