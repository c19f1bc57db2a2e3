package pages

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/qlog"
	"github.com/arqnet/kcp/stats"
	"github.com/arqnet/kcp/trace"
	"github.com/stretchr/testify/require"
)

// pageOf returns the page of a trace that the hooks have written, and its data.
func pageOf(t *testing.T, hooks func(h *kcp.Trace)) (string, map[string]any) {
	t.Helper()
	var trace, page bytes.Buffer
	w := qlog.NewWriter(&trace, &qlog.Options{Client: true, Conv: 7, MaxBytes: -1})
	hooks(w.Trace())
	require.NoError(t, w.Close())
	require.NoError(t, WriteTrace(&page, &trace, "name <b>"))
	m := regexp.MustCompile(`(?m)^<script>const trace = (.*);</script>$`).FindSubmatch(page.Bytes())
	require.NotNil(t, m)
	var data map[string]any
	require.NoError(t, json.Unmarshal(m[1], &data))
	return page.String(), data
}

func column(data map[string]any, name string, i int) []any {
	columns := data[name].(map[string]any)["columns"].([]any)
	if i >= len(columns) {
		return nil
	}
	return columns[i].([]any)
}

// The page has what the trace has, and nothing from elsewhere.
func TestTracePage(t *testing.T) {
	page, data := pageOf(t, func(h *kcp.Trace) {
		h.State(trace.SessionDialled, nil)
		h.Sent(1<<32-1, 1376, 1, 200)
		h.Sent(0, 1376, 1, 200) // the numbers wrap
		h.Lost(1<<32-1, 1376, 1, trace.LossFastRetransmit)
		h.Sent(1<<32-1, 1376, 2, 200)
		h.Spurious(1<<32 - 1)
		h.Repeated(0, 1376)
		h.Acked(1<<32-1, 1376, 2)
		h.Received(5, 100)
		h.RTT(30, 20, 100)
		h.Metrics(trace.Metrics{CongestionWindow: 2, SegmentSize: 1000, SRTT: 20, PacingRate: 5000})
		h.Dropped(24, fmt.Errorf("</script><script>alert(1)</script>"))
	})
	require.Equal(t, []any{4294967295., 4294967296.}, column(data, "sent", 1))
	require.Equal(t, []any{4294967295.}, column(data, "resent", 1))
	require.Equal(t, []any{4294967295.}, column(data, "losses", 1))
	require.Equal(t, []any{0.}, column(data, "losses", 2))
	require.Equal(t, []any{"fast retransmit"}, data["causes"])
	require.Equal(t, []any{4294967296.}, column(data, "copies", 1))
	require.Equal(t, []any{30.}, column(data, "rtt", 1))
	require.Equal(t, []any{2000.}, column(data, "window", 1))
	require.Equal(t, []any{5000.}, column(data, "pace", 1))
	totals := data["totals"].(map[string]any)
	for name, n := range map[string]float64{"sent": 2, "retransmitted": 1, "copies": 1, "acked": 1, "received": 1, "lost": 1, "spurious": 1, "dropped": 1} {
		require.Equal(t, n, totals[name], name)
	}
	require.NotContains(t, page, "<b>")
	require.NotContains(t, page, "<script>alert")
	require.NotRegexp(t, `(src|href)=`, regexp.MustCompile(`(?s)<script>.*?</script>`).ReplaceAllString(page, ""))
	require.Contains(t, page, "MIT License")
}

// The page tells how long a segment of each stream took.
func TestPageHasStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, data := pageOf(t, func(h *kcp.Trace) {
			h.Stream(1, 5)
			h.Sent(1, 100, 1, 200)
			h.Sent(2, 100, 1, 200) // of none
			time.Sleep(time.Second)
			h.Acked(2, 100, 1)
			h.Stream(1, 5)
			h.Lost(1, 100, 1, trace.LossTimeout)
			h.Stream(1, 5)
			h.Sent(1, 100, 2, 200)
			h.Stream(1, 5)
			h.Repeated(1, 100)
			h.Stream(9, 8)
			h.Received(9, 10)
			time.Sleep(time.Second)
			h.Acked(1, 100, 2)
			h.Stream(3, 7)
			h.Sent(3, 100, 1, 200)
			time.Sleep(3 * time.Second)
			h.Received(10, 10) // the end, without an acknowledgement
		})
		stream := func(id, sent, resent, lost, received, longest, at float64) map[string]any {
			return map[string]any{"id": id, "sent": sent, "resent": resent, "lost": lost, "received": received, "longest": longest, "at": at}
		}
		require.Equal(t, []any{stream(5, 1, 1, 1, 0, 2, 0), stream(0, 1, 0, 0, 1, 1, 0), stream(8, 0, 0, 0, 1, 0, 0), stream(7, 1, 0, 0, 0, 3, 2)}, data["streams"])
	})
	_, data := pageOf(t, func(h *kcp.Trace) { h.Sent(1, 100, 1, 200) })
	require.Empty(t, data["streams"])
}

