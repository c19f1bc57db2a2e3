package observe

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http/httptest"
	"os/exec"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/stats"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/require"
)

// endpoint returns an endpoint of a network, which ends with the test.
func endpoint(t *testing.T, network *netsim.Network, addr string) *kcp.Endpoint {
	pc, err := network.Listen(addr)
	require.NoError(t, err)
	e, err := kcp.NewEndpoint(pc, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
	return e
}

// busy runs f with two endpoints between which n sessions have moved data.
func busy(t *testing.T, n int, f func(t *testing.T, s *Endpoints, client, server *kcp.Endpoint, conns []*kcp.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		network := netsim.NewNetwork(1, netsim.LinkConfig{Delay: 10 * time.Millisecond, Loss: 0.05})
		server, client := endpoint(t, network, "10.0.0.1:4000"), endpoint(t, network, "10.0.0.2:5000")
		l, err := server.Listen()
		require.NoError(t, err)
		var s Endpoints
		s.Add("server", server)
		s.Add("client", client)
		var conns []*kcp.Conn
		for range n {
			a, err := client.Dial(context.Background(), server.LocalAddr(), nil)
			require.NoError(t, err)
			_, err = a.Write(make([]byte, 30000))
			require.NoError(t, err)
			b, err := l.AcceptKCP(context.Background())
			require.NoError(t, err)
			_, err = io.ReadFull(b, make([]byte, 30000))
			require.NoError(t, err)
			conns = append(conns, a)
		}
		f(t, &s, client, server, conns)
	})
}

// text returns what Prometheus would read.
func text(t *testing.T, s *Endpoints) string {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	require.NoError(t, r.Register(s))
	families, err := r.Gather()
	require.NoError(t, err)
	var out bytes.Buffer
	e := expfmt.NewEncoder(&out, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		require.NoError(t, e.Encode(f))
	}
	return out.String()
}

// has wants a line, or a part of one, in out.
func has(t *testing.T, out, want string) {
	t.Helper()
	require.True(t, strings.Contains(out, want), "%s is missing", want)
}

func TestCollector(t *testing.T) {
	busy(t, 3, func(t *testing.T, s *Endpoints, client, server *kcp.Endpoint, conns []*kcp.Conn) {
		out := text(t, s)
		for _, want := range []string{
			`kcp_sessions{endpoint="client"} 3`,
			`kcp_sessions_opened_total{endpoint="server",side="accepted"} 3`,
			`kcp_sessions_opened_total{endpoint="client",side="dialled"} 3`,
			`kcp_payload_sent_bytes_total{endpoint="client"} 90000`,
			`kcp_payload_received_bytes_total{endpoint="server"} 90000`,
			`kcp_session_rtt_seconds{endpoint="client",share="0.5"} 0.02`,
			`kcp_session_queueing_seconds{endpoint="client",share="0.5"} 0`,
			`kcp_session_rtt_min_seconds{endpoint="client",share="1"} 0.02`,
			`kcp_limited_seconds_total{cause="handshake",endpoint="client"} 0.06`, // three sessions, 20 ms each
			`kcp_limited_seconds_total{cause="peer_window",endpoint="client"} 0`,
			`kcp_limited_seconds_total{cause="congestion_window",endpoint="client"} `,
		} {
			has(t, out, want)
		}
		require.NoError(t, conns[0].Abort(0, ""))
		out = text(t, s)
		has(t, out, `kcp_sessions_ended_total{cause="aborted",endpoint="client"} 1`)
		has(t, out, `kcp_payload_sent_bytes_total{endpoint="client"} 90000`) // never falls

		s.Add("client", client)() // it is there already
		has(t, text(t, s), `kcp_sessions{endpoint="client"} 2`)
		s.Add("server", conns[1].Endpoint())
		text(t, s) // no metric twice
	})
}

