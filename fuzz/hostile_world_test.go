package fuzz_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	kcp "github.com/arqnet/kcp"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/testenv/life"
	"github.com/arqnet/kcp/netsim"
)

// hostile is two ends that have sessions with each other, an attacker, and an end that is
// not attacked.
type hostile struct {
	t         testing.TB
	seed      uint64
	intact    bool // sessions with random numbers read what was written once they are open
	reachable bool // they come about, too
	limited   bool // ends have less room than by default
	config    kcp.Config
	net       *netsim.Network
	attacker  *attacker
	ends      [3]*kcp.Endpoint
	sockets   [3]*netsim.PacketConn
	addrs     [3]netip.AddrPort
	limits    [2]int    // Limits.MaxBuffered
	until     time.Time // of the attack
	apps      sync.WaitGroup
	opened    atomic.Int32 // sessions of honest with an end that is attacked
	judged    int          // sessions of others
	realTime  bool         // so how long calls take says nothing

	mu       sync.Mutex // guards the rest
	random   *rand.Rand
	calls    map[int]string            // that have not returned
	echoes   map[uint32]netip.AddrPort // that honest is at, by conversation
	sessions map[uint32]*life.Session  // that nobody disturbs
	failures map[uint32][]string       // of those
	called   int
	conns    [3][]*kcp.Conn
	lists    [2]*kcp.Listener
}

// patience is how long a call may take that nobody holds up any more: what was written
// crosses a bad path, or a peer is lost.
const patience = 30 * time.Minute

// protect sets the protection of the seed, and returns what the attacker knows of it.
func (w *hostile) protect(who ability) (known wire) {
	kind := [6]string{"plain", "AEAD", "TLS", "FEC", "CFB", "TLS"}[w.seed%6]
	key := bytes.Repeat([]byte{byte(w.seed)}, 16)
	switch kind {
	case "FEC":
		w.config.FEC = kcp.FEC{Data: 1 + w.random.IntN(10), Parity: 1 + w.random.IntN(4)}
	case "CFB":
		block, _ := aes.NewCipher(key)
		known.cipher = crypt.CFB(block)
	case "AEAD":
		known = newGCM(key)
	case "TLS":
		known.tls = true
		w.config.TLS = testenv.TLS()
		w.config.TLS.ClientSessionCache = tls.NewLRUClientSessionCache(0)
		if who.keys {
			known.log = &keyLog{sessions: make(map[string]*secrets)}
			w.config.TLS.KeyLogWriter = known.log
		}
		if w.random.IntN(3) == 0 {
			w.config.TLS.ClientAuth = tls.RequireAnyClientCert
		}
		w.config.StatelessResetKey = one(w.random, nil, bytes.Repeat(key, 2))
	}
	w.config.Cipher, w.config.MessageMode = known.cipher, w.random.IntN(2) == 0
	w.intact = !who.sees || !who.reads && (kind == "AEAD" || kind == "TLS")
	w.reachable = w.intact && (!who.sees || kind == "AEAD")
	if !who.reads && who.sees || w.random.IntN(3) == 0 && !who.keys {
		known.cipher, known.gcm = nil, nil
	}
	return known
}

// settings sets what does not concern the protection.
func (w *hostile) settings(c *kcp.Config) {
	r := w.random
	c.MTU, c.MaxMTU = one(r, 0, 0, 130, 300, 576, 1200, 9000), one(r, 0, -1, 1472, 9000)
	c.SendWindow, c.ReceiveWindow = one(r, 0, 1, 2, 16, 1024), one(r, 0, 1, 128, 200, 65535)
	c.WriteBuffer, c.Limits.MaxStreams = one(r, 0, 4096, 1<<16), one(r, 0, 1, 4)
	c.StreamReceiveBuffer, c.StreamWriteBuffer = one(r, 0, 1<<16, 100000), one(r, 0, 4096)
	c.Tuning.NoDelay, c.Tuning.FastResend, c.Redundancy = kcp.NoDelay(r.IntN(4)), one(r, 0, -1, 1, 3), float64(one(r, 0, 0, 1, 4))
	c.PeerTimeout, c.DialTimeout = time.Duration(10+r.IntN(20))*time.Second, 30*time.Second
	c.KeepAlive, c.IdleTimeout = time.Duration(one(r, 0, 1, 5))*time.Second, time.Duration(one(r, 0, 0, 40))*time.Second
	c.Linger, c.Tuning.DeadLink = time.Duration(one(r, 0, -1, 1, 10))*time.Second, one(r, 0, 0, 40)
	if c.AddressValidation = kcp.AddressValidation(r.IntN(2)); w.limited {
		c.Limits.Backlog, c.Limits.MaxSessions, c.Limits.MaxHalfOpen = one(r, 0, 4, 16), one(r, 0, 16, 64), one(r, 0, 8, 16)
		c.Limits.MaxBuffered = one(r, 0, 1<<19, 1<<20)
	}
	c.LegacyPeers = one(r, kcp.LegacyDefault, kcp.LegacyDefault, kcp.LegacyRefuse)
	for c.Validate() != nil {
		c.MTU += 20
	}
}

