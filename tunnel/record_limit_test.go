package tunnel

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRecordLimit(t *testing.T) {
	var l recordLimit
	var b bytes.Buffer
	log := l.limited(slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug}))).With("user", "me").WithGroup("g")
	say := func(n int, at time.Time, level slog.Level, text string) int {
		b.Reset()
		for range n {
			require.NoError(t, log.Handler().Handle(context.Background(), slog.NewRecord(at, level, text, 0)))
		}
		return strings.Count(b.String(), "user=me")
	}
	now := time.Unix(1000, 0)
	require.Equal(t, userRecordsBurst, say(1000, now, slog.LevelInfo, "refused"))
	require.Equal(t, 1, say(1, now, slog.LevelInfo, "session ended"), "another text")
	require.Equal(t, debugRecords*userRecordsBurst, say(5000, now, slog.LevelDebug, "connection ended"))
	require.Zero(t, say(1, now, slog.LevelInfo, "refused"))
	require.Equal(t, userRecords, say(1000, now.Add(time.Second), slog.LevelInfo, "refused"))
	require.Contains(t, b.String(), "\"g.records left out before\"=901")
	require.Equal(t, 1, strings.Count(b.String(), "left out"))
	require.Equal(t, userRecordsBurst, say(1000, now.Add(time.Hour), slog.LevelInfo, "refused"))
}

// A user who asks for what is forbidden, again and again, leaves room in the log.
func TestRecordsOfAUserAreLimited(t *testing.T) {
	checkLeaks(t)
	s := startServer(t, `{"me:secret": ["^socks$"]}`, nil)
	conn := login(t, s, "me", "secret")
	for range 1000 {
		stream := start(t, conn, opening{kind: kindListenTCP, target: "127.0.0.1:0"}.append(nil))
		require.Equal(t, codeForbidden, refusalOf(t, stream))
	}
	require.NoError(t, conn.Abort())
	waitFor(t, func() bool { return strings.Contains(s.log.String(), "session ended") })
	require.Less(t, strings.Count(s.log.String(), "msg=refused"), 500)
}
