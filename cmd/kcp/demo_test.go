package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
)

var sums = regexp.MustCompile(`(?m)^    (?:sent|received) +([0-9a-f]{64})$`)

// hashes returns the four hashes that a demo has printed: sent and received,
// for each direction.
func hashes(t *testing.T, out string) (all []string) {
	t.Helper()
	for _, m := range sums.FindAllStringSubmatch(out, -1) {
		all = append(all, m[1])
	}
	require.Len(t, all, 4, out)
	return all
}

func TestDemo(t *testing.T) {
	t.Parallel()
	got := runWith(t.Context(), nil, "demo", "-size", "200kB", "-loss", "10%", "-delay", "5ms", "-jitter", "2ms",
		"-duplicate", "5%", "-reorder", "5%", "-seed", "12345")
	require.Equal(t, exitOK, got.code, got.err)
	require.Empty(t, got.err)
	require.Contains(t, got.out, "seed      12345\n")
	require.Contains(t, got.out, "  network   10% loss, 5ms delay, up to 2ms jitter, 5%\n            duplicated, 5% reordered each way\n")
	for _, line := range strings.Split(got.out, "\n") {
		if !strings.Contains(line, "  |  ") { // a line of progress, which terminals do not get
			require.LessOrEqual(t, len(sums.ReplaceAllString(line, "")), foldAt, "wraps on a narrow terminal: %s", line)
		}
	}
	require.Contains(t, got.out, "profile default")
	require.Contains(t, got.out, "ok: both hashes match\n")
	require.NotContains(t, got.out, "\x1b", "escape sequences, though this is no terminal")
	all := hashes(t, got.out)
	require.Equal(t, all[0], all[1])
	require.Equal(t, all[2], all[3])
	require.NotEqual(t, all[0], all[2], "both directions have the same data")

	rows := regexp.MustCompile(`(?m)^  (dial -> listen|listen -> dial) +\S+ .* ([0-9.]+)% +(\d+) of (\d+)$`).FindAllStringSubmatch(got.out, -1)
	require.Len(t, rows, 2, got.out)
	for _, row := range rows {
		require.NotEqual(t, "0", row[3], "nothing was lost: %s", got.out)
		require.NotEqual(t, "0.0", row[2], "nothing was sent again: %s", got.out)
	}
}

func TestDemoMovesAFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte("0123456789"), 5000), 0o600))
	got := runWith(t.Context(), nil, "demo", "-file", path, "-delay", "1ms", "-profile", "lowlatency", "-message")
	require.Equal(t, exitOK, got.code, got.err)
	require.Contains(t, got.out, path+" (50.0 kB)")
	// The output of: yes 0123456789 | head -n 5000 | tr -d '\n' | sha256sum
	const want = "ab8f07056f06af007b6920c695f8ce3a7ffcabbb0e7bdbee29867dbe49f7792b"
	require.Equal(t, []string{want, want, want, want}, hashes(t, got.out))

	demo := func(seed string) []string { // random bytes are those of the seed
		got := runWith(t.Context(), nil, "demo", "-size", "20kB", "-loss", "0", "-delay", "0s", "-jitter", "0s", "-seed", seed)
		require.Equal(t, exitOK, got.code, got.err)
		return hashes(t, got.out)
	}
	require.Equal(t, demo("7"), demo("7"))
	require.NotEqual(t, demo("7")[0], demo("8")[0])
}

func TestDemoRejectsFiles(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for path, want := range map[string]string{
		dir: "not a regular file", empty: "is empty", filepath.Join(dir, "missing"): "missing",
	} {
		got := runWith(t.Context(), nil, "demo", "-file", path)
		require.Equal(t, exitFailed, got.code, path)
		require.Contains(t, got.err, want)
	}
}

func TestDemoFindsCorruption(t *testing.T) {
	t.Parallel()
	for _, damaged := range []string{"dial -> listen", "listen -> dial"} {
		var out, errs bytes.Buffer
		d := newDemo(streams{out: &out, err: &errs})
		done := false // only the damaged direction's receiver uses it
		d.tamper = func(direction string, data []byte) {
			if direction == damaged && !done {
				data[len(data)/2] ^= 1
				done = true
			}
		}
		err := d.main(t.Context(), strings.Fields("-size 30kB -loss 0 -delay 1ms"))
		require.ErrorContains(t, err, "what arrived differs from what was sent")
		require.NotContains(t, out.String(), "ok:")
		all := hashes(t, out.String())
		require.Equal(t, damaged != "dial -> listen", all[0] == all[1])
		require.Equal(t, damaged != "listen -> dial", all[2] == all[3])
		require.Equal(t, exitFailed, report(t.Context(), d.std, "demo", err))
		require.Contains(t, errs.String(), "kcp demo: FAILED")
	}

	var out, errs bytes.Buffer
	d := newDemo(streams{out: &out, err: &errs})
	d.tamper = func(_ string, data []byte) { data[0] ^= 1 }
	err := d.lines.errors(d.main(t.Context(), strings.Fields("-json -size 3kB -loss 0 -delay 1ms")))
	require.Equal(t, exitFailed, report(t.Context(), d.std, "demo", err))
	all := objects(t, out.String())
	require.Equal(t, false, all[len(all)-2]["intact"])
	require.Equal(t, object{"type": "error", "exit_code": 1.0, "message": errDamaged.Error()}, all[len(all)-1])
	require.Empty(t, errs.String())
}