// open opens an end; those that are attacked listen.
func (w *hostile) open(i int) {
	config := w.config
	if i < 2 {
		w.settings(&config)
		w.hook(i, &config)
		w.limits[i] = config.Limits.MaxBuffered
	} else {
		config.PeerTimeout = time.Minute
	}
	var err error
	if w.sockets[i], err = w.net.Listen(w.addrs[i].String()); err != nil {
		w.t.Fatal(err)
	}
	if w.ends[i], err = kcp.NewEndpoint(w.sockets[i], &config); err != nil {
		w.t.Fatal(err)
	}
	if i < 2 {
		w.listen(i)
	}
}

// hook has all that an end calls of its user's send packets to it. Some of it is called
// with a lock of a session held, where nothing may wait.
func (w *hostile) hook(i int, c *kcp.Config) {
	control := one(w.random, congestion.NewBBR, congestion.NewCubic, congestion.NewReference, congestion.NewNone)
	c.CongestionControl = func() congestion.Control {
		w.step(i, within(".openSession", ".openAccepted"))
		return control()
	}
	c.Logger = slog.New(askingHandler(func() { w.step(i, within(".(*Endpoint).debug")) }))
	c.HandshakeFailed = func(net.Addr, error) { w.step(i, true) }
	c.Tracer = func(*kcp.Conn) *kcp.Trace {
		w.step(i, true)
		hooks := new(kcp.Trace)
		v := reflect.ValueOf(hooks).Elem()
		for f := range v.NumField() {
			v.Field(f).Set(reflect.MakeFunc(v.Field(f).Type(), func([]reflect.Value) []reflect.Value {
				if w.draw(16) == 0 {
					w.step(i, false)
				}
				return nil
			}))
		}
		return hooks
	}
	if c.TLS != nil {
		// What a listener answers to a ClientHello that is repeated has other
		// secrets, and the same random number.
		accepts := c.TLS.Clone()
		accepts.KeyLogWriter = nil
		c.TLS = c.TLS.Clone()
		c.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { w.step(i, true); return accepts, nil }
		c.TLS.VerifyConnection = func(tls.ConnectionState) error { w.step(i, true); return nil }
		accepts.VerifyConnection = c.TLS.VerifyConnection
	}
}

// askingHandler is a log handler that calls a function for each record.
type askingHandler func()

func (h askingHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h askingHandler) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h askingHandler) WithGroup(string) slog.Handler            { return h }
func (h askingHandler) Handle(context.Context, slog.Record) error {
	h()
	return nil
}

// within reports whether a function whose name ends so is one of the callers.
func within(names ...string) bool {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for f, more := frames.Next(); more; f, more = frames.Next() {
		for _, name := range names {
			if strings.HasSuffix(f.Function, name) {
				return true
			}
		}
	}
	return false
}

// step sends packets to an end, and lets them be read before the next step.
func (w *hostile) step(i int, free bool) {
	if i == 2 {
		return
	}
	w.attacker.strike(w.addrs[i])
	if free {
		time.Sleep(time.Duration(w.draw(3)) * time.Millisecond)
		return
	}
	for range 20 {
		runtime.Gosched()
	}
}

