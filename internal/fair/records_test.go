package fair

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// As many as the burst come at once, and then one each time.
func TestLogLimit(t *testing.T) {
	for _, every := range []time.Duration{10 * time.Millisecond, 250 * time.Millisecond, time.Second, 10 * time.Second} {
		for _, burst := range []int{int(max(time.Second/every, 1)), 1, 7} {
			var l Limit
			now := time.Hour
			allowed := func() (n int) {
				for range 1000 {
					if _, ok := l.Allow(now, every, burst); ok {
						n++
					}
				}
				return n
			}
			require.Equal(t, burst, allowed(), every)
			now += every - 1
			require.Zero(t, allowed(), every)
			now++
			left, ok := l.Allow(now, every, burst)
			require.True(t, ok)
			require.Equal(t, uint64(2000-burst), left, every)
			require.Zero(t, allowed(), every)
			now += time.Hour
			require.Equal(t, burst, allowed(), every)
		}
	}
}

// Each text has a limit of its own, whatever attributes and groups the logger has.
func TestTexts(t *testing.T) {
	var l Records
	var b bytes.Buffer
	log := l.Limited(slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug}))).With("user", "me").WithGroup("g")
	say := func(n int, at time.Time, level slog.Level, text string) int {
		b.Reset()
		for range n {
			require.NoError(t, log.Handler().Handle(context.Background(), slog.NewRecord(at, level, text, 0)))
		}
		return strings.Count(b.String(), "user=me")
	}
	now := time.Unix(1000, 0)
	require.Equal(t, TextBurst, say(1000, now, slog.LevelInfo, "refused"))
	require.Equal(t, 1, say(1, now, slog.LevelInfo, "session ended"), "another text")
	require.Equal(t, TextDebug*TextBurst, say(5000, now, slog.LevelDebug, "connection ended"))
	require.Zero(t, say(1, now, slog.LevelInfo, "refused"))
	require.Equal(t, TextRate, say(1000, now.Add(time.Second), slog.LevelInfo, "refused"))
	require.Contains(t, b.String(), "\"g.records left out before\"=901")
	require.Equal(t, 1, strings.Count(b.String(), "left out"))
	require.Equal(t, TextBurst, say(1000, now.Add(time.Hour), slog.LevelInfo, "refused"))
}
