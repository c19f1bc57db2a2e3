package testenv

import (
	"bytes"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Records keeps what is written, such as the records of its Logger, one a line.
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

// Find waits until what was written has a match of pattern, and returns its last group.
func (r *Records) Find(t testing.TB, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	var found []string
	Await(t, func() bool {
		found = re.FindStringSubmatch(r.String())
		return found != nil
	})
	return found[len(found)-1]
}

// Forget forgets what was written up to the end of text.
func (r *Records) Forget(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buf.Next(bytes.LastIndex(r.buf.Bytes(), []byte(text)) + len(text))
}