func TestDemoTimesOut(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"-timeout 200ms -delay 10s",  // before the session is accepted
		"-timeout 300ms -size 100GB", // in the middle
	} {
		got := runWith(t.Context(), nil, append([]string{"demo", "-linger", "10ms"}, strings.Fields(args)...)...)
		require.Equal(t, exitFailed, got.code, args)
		require.Contains(t, got.err, "(-timeout), with dial -> listen at 0% and listen -> dial at 0%", args)
		require.NotContains(t, got.out, "ok:", args)
	}
}

func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var out, errs bytes.Buffer
	d := newDemo(streams{out: &out, err: &errs})
	d.tamper = func(string, []byte) { cancel() } // something has arrived
	err := d.main(ctx, strings.Fields("-size 100GB -linger 10ms"))
	require.ErrorContains(t, err, "interrupted, with dial -> listen at")
	require.Equal(t, exitInterrupted, report(ctx, d.std, "demo", err))
}

// statusOf returns a status of two directions that are some way along.
func statusOf(t *testing.T) *status {
	t.Helper()
	conn, err := kcp.Dial("udp", "127.0.0.1:9", &kcp.Config{DialTimeout: -1})
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	up := &direction{name: "dial -> listen", size: 8_000_000, from: conn}
	down := &direction{name: "listen -> dial", size: 8_000_000, from: conn}
	up.arrived.Store(4_000_000)
	down.arrived.Store(8_000_000)
	return newStatus(&bytes.Buffer{}, up, down)
}

func TestStatusRedraws(t *testing.T) {
	s := statusOf(t)
	first := s.block([]float64{123.4e6, 0})
	require.NotContains(t, first, "\x1b[2A", "nothing to draw over yet")
	require.Contains(t, first, "dial -> listen [#########.........]  50% 123.4 MB/s")
	require.Contains(t, first, "listen -> dial [##################] 100%      0 B/s")
	for _, line := range strings.Split(regexp.MustCompile(`\x1b\[[?0-9]*[a-zA-Z]|\r`).ReplaceAllString(first, ""), "\n") {
		require.Less(t, len(line), 80)
	}
	s.drawn = true
	require.Equal(t, "\x1b[2A"+first, s.block([]float64{123.4e6, 0}))

	line := s.line(s.start.Add(1500*time.Millisecond), []float64{2e6, 1000})
	require.Equal(t, "    1.5s  dial -> listen  50%   2.0 MB/s rtt 0s resent 0.0%  |  listen -> dial 100%   1.0 kB/s rtt 0s resent 0.0%\n", line)

	// A direction that has all shows how long it took, and no rate.
	s.directions[1].finished.Store(int64(5310 * time.Millisecond))
	require.Contains(t, s.block([]float64{123.4e6, 0}), "[##################] 100% done in 5.31s")
	require.Contains(t, s.line(s.start.Add(6*time.Second), []float64{2e6, 0}), "listen -> dial 100% done in 5.31s resent")
}

// kcp demo -streams prints a table with figures of each flow, with streams and without, or
// an object.
func TestDemoStreams(t *testing.T) {
	t.Parallel()
	args := []string{"demo", "-streams", "-time", "500ms", "-loss", "0", "-delay", "5ms", "-jitter", "0s", "-duplicate", "0", "-seed", "7"}
	got := runWith(t.Context(), nil, args...)
	require.Equal(t, exitOK, got.code, got.err)
	require.Empty(t, got.err)
	require.NotContains(t, got.out, "\x1b", "escape sequences, though this is no terminal")
	for _, row := range []string{
		` +streams +one session\n +p50 +p99 +p50 +p99\n`, `  state feed( +(\d+ ms|-)){4}\n`, `  chat( +(\d+ ms|-)){4}\n`,
		`  calls( +(\d+ ms|-)){4}\n`, `  download( +[0-9.]+ Mbit/s){2}\n`,
	} {
		require.Regexp(t, row, got.out)
	}
	for _, line := range strings.Split(got.out, "\n") {
		require.LessOrEqual(t, len(line), foldAt, "wraps on a narrow terminal: %s", line)
	}

	got = runWith(t.Context(), nil, append(args, "-json")...)
	require.Equal(t, exitOK, got.code, got.out)
	sessions := last(t, got.out, "result")["sessions"].([]any)
	require.Len(t, sessions, 2)
	flows := sessions[0].(map[string]any)["flows"].([]any)
	require.Len(t, flows, len(flowKinds))
	feed, download := flows[0].(map[string]any), flows[3].(map[string]any)
	require.Equal(t, "state feed", feed["name"])
	require.GreaterOrEqual(t, feed["p50_seconds"], 5e-3)
	require.GreaterOrEqual(t, feed["p99_seconds"], feed["p50_seconds"])
	require.NotContains(t, feed, "bytes_per_second")
	require.NotContains(t, download, "messages")
	require.Contains(t, download, "bytes_per_second")
}
