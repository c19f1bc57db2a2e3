package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
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
	require.Contains(t, got.out, "  network   10% loss, 5ms delay, up to 2ms jitter each way\n")
	require.Contains(t, got.out, "profile default")
	require.Contains(t, got.out, "ok: both hashes match\n")
	require.NotContains(t, got.out, "\x1b", "escape sequences, though this is no terminal")
	all := hashes(t, got.out)
	require.Equal(t, all[0], all[1])
	require.Equal(t, all[2], all[3])
	require.NotEqual(t, all[0], all[2], "both directions have the same data")

	rows := regexp.MustCompile(`(?m)^  (dial -> listen|listen -> dial) +\S+ .* ([0-9.]+)% +(\d+) of (\d+) +0$`).FindAllStringSubmatch(got.out, -1)
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

	var out bytes.Buffer
	d := newDemo(streams{out: &out})
	d.tamper = func(_ string, data []byte) { data[0] ^= 1 }
	require.Equal(t, errDamaged, d.main(t.Context(), strings.Fields("-json -size 3kB -loss 0 -delay 1ms")))
	require.Equal(t, false, last(t, out.String())["intact"])
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

// A terminal's line is drawn over, and stays at the end with the last state. Elsewhere
// there is a line a second.
func TestMeter(t *testing.T) {
	for _, redraw := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			m := startMeter(&out, redraw, func(elapsed time.Duration) string { return elapsed.String() })
			time.Sleep(1100 * time.Millisecond)
			m.stop()
			want := "1s\n"
			if redraw {
				want = ""
				for _, line := range []string{"250ms", "500ms", "750ms", "1s", "1.1s"} {
					want += "\r\x1b[?7l" + line + "\x1b[K\x1b[?7h"
				}
				want += "\n"
			}
			require.Equal(t, want, out.String())
		})
	}
	var none *meter
	none.stop()
	var p pace
	require.InDelta(t, 1.5e6, p.since(2*time.Second, 3e6), 1)
	require.InDelta(t, 1e6, p.since(3*time.Second, 4e6), 1)
	require.Zero(t, p.since(4*time.Second, 3e6))
}
