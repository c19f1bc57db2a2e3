package tunnel

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// userRecords is how many records of one text one user may cause a second, beyond
	// userRecordsBurst at once. Records of slog.LevelDebug may be debugRecords times as
	// many.
	userRecords      = 10
	userRecordsBurst = 100
	debugRecords     = 20
)

// recordLimit bounds the records of the log that one user causes, by their text: so a
// flood of one leaves the others alone.
type recordLimit struct {
	mu    sync.Mutex
	texts map[string]*recordBucket // texts are constants of this package, so they are few
}

// recordBucket is a token bucket of records.
type recordBucket struct {
	tokens  float64
	at      time.Time // when tokens was right
	leftOut int
}

// allow reports whether a record may be logged now, and how many of its text were left
// out before it.
func (l *recordLimit) allow(text string, level slog.Level, now time.Time) (ok bool, leftOut int) {
	factor := 1.0
	if level < slog.LevelInfo {
		factor = debugRecords
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.texts[text]
	if b == nil {
		b = &recordBucket{tokens: factor * userRecordsBurst, at: now}
		if l.texts == nil {
			l.texts = make(map[string]*recordBucket)
		}
		l.texts[text] = b
	}
	if since := now.Sub(b.at).Seconds(); since > 0 {
		b.tokens, b.at = min(b.tokens+factor*userRecords*since, factor*userRecordsBurst), now
	}
	if b.tokens < 1 {
		b.leftOut++
		return false, 0
	}
	b.tokens--
	leftOut, b.leftOut = b.leftOut, 0
	return true, leftOut
}

// limitedHandler passes on the records that a limit allows.
type limitedHandler struct {
	slog.Handler
	limit *recordLimit
}

// limited returns log with a limit.
func (l *recordLimit) limited(log *slog.Logger) *slog.Logger {
	return slog.New(&limitedHandler{log.Handler(), l})
}

func (h *limitedHandler) Handle(ctx context.Context, r slog.Record) error {
	ok, leftOut := h.limit.allow(r.Message, r.Level, r.Time)
	if !ok {
		return nil
	}
	if leftOut > 0 {
		r.Add("records left out before", leftOut)
	}
	return h.Handler.Handle(ctx, r)
}

func (h *limitedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &limitedHandler{h.Handler.WithAttrs(attrs), h.limit}
}

func (h *limitedHandler) WithGroup(name string) slog.Handler {
	return &limitedHandler{h.Handler.WithGroup(name), h.limit}
}
