package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/examples/internal/lab"
)

// All players see each other, hear what is said, and are told of the end.
func TestDemo(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:4000", "[::1]:4000"} {
		var out lab.Output
		const players = 6
		results, err := demo(t.Context(), settings{addr: addr, players: players, duration: time.Second}, &out)
		require.NoError(t, err)
		require.Len(t, results, players)
		for i, r := range results {
			require.Equal(t, io.EOF, r.end)
			require.Equal(t, players, r.players)
			require.Positive(t, r.worlds)
			require.Contains(t, r.lines, fmt.Sprintf("bot %d: hello from %d", i, i))
			require.Contains(t, r.lines, "the server closes")
		}
	}
}

// A player in the terminal: the field, chat, and both ends' goodbye.
func TestPlay(t *testing.T) {
	l, err := kcp.Listen("udp", "127.0.0.1:0", config())
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	var log, seen, other lab.Output
	served, played := make(chan error, 1), make(chan error, 1)
	go func() { served <- newServer(&log).run(ctx, l) }()
	in, typed := io.Pipe()
	args := []string{"play", "-addr", l.Addr().String(), "-name"}
	go func() { played <- run(t.Context(), append(args, "ann"), in, &seen, &seen) }()
	_, err = io.WriteString(typed, "a\nhello \x1b[2J there\n")
	require.NoError(t, err)
	shows := func(o *lab.Output, text string) {
		t.Helper()
		await.True(t, func() bool { return strings.Contains(o.String(), text) })
	}
	shows(&seen, "ann: hello ?[2J there")
	shows(&seen, "players: 1")
	require.NoError(t, run(t.Context(), append(args, "bob"), strings.NewReader("hi\n"), &other, &other))
	shows(&seen, "bob: hi")
	shows(&seen, "bob has left")
	stop()
	require.NoError(t, <-served)
	require.NoError(t, <-played)
	shows(&seen, "the server has closed")
}

// Names and chat do not steer the terminal of the server, nor begin lines of their own.
func TestLogIsPrintable(t *testing.T) {
	var log lab.Output
	s := newServer(&log)
	for _, name := range []string{"\x1b]0;title\a", "\x1b[2J", "a\nb", "\u202egnp", "\xff", "\u2028", "\u009b2J"} {
		s.say("%s is here as number %d", name, 1)
	}
	lines := strings.Split(strings.TrimSuffix(log.String(), "\n"), "\n")
	require.Len(t, lines, 7)
	for _, line := range lines {
		require.Contains(t, line, " is here as number 1")
		require.False(t, strings.ContainsFunc(line, func(r rune) bool { return !strconv.IsPrint(r) }), "%q", line)
	}
	require.NotContains(t, string(s.lines[0]), "?", "players get what was said")
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"fly"}, {"serve", "-nope"}} {
		var messages lab.Output
		require.Error(t, run(t.Context(), args, nil, io.Discard, &messages))
		require.Contains(t, messages.String(), "usage: game serve|play|demo")
	}
	require.NoError(t, run(t.Context(), []string{"play", "-h"}, nil, io.Discard, io.Discard))
	require.Error(t, run(t.Context(), []string{"serve", "-addr", "nowhere"}, nil, io.Discard, io.Discard))
}
