package kcp

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// bytesOf returns the segment of a signal.
func bytesOf(s signal) []byte {
	b := make([]byte, headerSize)
	s.encode(header{conv: 7, wnd: 128}, b)
	return b
}

func hello(token uint32) []byte { return bytesOf(signal{sigHello, 0, token}) }

// floods are first packets of unknown senders.
var floods = []struct {
	name string
	make func(r *rand.Rand) []byte
}{
	{"hello", func(r *rand.Rand) []byte { return packetOf(r.Uint32(), hello(r.Uint32()), bytesOf(infoSignal())) }},
	{"bare hello", func(r *rand.Rand) []byte { return packetOf(r.Uint32(), hello(r.Uint32())) }},
	{"hello with data", func(r *rand.Rand) []byte {
		return packetOf(r.Uint32(), hello(r.Uint32()), bytesOf(infoSignal()), push(0, 0, string(make([]byte, 500))))
	}},
	{"hello with wrong cookie", func(r *rand.Rand) []byte {
		return packetOf(r.Uint32(), hello(r.Uint32()), bytesOf(signal{sigCookie, r.Uint32(), r.Uint32()}), bytesOf(infoSignal()))
	}},
	{"push", func(r *rand.Rand) []byte { return packetOf(r.Uint32(), push(0, 0, string(make([]byte, 1300)))) }},
	{"short push", func(r *rand.Rand) []byte { return packetOf(r.Uint32(), push(0, 0, "")) }},
	{"pushes", func(r *rand.Rand) []byte {
		p := []byte(nil)
		for sn := range uint32(50) {
			p = append(p, push(sn, 0, "")...)
		}
		return packetOf(r.Uint32(), p)
	}},
	{"wask", func(r *rand.Rand) []byte { return packetOf(r.Uint32(), segment(cmdWask, 0, 0, 0, 0, "")) }},
	{"signal", func(r *rand.Rand) []byte {
		return packetOf(r.Uint32(), bytesOf(signal{signalCode(1 + r.IntN(255)), r.Uint32(), r.Uint32()}))
	}},
	{"signals", func(r *rand.Rand) []byte {
		p := []byte(nil)
		for range 40 {
			p = append(p, bytesOf(signal{signalCode(1 + r.IntN(9)), r.Uint32() * uint32(r.IntN(2)), r.Uint32()})...)
		}
		return packetOf(r.Uint32(), p)
	}},
	{"garbage", func(r *rand.Rand) []byte {
		p := make([]byte, r.IntN(1400))
		for i := range p {
			p[i] = byte(r.Uint32())
		}
		return p
	}},
}

// TestFlood floods a listener with first packets from as many
// addresses. It sends no address more than has come from it, and holds little
// memory. It serves the session that it has all the while, and has forgotten all
// the others soon after.
func TestFlood(t *testing.T) {
	long(t)
	if !alone(t) {
		return
	}
	servers := []struct {
		name    string
		config  Config
		accepts bool
	}{
		{"default", Config{}, false},
		{"accepting", Config{}, true},
		{"refusing", Config{RefuseLegacy: true}, true},
		{"validating", Config{AddressValidation: ValidateAlways, RefuseLegacy: true}, true},
		{"fec", Config{FEC: FEC{Data: 1, Parity: 3}}, false},
	}
	for _, s := range servers {
		for _, f := range floods {
			t.Run(s.name+"/"+f.name, func(t *testing.T) {
				n := 2000
				if testing.Short() {
					n = 500
				}
				switch f.name {
				case "hello", "push", "garbage":
					if !raceEnabled && strconv.IntSize == 64 && s.name != "fec" && s.name != "refusing" {
						n = 200000
						if testing.Short() {
							n = 10000
						}
					}
				}
				inWorld(t, 8, clean, func(w *world) { flood(w, &s.config, s.accepts, n, f.make) })
			})
		}
	}
}

func flood(w *world, config *Config, accepts bool, n int, make_ func(*rand.Rand) []byte) {
	t := w.t
	l := w.listen(config)
	client, _ := w.endpoint("10.0.0.2:5000", nil)
	a := w.dial(client)
	b, err := l.AcceptKCP(context.Background())
	require.NoError(t, err)
	to := l.Addr().(*net.UDPAddr).AddrPort()

	sent, replied := make([]uint16, n), make([]uint32, n)
	var tooLarge atomic.Int64
	first := time.Now()
	w.net.SetFilter(func(_, to netip.AddrPort, p []byte) bool {
		if ip := to.Addr().As4(); ip[0] == 172 {
			i := int(ip[1])<<16 | int(ip[2])<<8 | int(ip[3])
			replied[i] += uint32(len(p))
			if len(p) > int(sent[i]) || replied[i] > uint32(sent[i]) && time.Since(first) < 20*time.Second {
				tooLarge.Add(1)
			}
			return false // there is nobody
		}
		return true
	})
	accepted := make([]*Conn, 0, n)
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		for accepts {
			c, err := l.AcceptKCP(context.Background())
			if err != nil {
				return
			}
			accepted = append(accepted, c)
		}
	}()
	transfer := func(seed uint64) {
		want := content(seed, 50000)
		send(t, a, want)
		receive(t, b, want)
	}
	transfer(1)
	time.Sleep(3 * time.Second)
	resting := memoryInUse()
	random := rand.New(rand.NewPCG(8, 8))
	most := int64(0)
	for i := range n {
		p := make_(random)
		sent[i] = uint16(len(p))
		w.net.Inject(floodAddr(i), to, p)
		if i%100 == 99 {
			time.Sleep(time.Millisecond)
		}
		if i%(n/4) == n/4-1 {
			transfer(uint64(i))
			most = max(most, memoryInUse()-resting)
		}
	}
	synctest.Wait()
	require.Less(t, most, int64(16<<20))
	require.Zero(t, tooLarge.Load(), "replies are larger than what they answer")
	require.NoError(t, l.Close())
	<-accepting
	time.Sleep(5 * time.Minute)
	transfer(2)
	require.Equal(t, 1, l.Stats().Sessions)
	require.Zero(t, l.Stats().HalfOpen)
	if config.RefuseLegacy {
		require.Empty(t, accepted)
	}
	for _, c := range accepted {
		_ = c.Close() // has ended in silence
	}
	time.Sleep(2 * compactAfter) // spare buffers count
	require.Zero(t, l.Stats().Buffered)
	for i := range replied {
		require.LessOrEqual(t, replied[i], 4*uint32(sent[i]), "in all to %d", i)
	}
}
