package qlog

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/stats"
	"github.com/arqnet/kcp/trace"
	"github.com/stretchr/testify/require"
)

// Every hook writes one record, of which every byte is known.
func TestRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		w := NewWriter(&out, &Options{
			Client: true, Conv: 0xbadcafe,
			Local: &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 5000}, Remote: &net.UDPAddr{IP: net.ParseIP("2001:db8::1"), Port: 4000},
		})
		h := w.Trace()
		h.State(trace.SessionDialled, nil)
		h.MTU(1400)
		h.Signal(true, "HELLO")
		time.Sleep(20*time.Millisecond + 50*time.Microsecond)
		h.Signal(false, "WELCOME")
		h.State(trace.SessionEstablished, nil)
		h.Stream(7, 5)
		h.Sent(7, 1376, 1, 200)
		h.Repeated(7, 1376)
		h.Received(3, 20)
		h.RTT(21, 20, 50)
		h.Metrics(trace.Metrics{LimitedBy: stats.LimitPacing, CongestionWindow: 10, PacingRate: 1000, InFlight: 1, BytesInFlight: 1400, Queued: 2,
			RemoteWindow: 128, SegmentSize: 1376, SRTT: 20, RTTVar: 10, RTO: 50, MinRTT: 20050})
		h.Metrics(trace.Metrics{CongestionWindow: 1<<31 - 1, SegmentSize: 1376})
		h.CongestionState("", "startup")
		h.CongestionState("startup", "drain")
		h.Lost(7, 1376, 1, trace.LossTailProbe)
		h.Stream(8, 6)
		h.Lost(8, 1376, 1, trace.LossFastRetransmit)
		h.Lost(9, 1376, 1, trace.LossReordering)
		h.Spurious(7)
		h.Acked(1<<32-1, 1376, 2)
		h.MTU(1472)
		h.Moved("10.0.0.3:6000")
		h.Dropped(24, errors.New(`with "quotes" and </script>`))
		h.Datagram(trace.DatagramSent, 100)
		h.Datagram(trace.DatagramDropped, 0)
		h.State(trace.SessionClosing, nil)
		h.State(trace.SessionEnded, kcp.ErrReset)
		h.Sent(8, 1, 1, 1) // too late
		require.NoError(t, w.Close())
		require.Equal(t, want, strings.ReplaceAll(out.String(), "\x1e", "^"))
	})
}

const want = `^{"file_schema":"urn:ietf:params:qlog:file:sequential","serialization_format":"application/qlog+json-seq","title":"kcp session","trace":{"event_schemas":["urn:ietf:params:qlog:events:quic-12","https://github.com/arqnet/kcp/qlog#1"],"vantage_point":{"type":"client"},"common_fields":{"group_id":"0badcafe","time_format":"relative_to_epoch","reference_time":{"clock_type":"monotonic","epoch":"unknown","wall_clock_time":"2000-01-01T00:00:00Z"}}}}
^{"time":0,"name":"quic:connection_started","data":{"local":{"ip_v4":"10.0.0.2","port_v4":5000,"connection_ids":[]},"remote":{"ip_v6":"2001:db8::1","port_v6":4000,"connection_ids":[]}}}
^{"time":0,"name":"quic:connection_state_updated","data":{"new":"attempted"}}
^{"time":0,"name":"quic:mtu_updated","data":{"new":1400}}
^{"time":0,"name":"kcp:signal_sent","data":{"signal":"HELLO"}}
^{"time":20.050,"name":"kcp:signal_received","data":{"signal":"WELCOME"}}
^{"time":20.050,"name":"quic:connection_state_updated","data":{"old":"attempted","new":"handshake_confirmed"}}
^{"time":20.050,"name":"quic:packet_sent","data":{"header":{"packet_type":"1RTT","packet_number":7},"raw":{"payload_length":1376},"frames":[{"frame_type":"stream","stream_id":5}],"transmissions":1,"rto":200}}
^{"time":20.050,"name":"quic:packet_sent","data":{"header":{"packet_type":"1RTT","packet_number":7},"raw":{"payload_length":1376},"redundant":true}}
^{"time":20.050,"name":"quic:packet_received","data":{"header":{"packet_type":"1RTT","packet_number":3},"raw":{"payload_length":20}}}
^{"time":20.050,"name":"quic:recovery_metrics_updated","data":{"bytes_in_flight":1400,"packets_in_flight":1,"packets_queued":2,"limited_by":"pacing","remote_window":176128,"congestion_window":13760,"pacing_rate":8000,"smoothed_rtt":20,"rtt_variance":10,"latest_rtt":21,"rto":50,"min_rtt":20.05}}
^{"time":20.050,"name":"quic:recovery_metrics_updated","data":{"bytes_in_flight":0,"packets_in_flight":0,"packets_queued":0,"limited_by":"application","remote_window":0}}
^{"time":20.050,"name":"quic:congestion_state_updated","data":{"new":"startup"}}
^{"time":20.050,"name":"quic:congestion_state_updated","data":{"old":"startup","new":"drain"}}
^{"time":20.050,"name":"quic:packet_lost","data":{"header":{"packet_type":"1RTT","packet_number":7},"raw":{"payload_length":1376},"trigger":"pto_expired","cause":"tail loss probe","transmissions":1}}
^{"time":20.050,"name":"quic:packet_lost","data":{"header":{"packet_type":"1RTT","packet_number":8},"raw":{"payload_length":1376},"frames":[{"frame_type":"stream","stream_id":6}],"trigger":"reordering_threshold","cause":"fast retransmit","transmissions":1}}
^{"time":20.050,"name":"quic:packet_lost","data":{"header":{"packet_type":"1RTT","packet_number":9},"raw":{"payload_length":1376},"trigger":"time_threshold","cause":"reordering window","transmissions":1}}
^{"time":20.050,"name":"kcp:spurious_loss","data":{"packet_number":7}}
^{"time":20.050,"name":"quic:packets_acked","data":{"packet_number_space":"application_data","packet_numbers":[4294967295],"payload_length":1376,"transmissions":2}}
^{"time":20.050,"name":"quic:mtu_updated","data":{"old":1400,"new":1472}}
^{"time":20.050,"name":"quic:tuple_assigned","data":{"tuple_id":"1","tuple_remote":{"ip_v4":"10.0.0.3","port_v4":6000,"connection_ids":[]}}}
^{"time":20.050,"name":"quic:packet_dropped","data":{"raw":{"length":24},"trigger":"invalid","details":"with \"quotes\" and \u003c/script\u003e"}}
^{"time":20.050,"name":"kcp:datagram_sent","data":{"raw":{"payload_length":100}}}
^{"time":20.050,"name":"kcp:datagram_dropped","data":{"raw":{"payload_length":0}}}
^{"time":20.050,"name":"quic:connection_state_updated","data":{"old":"handshake_confirmed","new":"closing"}}
^{"time":20.050,"name":"quic:connection_state_updated","data":{"old":"closing","new":"closed"}}
^{"time":20.050,"name":"quic:connection_closed","data":{"initiator":"remote","trigger":"application","reason":"kcp: session reset by the peer"}}
`