// The page tells for how long what has limited the session, in all and by intervals.
func TestPageHasLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, data := pageOf(t, func(h *kcp.Trace) {
			h.Metrics(trace.Metrics{LimitedBy: stats.LimitApplication})
			time.Sleep(time.Second)
			h.Metrics(trace.Metrics{LimitedBy: stats.LimitPeerWindow})
			time.Sleep(25 * time.Millisecond)
			h.Metrics(trace.Metrics{LimitedBy: stats.LimitPeerWindow, InFlight: 1})
			time.Sleep(time.Hour)
			h.Metrics(trace.Metrics{LimitedBy: stats.LimitApplication})
			time.Sleep(3 * time.Second)
			h.Sent(1, 100, 1, 200)
		})
		limits := data["limits"].(map[string]any)
		require.Equal(t, []any{"application", "peer's window"}, limits["names"])
		require.Equal(t, []any{4., 3600.025}, limits["seconds"])
		bins := limits["bins"].(map[string]any)
		width, sums := bins["width"].(float64), make([]float64, 2)
		rows := bins["rows"].([]any)
		for j := range rows[0].([]any) {
			both := 0.
			for i := range sums {
				v := rows[i].([]any)[j].(float64)
				sums[i] += v
				both += v
			}
			require.LessOrEqual(t, both, width+1e-9)
		}
		require.InDeltaSlice(t, []float64{4, 3600.025}, sums, 1e-6)
		require.InDelta(t, width, rows[1].([]any)[10], 1e-9)
	})
	l := newLimits()
	for i := range 100 {
		l.change(fmt.Sprint("limit ", i), time.Duration(i)*time.Second)
	}
	require.Len(t, l.names, binRows)
}

// Bad traces are errors, and nothing is written.
func TestPageRefuses(t *testing.T) {
	var page bytes.Buffer
	require.ErrorIs(t, WriteTrace(&page, strings.NewReader("hello"), "x"), qlog.ErrFormat)
	require.Zero(t, page.Len())
}

// A long trace makes a page of bounded size, with points from all of it.
func TestPageIsBounded(t *testing.T) {
	d := newData("x")
	const events, others = 3 * maxPoints, 2 * maxStreams
	for i := range events {
		e := qlog.Event{Time: time.Duration(i) * time.Millisecond, Name: "quic:packet_sent"}
		e.Data.Header.PacketNumber = uint32(i)
		e.Data.Raw.PayloadLength = 10
		e.Data.Transmissions = 1
		d.add(&e)
		if i >= others {
			continue
		}
		d.add(&qlog.Event{Time: e.Time, Name: fmt.Sprint("other", i), Data: qlog.EventData{New: []byte(strings.Repeat("x", 2*maxText))}})
		lost := e
		lost.Name, lost.Data.Cause = "quic:packet_lost", fmt.Sprint("cause ", i)
		require.NoError(t, json.Unmarshal(fmt.Appendf(nil, `{"frames":[{"stream_id":%d}]}`, i+1), &lost.Data))
		d.add(&lost)
	}
	d.finish(&qlog.Header{})
	n := len(d.Sent.columns[0])
	require.Less(t, n, 2*maxPoints)
	require.Greater(t, n, maxPoints/2)
	require.Equal(t, events, n+d.Sent.dropped)
	require.InDelta(t, events/1000, d.Sent.columns[0][n-1].(float64), events/1000/10)
	require.Len(t, d.Causes, maxCauses)
	require.Len(t, d.Events, maxEvents)
	require.Len(t, d.Streams.all, maxStreams)
	require.LessOrEqual(t, len(d.Streams.flight), maxFlight)
	require.Equal(t, others-maxEvents, d.MoreEvent)
	sum, lost := 0., 0.
	for _, v := range d.Bins.rows[binSent] {
		sum += v
	}
	for _, r := range d.Bins.rows[binLost:] {
		require.LessOrEqual(t, len(r), maxBins)
		for _, v := range r {
			lost += v
		}
	}
	require.Equal(t, float64(10*events), sum)
	require.Equal(t, float64(others), lost)
	// A time far away costs no more.
	d.Bins.add(100*365*24*time.Hour, binSent, 1)
	require.LessOrEqual(t, len(d.Bins.rows[binSent]), maxBins)
}
