package fair

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Limit bounds how often something is done, such as writing a record of a log: a token
// bucket as one number (the generic cell rate algorithm). The zero value is ready. It
// needs no lock.
type Limit struct {
	next    atomic.Int64  // ns: when the bucket is full again
	leftOut atomic.Uint64 // times that were not allowed since the last one that was
}

// Allow reports whether it may be done at now, and how many times it was not before that.
// every is the mean time between two; burst of them may come at once.
func (l *Limit) Allow(now, every time.Duration, burst int) (leftOut uint64, ok bool) {
	for {
		next := l.next.Load()
		full := max(next, int64(now))
		if full-int64(now) > int64(every)*int64(burst-1) {
			l.leftOut.Add(1)
			return 0, false
		}
		if l.next.CompareAndSwap(next, full+int64(every)) {
			return l.leftOut.Swap(0), true
		}
	}
}

// Records allows TextRate records of one text a second, and TextBurst at once. At
// slog.LevelDebug it allows TextDebug times as many.
const (
	TextRate  = 10
	TextBurst = 100
	TextDebug = 20
)

// LeftOut is the attribute of a record that says how many were left out before it.
const LeftOut = "records left out before"

// Records bounds the records of a log by their texts: so a flood of one leaves the others
// alone. The zero value is ready. It is safe for concurrent use.
type Records struct {
	mu    sync.Mutex
	begun time.Time         // the first record's time; the origin of all
	texts map[string]*Limit // texts are constants of programs, so they are few
}

// of returns the limit of a text, and the time of a record for it.
func (t *Records) of(text string, at time.Time) (*Limit, time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.texts == nil {
		t.begun, t.texts = at, make(map[string]*Limit)
	}
	l := t.texts[text]
	if l == nil {
		l = new(Limit)
		t.texts[text] = l
	}
	return l, at.Sub(t.begun)
}

// Limited returns a logger that leaves out what is too much for log.
func (t *Records) Limited(log *slog.Logger) *slog.Logger { return slog.New(&handler{log.Handler(), t}) }

// handler passes on the records that are not too many.
type handler struct {
	slog.Handler
	texts *Records
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	factor := 1
	if r.Level < slog.LevelInfo {
		factor = TextDebug
	}
	l, now := h.texts.of(r.Message, r.Time)
	leftOut, ok := l.Allow(now, time.Second/time.Duration(factor*TextRate), factor*TextBurst)
	if !ok {
		return nil
	}
	if leftOut > 0 {
		r.Add(LeftOut, leftOut)
	}
	return h.Handler.Handle(ctx, r)
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.Handler.WithAttrs(attrs), h.texts}
}

func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.Handler.WithGroup(name), h.texts}
}