// The limits are beside what they limit, with the defaults of a Config, and streams are
// counted at both ends.
func TestLimitsAndStreams(t *testing.T) {
	busy(t, 1, func(t *testing.T, s *Endpoints, _, _ *kcp.Endpoint, conns []*kcp.Conn) {
		for range 3 {
			a, err := conns[0].OpenStream(context.Background(), nil)
			require.NoError(t, err)
			_, err = a.Write([]byte("x"))
			require.NoError(t, err)
			if a.ID() == 1 {
				require.NoError(t, a.Reset(7))
			}
		}
		time.Sleep(time.Second)
		out := text(t, s)
		for _, want := range []string{
			`kcp_max_sessions{endpoint="server"} 65536`,
			`kcp_max_sessions_backlog{endpoint="server"} 128`,
			`kcp_max_sessions_half_open{endpoint="server"} 1024`,
			`kcp_max_buffered_bytes{endpoint="server"} 1.073741824e+09`,
			`kcp_streams{endpoint="client"} 2`,
			`kcp_streams{endpoint="server"} 2`,
			`kcp_streams_opened_total{endpoint="client",side="local"} 3`,
			`kcp_streams_opened_total{endpoint="server",side="peer"} 3`,
			`kcp_streams_ended_total{endpoint="client"} 1`,
			`kcp_streams_reset_total{endpoint="client"} 1`,
			`kcp_streams_refused_total{endpoint="server"} 0`,
		} {
			has(t, out, want)
		}
	})
}

// Removed endpoints are gone, and two of the same name do not break a scrape.
func TestAddAndRemove(t *testing.T) {
	busy(t, 1, func(t *testing.T, _ *Endpoints, client, server *kcp.Endpoint, _ []*kcp.Conn) {
		var s Endpoints
		remove := s.Add("same", client)
		s.Add("same", server)
		has(t, text(t, &s), `kcp_sessions_opened_total{endpoint="same",side="dialled"} 1`)
		remove()
		remove()
		has(t, text(t, &s), `kcp_sessions_opened_total{endpoint="same",side="accepted"} 1`)
	})
}

// Every count of stats.Endpoint and stats.Totals is in a metric.
func TestEveryCountIsThere(t *testing.T) {
	var s stats.Endpoint
	var totals stats.Totals
	n := uint64(1000)
	names := make(map[uint64]string)
	fill(reflect.ValueOf(&s).Elem(), "EndpointStats", &n, names)
	fill(reflect.ValueOf(&totals).Elem(), "SessionTotals", &n, names)
	require.Greater(t, len(names), 60)
	for _, m := range metrics() {
		for _, v := range m.values(&s, &totals) {
			delete(names, uint64(v.n))
		}
	}
	for value, name := range names {
		switch name {
		case "EndpointStats.EndedForMemory": // Ended.Memory has it
		case "SessionTotals.FEC.PeerRatio.Data", "SessionTotals.FEC.PeerRatio.Parity", "SessionTotals.Probes.MTU": // no counts
		default:
			t.Errorf("%s (%d) is in no metric", name, value)
		}
	}
}

// fill sets every number in v to another value.
func fill(v reflect.Value, name string, n *uint64, names map[uint64]string) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			inner := name + "." + f.Name
			if f.Anonymous {
				inner = name
			}
			fill(v.Field(i), inner, n, names)
		}
	case reflect.Uint64:
		v.SetUint(*n)
		names[*n] = name
		*n++
	case reflect.Int:
		v.SetInt(int64(*n))
		names[*n] = name
		*n++
	}
}

// Prometheus' own checker finds nothing wrong with names, types and help texts.
func TestPromtool(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed (Debian: apt-get install prometheus)")
	}
	var out string
	busy(t, 2, func(t *testing.T, s *Endpoints, _, _ *kcp.Endpoint, _ []*kcp.Conn) { out = text(t, s) })
	cmd := exec.Command(promtool, "check", "metrics")
	cmd.Stdin = strings.NewReader(out)
	found, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", found)
	require.Empty(t, string(found))
}

// The handler serves the page and the figures, has the names of sessions, and finds
// sessions by those and by their numbers.
func TestHandler(t *testing.T) {
	busy(t, 3, func(t *testing.T, s *Endpoints, _, _ *kcp.Endpoint, conns []*kcp.Conn) {
		s.NameSessions(func(c *kcp.Conn) string { return map[*kcp.Conn]string{conns[1]: "Alice"}[c] })
		for q, want := range map[string]int{"alice": 1, strconv.FormatUint(uint64(conns[0].Conv()), 16): 2} { // both ends
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/debug/kcp/stats.json?n=2&q="+q, nil))
			require.Equal(t, 200, w.Code)
			require.Equal(t, want == 1, strings.Contains(w.Body.String(), `"name":"Alice"`))
			var a struct{ Sessions, Matching int }
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &a))
			require.Equal(t, []int{6, want}, []int{a.Sessions, a.Matching})
		}
	})
}
