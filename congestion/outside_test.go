package congestion_test

import (
	"io"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/stats"
)

// outside is a controller as one of another module: it has what BBR has only
// through what the package exports.
type outside struct {
	congestion.Control
	hidden string // the interface that it does not implement
}

func (o outside) OnRecovered(s *congestion.State, spurious bool) {
	if o.hidden != "Undoer" {
		o.Control.(congestion.Undoer).OnRecovered(s, spurious)
	}
}

func (o outside) Burst() int {
	if o.hidden == "Burster" {
		return 0
	}
	return o.Control.(congestion.Burster).Burst()
}

// inBytes is outside with a window in bytes.
type inBytes struct{ outside }

func (o inBytes) WindowBytes() float64 { return o.Control.(congestion.ByteWindow).WindowBytes() }

func (o inBytes) State() string { return o.Control.(congestion.StateNamer).State() }

// transfer sends data of mixed sizes over a path that reorders and loses, and
// returns what the sender has done and how long it took.
func transfer(t *testing.T, control func() congestion.Control, delay time.Duration) (stats stats.Conn, states []string, took time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		network := netsim.NewNetwork(2, netsim.LinkConfig{Delay: delay, Jitter: delay, Reorder: 0.02, Loss: 0.01, Rate: 20_000_000, Queue: 200_000})
		repetition := netsim.NewRepetition(7)
		endpoint := func(address string, config kcp.Config) *kcp.Endpoint {
			pc, err := network.Listen(address)
			require.NoError(t, err)
			config.Repetition = repetition
			e, err := kcp.NewEndpoint(pc, &config)
			require.NoError(t, err)
			return e
		}
		server := endpoint("10.0.0.1:1", kcp.Config{})
		client := endpoint("10.0.0.2:1", kcp.Config{CongestionControl: control, Tracer: func(*kcp.Conn) *kcp.Trace {
			return &kcp.Trace{CongestionState: func(_, now string) { states = append(states, now) }}
		}})
		l, err := server.Listen()
		require.NoError(t, err)
		c, err := client.Dial(t.Context(), server.LocalAddr(), nil)
		require.NoError(t, err)
		s, err := l.AcceptKCP(t.Context())
		require.NoError(t, err)
		start := time.Now()
		go func() {
			for i := range 400 {
				_, _ = c.Write(make([]byte, 1+i*i%9000))
				if i%50 == 0 {
					time.Sleep(delay)
				}
			}
			_ = c.CloseWrite()
		}()
		_, err = io.Copy(io.Discard, s)
		require.NoError(t, err)
		took = time.Since(start)
		stats = c.Stats()
		require.NoError(t, client.Close())
		require.NoError(t, server.Close())
	})
	return stats, states, took
}

// A controller of another module that has all that BBR exports does the same to the
// last packet. One that lacks an interface does not.
func TestControllerFromOutside(t *testing.T) {
	const short, long = 200 * time.Microsecond, 20 * time.Millisecond
	for _, delay := range []time.Duration{short, long} {
		of := func(wrap func(congestion.Control) congestion.Control) any {
			stats, states, took := transfer(t, func() congestion.Control { return wrap(congestion.NewBBR()) }, delay)
			return []any{stats, states, took}
		}
		bbr := of(func(c congestion.Control) congestion.Control { return c })
		require.Equal(t, bbr, of(func(c congestion.Control) congestion.Control { return inBytes{outside{c, ""}} }))
		require.NotEqual(t, bbr, of(func(c congestion.Control) congestion.Control { return outside{c, ""} }), "without ByteWindow and StateNamer")
		require.Equal(t, delay == long, reflect.DeepEqual(bbr, of(func(c congestion.Control) congestion.Control { return inBytes{outside{c, "Burster"}} })), "without Burster, %v", delay)
		if delay == short { // on the other, no retransmission of all of a recovery was needless
			require.NotEqual(t, bbr, of(func(c congestion.Control) congestion.Control { return inBytes{outside{c, "Undoer"}} }), "without Undoer")
		}
	}
}