// blocked is a writer that waits.
type blocked struct {
	bytes.Buffer
	until chan struct{}
}

func (b *blocked) Write(p []byte) (int, error) {
	<-b.until
	return b.Buffer.Write(p)
}

// A writer that does not go on holds up nobody, and no more than a megabyte is
// kept for it; what is left out is counted.
func TestSlowWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &blocked{until: make(chan struct{})}
		w := NewWriter(out, nil)
		h := w.Trace()
		const events = 20000
		for i := range uint32(events) {
			h.Sent(i, 1, 1, 1)
		}
		require.Less(t, cap(w.pending), 3*maxPending)
		close(out.until)
		synctest.Wait()
		h.Sent(events, 1, 1, 1)
		require.NoError(t, w.Close())
		written, lost := 0, uint64(0)
		_, err := Read(&out.Buffer, func(e Event) error {
			switch e.Name {
			case "quic:packet_sent":
				written++
			case "kcp:events_lost":
				lost += e.Data.Count
			}
			return nil
		})
		require.NoError(t, err)
		require.Positive(t, lost)
		require.Equal(t, events+1, written+int(lost))
	})
}

// A trace ends at its limit, and says how much is missing.
func TestMaxBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		w := NewWriter(&out, &Options{MaxBytes: 2000})
		for i := range uint32(100) {
			w.Trace().Sent(i, 1, 1, 1)
		}
		require.NoError(t, w.Close())
		require.Less(t, out.Len(), 2300)
		require.Contains(t, out.String(), `"kcp:events_lost"`)
	})
}

type failing struct{}

func (failing) Write(p []byte) (int, error) { return 0, io.ErrClosedPipe }

func TestWriterFails(t *testing.T) {
	w := NewWriter(failing{}, nil)
	w.Trace().Sent(1, 1, 1, 1)
	require.ErrorIs(t, w.Close(), io.ErrClosedPipe)
}

// What is no trace is refused with a reason; one that was cut off is read up to
// there.
func TestReadRefuses(t *testing.T) {
	header := want[:strings.Index(want, "\n")+1]
	header = strings.ReplaceAll(header, "^", "\x1e")
	read := func(text string) (n int, err error) {
		_, err = Read(strings.NewReader(text), func(Event) error { n++; return nil })
		return n, err
	}
	for name, text := range map[string]string{
		"empty":       "",
		"no text":     "hello",
		"other JSON":  "\x1e{}\n",
		"not JSON":    "\x1e{]\n",
		"bad event":   header + "\x1e{]\n\x1e{}\n",
		"bad time":    header + "\x1e{\"time\":-1}\n",
		"huge time":   header + "\x1e{\"time\":1e300}\n",
		"wrong type":  header + "\x1e{\"time\":0,\"data\":{\"header\":{\"packet_number\":-1}}}\n",
		"long record": header + "\x1e{\"time\":0,\"name\":\"" + strings.Repeat("x", maxRecord) + "\"}\n",
	} {
		_, err := read(text)
		require.ErrorIs(t, err, ErrFormat, name)
	}
	good := header + "\x1e{\"time\":1,\"name\":\"x\",\"data\":{}}\n"
	for cut := len(header); cut <= len(good); cut++ {
		n, err := read(good[:cut])
		require.NoError(t, err, cut)
		require.LessOrEqual(t, n, 1)
	}
	stop := errors.New("enough")
	_, err := Read(strings.NewReader(good), func(Event) error { return stop })
	require.Equal(t, stop, err)
}

