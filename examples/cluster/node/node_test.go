package main

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/testenv"
)

// The program, as README.md says to try it: one node hears what is typed at another, and
// that it leaves.
func TestPrograms(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, run(t.Context(), []string{"certs", "-dir", dir, "a", "b"}, nil, io.Discard))
	ctx, stop := context.WithCancel(t.Context())
	var a, b testenv.Records
	ended := make(chan error, 2)
	silence, _ := io.Pipe()
	go func() { ended <- run(ctx, []string{"run", "-dir", dir, "a"}, silence, &a) }()
	seed := a.Find(t, "a listens on (.*)")
	in, typed := io.Pipe()
	go func() { ended <- run(t.Context(), []string{"run", "-dir", dir, "-seeds", seed, "b"}, in, &b) }()
	b.Find(t, `\* "a" has joined`)
	_, err := io.WriteString(typed, "hello\n~hi\n")
	require.NoError(t, err)
	a.Find(t, `"b: hello"`)
	a.Find(t, `"b: hi"`)
	require.NoError(t, typed.Close())
	require.NoError(t, <-ended)
	a.Find(t, `\* "b" is gone`)
	stop()
	require.NoError(t, <-ended)
}