// call is a call of the application at an end, before and after which packets come. It
// may take so long, and if that is patience as long again as the attack lasts.
func (w *hostile) call(i int, limit time.Duration, name string, f func()) {
	if w.draw(2) == 0 {
		w.step(i, true)
	}
	start := time.Now()
	w.mu.Lock()
	w.called++
	n := w.called
	w.calls[n] = fmt.Sprintf("%s at %d since %v", name, i, start)
	w.mu.Unlock()
	f()
	w.mu.Lock()
	delete(w.calls, n)
	w.mu.Unlock()
	// What the application is called for takes time, too.
	if took := time.Since(start); !w.realTime && took > limit+2*time.Second && took > limit+w.until.Sub(start) {
		w.t.Errorf("%s at %d took %v of %v", name, i, took, limit)
	}
	if w.draw(4) == 0 {
		w.step(i, true)
	}
}

// checked sends one packet to an end. If it is looked at, the end may send an answer to
// each of its segments, and what acknowledgements in it let leave or have repeated.
func (w *hostile) checked(to netip.AddrPort, looks bool) {
	p := w.attacker.next(to)
	if p.data == nil {
		return
	}
	var i int
	for w.addrs[i] != p.to && i < 2 {
		i++
	}
	if !looks || i == 2 {
		w.attacker.inject(p)
		return
	}
	w.attacker.rest(true)
	defer w.attacker.rest(false)
	synctest.Wait()
	// Beyond half of it more, and 1 MiB, nobody is spared.
	if held, limit := w.ends[i].Stats().Buffered, w.limits[i]; limit > 0 && held > limit+1<<20+1<<16 {
		w.t.Errorf("%d bytes are held, of %d", held, limit)
	}
	work := func() (flight, sent, packets int) {
		w.mu.Lock()
		conns := w.conns[i]
		w.mu.Unlock()
		for _, c := range conns {
			s := c.Stats()
			flight, sent = flight+s.InFlight, sent+int(s.SegmentsSent)
		}
		return flight, sent, w.attacker.sentBy(p.to)
	}
	flight, sent, packets := work()
	w.attacker.inject(p)
	synctest.Wait()
	_, now, n := work()
	// With parity each packet may be five, and a segment two pieces.
	if limit := 64 + 2*len(p.data)/headerSize + 10*(now-sent+2*flight); n-packets > limit {
		w.t.Errorf("%d packets for one of %d bytes, with %d in flight and %d new segments", n-packets, len(p.data), flight, now-sent)
	}
}

// draw returns a random number.
func (w *hostile) draw(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.random.IntN(n)
}

// source returns a random source of its own for a goroutine.
func (w *hostile) source() *rand.Rand {
	w.mu.Lock()
	defer w.mu.Unlock()
	return rand.New(rand.NewPCG(w.random.Uint64(), 0))
}

// note keeps c for what an end has in flight.
func (w *hostile) note(i int, c *kcp.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[i] = append(w.conns[i], c)
}

// hangs tells which calls have not returned, and ends them.
func (w *hostile) hangs() {
	w.mu.Lock()
	defer w.mu.Unlock()
	stacks := make([]byte, 1<<20)
	w.t.Errorf("not at an end: %v\n%s", w.calls, stacks[:runtime.Stack(stacks, true)])
	for _, e := range w.ends {
		go func() { _ = e.Close() }()
	}
}

// listen accepts sessions at an end, until its listener is closed.
func (w *hostile) listen(i int) {
	var l *kcp.Listener
	w.call(i, 0, "Listen", func() {
		var err error
		if l, err = w.ends[i].Listen(); err != nil && !errors.Is(err, net.ErrClosed) {
			w.t.Errorf("Listen: %v", err)
		}
	})
	if l == nil {
		return
	}
	w.mu.Lock()
	w.lists[i] = l
	w.mu.Unlock()
	go func() {
		for {
			c, err := l.AcceptKCP(context.Background())
			if err != nil {
				return
			}
			w.apps.Go(func() { w.serve(i, c) })
			if w.draw(4) == 0 {
				time.Sleep(time.Duration(w.draw(500)) * time.Millisecond)
			}
		}
	}()
}

// closeListener closes the listener of an end.
func (w *hostile) closeListener(i int) {
	w.mu.Lock()
	l := w.lists[i]
	w.mu.Unlock()
	w.call(i, 0, "Listener.Close", func() { _ = l.Close() })
}

// close ends an end in one of two ways.
func (w *hostile) close(i int) {
	if w.draw(2) == 0 {
		w.call(i, time.Minute, "Shutdown", func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_ = w.ends[i].Shutdown(ctx)
		})
	}
	w.call(i, 0, "Endpoint.Close", func() { _ = w.ends[i].Close() })
}
