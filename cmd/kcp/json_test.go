package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// object is a line of -json.
type object map[string]any

// objects decodes the output of -json. All of it has to be objects with a type.
func objects(t *testing.T, out string) (all []object) {
	t.Helper()
	for line := range strings.Lines(out) {
		var o object
		require.NoError(t, json.Unmarshal([]byte(line), &o), line)
		require.Contains(t, []any{"status", "result"}, o["type"], line)
		all = append(all, o)
	}
	require.NotEmpty(t, all)
	return all
}

// last returns the last object, which must be a result.
func last(t *testing.T, out string) object {
	t.Helper()
	all := objects(t, out)
	o := all[len(all)-1]
	require.Equal(t, "result", o["type"], out)
	return o
}

func TestDemoJSON(t *testing.T) {
	t.Parallel()
	got := runWith(t.Context(), nil, "demo", "-json", "-size", "200kB", "-loss", "10%", "-delay", "2ms", "-seed", "12345")
	require.Equal(t, exitOK, got.code, got.out)
	require.Empty(t, got.err)
	r := last(t, got.out)
	require.Equal(t, true, r["intact"])
	require.Equal(t, 12345.0, r["seed"])
	directions := r["directions"].([]any)
	require.Len(t, directions, 2)
	for i, name := range []string{"dial -> listen", "listen -> dial"} {
		d := object(directions[i].(map[string]any))
		require.Equal(t, name, d["name"])
		require.Equal(t, 200e3, d["size_bytes"])
		require.Len(t, d["sent_sha256"], 64)
		require.Equal(t, d["sent_sha256"], d["received_sha256"])
		require.Positive(t, d["seconds"])
		require.GreaterOrEqual(t, r["seconds"], d["seconds"])
		for _, name := range []string{"lost_packets", "segments_resent"} {
			require.Positive(t, d[name], name)
		}
		require.Less(t, d["lost_packets"], d["relayed_packets"])
		require.Greater(t, d["segments_sent"], 140.0, "of 200 kB")
		require.GreaterOrEqual(t, d["rtt_seconds"], 4e-3, "of 2 ms each way")
	}
}

func TestNetcatJSON(t *testing.T) {
	t.Parallel()
	l, addr := listen(t.Context(), t, strings.NewReader("answer"))
	d := dial(t.Context(), strings.NewReader("question?"), addr, "-json")
	require.Equal(t, exitOK, d.wait(t), d.err.String())
	require.Equal(t, exitOK, l.wait(t))
	require.Equal(t, "answer", d.out.String(), "the data's way")
	r := last(t, d.err.String())
	require.Equal(t, []any{addr, 9.0, 6.0, true}, []any{r["remote"], r["sent_bytes"], r["received_bytes"], r["complete"]})
	require.Positive(t, r["seconds"])
	require.Positive(t, r["segments_sent"])
	require.NotContains(t, r, "error")
}

func TestPingJSON(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		out, err := pings(t, b, func(p *pinger) { p.json = true })
		require.NoError(t, err)
		all := objects(t, out)
		require.Len(t, all, 4)
		require.Equal(t, object{"type": "status", "seq": 2.0, "answered": true, "rtt_seconds": 0.04, "took_seconds": 0.04}, all[1])
		require.Equal(t, object{
			"type": "result", "remote": "peer", "seconds": 2.04, "sent": 3.0, "answered": 3.0, "lost": 0.0,
			"rtt_min_seconds": 0.04, "rtt_avg_seconds": 0.04, "rtt_max_seconds": 0.04, "rtt_mdev_seconds": 0.0,
		}, all[3])

		b.cut(dialler)
		out, err = pings(t, b, func(p *pinger) { p.json, p.count = true, 1 })
		require.Error(t, err)
		all = objects(t, out)
		require.Equal(t, object{"type": "status", "seq": 1.0, "answered": false, "took_seconds": 2.0}, all[0])
		require.Equal(t, object{"type": "result", "remote": "peer", "seconds": 2.0, "sent": 1.0, "answered": 0.0, "lost": 1.0, "rtt_mdev_seconds": 0.0}, all[1])
	})
}
