package kcp

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// figures returns the counts in a struct, whatever their depth.
func figures(v reflect.Value) (all []uint64) {
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Struct:
			all = append(all, figures(f)...)
		case reflect.Uint64:
			all = append(all, f.Uint())
		}
	}
	return all
}

// setFigures sets each count in a struct to the next number.
func setFigures(v reflect.Value, next *uint64) {
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Struct:
			setFigures(f, next)
		case reflect.Uint64:
			*next++
			f.SetUint(*next)
		}
	}
}

// Every count is added up, those of fields to come included.
func TestSumsLeaveNothingOut(t *testing.T) {
	add := map[string]func() (sum, part any){
		"Counters": func() (any, any) {
			var s, o Counters
			number(&o)
			s.add(&o)
			return s, o
		},
		"Drops": func() (any, any) {
			var s, o Drops
			number(&o)
			s.add(&o)
			return s, o
		},
		"DatagramStats": func() (any, any) {
			var s, o DatagramStats
			number(&o)
			s.add(&o)
			return s, o
		},
		"FECStats": func() (any, any) {
			var s, o FECStats
			number(&o)
			s.add(&o)
			return s, o
		},
	}
	for name, f := range add {
		sum, part := f()
		require.Equal(t, part, sum, name)
	}
	var n EndedSessions
	number(&n)
	sum := uint64(0)
	for _, f := range figures(reflect.ValueOf(n)) {
		sum += f
	}
	require.Equal(t, sum, n.Total())
}

// number gives each count that p points to a number of its own.
func number(p any) {
	next := uint64(0)
	setFigures(reflect.ValueOf(p).Elem(), &next)
}

// No figure of Totals ever falls, whatever sessions do meanwhile, and at the
// end they are the sums over all sessions.
func TestTotalsNeverFall(t *testing.T) {
	for seed := range fewer(8) {
		config := &Config{FEC: FEC{Data: 4, Parity: 1}, Linger: -1, KeepAlive: time.Second, PeerTimeout: 3 * time.Second}
		inWorld(t, seed, lossy, func(w *world) {
			l := w.listen(config)
			server := l.Endpoint()
			var last [2][]uint64
			check := func(e *Endpoint, at *[]uint64) {
				now := figures(reflect.ValueOf(e.Totals()))
				for i := range *at {
					require.GreaterOrEqual(t, now[i], (*at)[i], "figure %d", i)
				}
				*at = now
			}
			e, _ := w.endpoint("10.0.0.2:0", config)
			for i := range 6 {
				a := w.dial(e)
				data := content(seed, 30000+5000*i)
				send(t, a, data)
				b := accepted(t, l)
				receive(t, b, data)
				require.NoError(t, b.SendDatagram(data[:100]))
				for range 10 {
					check(e, &last[0])
					check(server, &last[1])
					time.Sleep(time.Millisecond)
				}
				switch i % 3 {
				case 0:
					_ = a.Abort()
				case 1:
					_ = b.Close()
				default:
					b.shedMemory()
				}
				check(e, &last[0])
				check(server, &last[1])
			}
			time.Sleep(time.Minute)
			check(e, &last[0])
			check(server, &last[1])
			for _, s := range []EndpointStats{e.Stats(), server.Stats()} {
				require.EqualValues(t, 6, s.Dialled+s.Accepted)
				require.EqualValues(t, s.Dialled+s.Accepted, uint64(s.Sessions)+s.Ended.Total(), "%+v", s)
			}
			require.NotZero(t, server.Totals().FEC.DataReceived, "of decoders that are gone")
		})
	}
}

// Totals are the sums of the sessions' own figures, those of live ones and of
// ended ones.
func TestTotalsAreTheSums(t *testing.T) {
	inWorld(t, 1, lossy, func(w *world) {
		l := w.listen(nil)
		e, _ := w.endpoint("10.0.0.2:0", nil)
		var conns []*Conn
		for range 3 {
			a := w.dial(e)
			send(t, a, content(1, 50000))
			receive(t, accepted(t, l), content(1, 50000))
			require.NoError(t, a.SendDatagram([]byte("beside")))
			conns = append(conns, a)
		}
		require.NoError(t, conns[1].Close())
		w.settle()
		var want SessionTotals
		for _, c := range conns {
			s := c.Stats()
			want.Counters.add(&s.Counters)
			want.Datagrams.add(&s.Datagrams)
			want.Dropped.add(&s.Dropped)
			want.Probes.Sent += s.PathMTU.Sent
			want.Probes.Lost += s.PathMTU.Lost
		}
		require.Equal(t, want, e.Totals())
		require.EqualValues(t, 3*50000, want.BytesSent)
	})
}

// What the loop over many sessions holds the table for is the copy of a slice.
func BenchmarkSessions(b *testing.B) {
	e := &Endpoint{}
	e.table.Init((*Conn).tableEntry, false)
	for i := range uint32(100_000) {
		c := &Conn{ep: e, hs: handshakeState{offered: true}}
		c.entry.Conv = i
		e.table.Add(c)
	}
	for b.Loop() {
		n := 0
		for range e.Sessions() {
			n++
		}
		if n != 100_000 {
			b.Fatal(n)
		}
	}
}