// Each session gets a file of its own, as many as are allowed, that is complete
// when the session has ended.
func TestDir(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		network := netsim.NewNetwork(1, netsim.LinkConfig{Delay: 10 * time.Millisecond, Loss: 0.1})
		endpoint := func(addr string, cfg *kcp.Config) *kcp.Endpoint {
			pc, err := network.Listen(addr)
			require.NoError(t, err)
			e, err := kcp.NewEndpoint(pc, cfg)
			require.NoError(t, err)
			t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
			return e
		}
		server := endpoint("10.0.0.1:4000", nil)
		l, err := server.Listen()
		require.NoError(t, err)
		traces := NewDir(dir, &DirOptions{MaxFiles: 2})
		client := endpoint("10.0.0.2:5000", &kcp.Config{Tracer: traces.Trace})
		for range 3 {
			a, err := client.Dial(context.Background(), server.LocalAddr(), nil)
			require.NoError(t, err)
			_, err = a.Write(make([]byte, 50000))
			require.NoError(t, err)
			b, err := l.AcceptKCP(context.Background())
			require.NoError(t, err)
			_, err = io.ReadFull(b, make([]byte, 50000))
			require.NoError(t, err)
			_, _ = b.Close(), a.Close()
		}
		require.NoError(t, traces.Close())
	})
	files, err := filepath.Glob(filepath.Join(dir, "*-client.sqlog"))
	require.NoError(t, err)
	require.Len(t, files, 2)
	for _, name := range files {
		f, err := os.Open(name)
		require.NoError(t, err)
		counts := make(map[string]int)
		last := ""
		h, err := Read(f, func(e Event) error {
			counts[e.Name]++
			last = e.Name
			return nil
		})
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.True(t, h.Client)
		require.False(t, h.Start.IsZero())
		conv, err := strconv.ParseUint(h.Group, 16, 32)
		require.NoError(t, err)
		require.Positive(t, conv)
		require.Equal(t, "quic:connection_closed", last)
		require.Greater(t, counts["quic:packet_sent"], 50000/1400)
		require.Positive(t, counts["quic:packet_lost"])
	}
}

// A folder that does not exist costs the trace, not the session; Close ends the
// traces of sessions that go on, and none begins after it.
func TestDirFails(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		network := netsim.NewNetwork(1, netsim.LinkConfig{Delay: 10 * time.Millisecond})
		pc, err := network.Listen("10.0.0.2:5000")
		require.NoError(t, err)
		e, err := kcp.NewEndpoint(pc, &kcp.Config{DialTimeout: -1})
		require.NoError(t, err)
		c, err := e.Dial(context.Background(), &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 4000}, nil)
		require.NoError(t, err)
		require.Nil(t, NewDir(filepath.Join(dir, "missing"), nil).Trace(c))
		traces := NewDir(dir, nil)
		h := traces.Trace(c)
		h.Sent(1, 1, 1, 1)
		require.NoError(t, traces.Close())
		h.Sent(2, 1, 1, 1)
		require.Nil(t, traces.Trace(c))
		require.NoError(t, traces.Close())
		_, _ = e.Close(), pc.Close()
	})
	traces, err := filepath.Glob(filepath.Join(dir, "*-client.sqlog"))
	require.NoError(t, err)
	require.Len(t, traces, 1)
	text, err := os.ReadFile(traces[0])
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), "quic:packet_sent"))
	for range 3 {
		f, err := create(dir, "same")
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	files, err := filepath.Glob(filepath.Join(dir, "same*.sqlog"))
	require.NoError(t, err)
	require.Len(t, files, 3)
}

// Whatever is in a file, Read ends with an error or a trace, and its events are
// in range.
func FuzzRead(f *testing.F) {
	f.Add([]byte("\x1e{\"file_schema\":\"urn:ietf:params:qlog:file:sequential\"}\n\x1e{\"time\":1,\"name\":\"x\",\"data\":{\"new\":1}}\n"))
	f.Add([]byte("\x1e{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		_, err := Read(bytes.NewReader(text), func(e Event) error {
			if e.Time < 0 {
				t.Fatalf("event at %v", e.Time)
			}
			return nil
		})
		if err != nil && !errors.Is(err, ErrFormat) {
			t.Fatal(err)
		}
	})
}
