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
	"os"
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
	"github.com/arqnet/kcp/internal/selfsigned"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
)

// TestHostileBetweenSteps sends packets to two ends between any two steps of their calls:
// before and after each call of the application, whenever an end calls code of the
// application's, and beside each packet on its way. Nothing panics, every call returns,
// and nothing is left of sessions. With an AEAD and with TLS, whose keys the sender does
// not have, an honest session reads what was written, to its end.
//
// KCP_FUZZ_SEEDS is how many seeds to try, from KCP_FUZZ_FIRST on, and KCP_FUZZ_TIME for
// how long, such as 10m; KCP_SEED repeats one. The protection is that of the seed.
func TestHostileBetweenSteps(t *testing.T) {
	promised, opened := 0, 0
	eachHostileSeed(t, 160, 1, func(t *testing.T, seed uint64) {
		synctest.Test(t, func(t *testing.T) {
			w := betweenSteps(t, seed)
			if w.promised {
				promised++
			}
			opened += int(w.opened.Load())
		})
	})
	if promised > 8 && opened < promised/2 {
		t.Errorf("%d of %d honest sessions have come about", opened, promised)
	}
	t.Logf("%d of %d honest sessions", opened, promised)
}

// eachHostileSeed runs f for the seeds that the environment names, or one of so many of
// them, or else the first so many.
func eachHostileSeed(t *testing.T, seeds, of uint64, f func(t *testing.T, seed uint64)) {
	first, count := number(t, "KCP_FUZZ_FIRST", 0), number(t, "KCP_FUZZ_SEEDS", testenv.Fewer(seeds)*of)/of
	until := time.Time{}
	if text := os.Getenv("KCP_FUZZ_TIME"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		count, until = 1<<40, time.Now().Add(d)
	}
	if os.Getenv("KCP_SEED") != "" {
		first, count = number(t, "KCP_SEED", 0), 1
	}
	for seed := first; seed < first+count && (until.IsZero() || time.Now().Before(until)); seed++ {
		fmt.Printf("%s: KCP_SEED=%d\n", t.Name(), seed) // a panic ends the process without the name of the test
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { f(t, seed) }) {
			t.Fatalf("repeat with KCP_SEED=%d go test -run '^%s$' ./fuzz", seed, t.Name())
		}
	}
}

// steps is two ends that have sessions with each other, and an intruder.
type steps struct {
	t        testing.TB
	seed     uint64
	kind     string
	promised bool // sessions are not disturbed once they are open
	config   kcp.Config
	net      *netsim.Network
	intruder *intruder
	ends     [2]*kcp.Endpoint
	addrs    [2]netip.AddrPort
	apps     sync.WaitGroup
	patience time.Duration // how long calls wait for a peer that may not be there
	opened   atomic.Int32  // sessions of honest

	mu     sync.Mutex // guards the rest
	random *rand.Rand
	calls  map[int]string // that have not returned
	called int
	lists  [2]*kcp.Listener
}

const (
	stepsConv  = 77 // that sessions are dialled with whose id is known
	stepsOther = "10.0.0.42:4000"
	// What the first byte of a session asks of its other end.
	asksEcho, asksChaos = 1, 2
)

// stepKinds are the protections of the sessions.
var stepKinds = []string{"plain", "FEC", "CFB", "AEAD", "TLS"}

// protect sets the protection of the seed, and returns how the intruder seals: in some
// runs it has the keys, and then nothing is promised.
func (w *steps) protect() (known wire) {
	w.kind = stepKinds[w.seed%5]
	has := w.random.IntN(2) == 0
	key := bytes.Repeat([]byte{byte(w.seed)}, 16)
	switch w.kind {
	case "FEC":
		w.config.FEC = kcp.FEC{Data: 3, Parity: 1}
	case "CFB":
		block, _ := aes.NewCipher(key)
		w.config.Cipher = crypt.CFB(block)
	case "AEAD":
		w.config.Cipher, _ = crypt.AESGCM(key)
		w.promised = !has
	case "TLS":
		certificate, roots, err := selfsigned.New("steps")
		if err != nil {
			w.t.Fatal(err)
		}
		w.config.TLS = &tls.Config{Certificates: []tls.Certificate{*certificate}, RootCAs: roots, ServerName: "steps"}
		w.promised = true
	}
	if w.config.Cipher != nil && has {
		known.cipher = w.config.Cipher
	}
	return known
}

// betweenSteps is one run.
func betweenSteps(t *testing.T, seed uint64) *steps {
	random := rand.New(rand.NewPCG(seed, 21))
	w := &steps{t: t, seed: seed, random: random, calls: make(map[int]string), patience: 10 * time.Second}
	known := w.protect()
	cut := random.IntN(4) == 0 // an end is closed in the middle
	w.promised = w.promised && !cut
	link := netsim.LinkConfig{Delay: time.Duration(1+random.IntN(40)) * time.Millisecond, Loss: one(random, 0, 0, 0.02)}
	w.net = netsim.NewNetwork(seed, link)
	for i, s := range []string{"10.0.0.40:4000", "10.0.0.41:4000"} {
		w.addrs[i] = netip.MustParseAddrPort(s)
	}
	w.intruder = &intruder{
		inject: func(p recorded) { w.net.Inject(p.from, p.to, p.data) },
		wire:   known, tls: w.kind == "TLS", random: rand.New(rand.NewPCG(seed, 22)), ends: w.addrs[:],
		others: []netip.AddrPort{netip.MustParseAddrPort(stepsOther), netip.MustParseAddrPort("10.6.6.6:666")},
	}
	w.net.SetFilter(w.intruder.tap)
	for i := range w.ends {
		w.open(i)
	}
	watch := time.AfterFunc(2*time.Hour, w.hangs)
	duration := time.Duration(2+random.IntN(6)) * time.Second
	attack := make(chan struct{})
	go func() {
		defer close(attack)
		for end := time.Now().Add(duration); time.Now().Before(end); {
			w.intruder.strike(w.addrs[w.draw(2)])
			time.Sleep(time.Duration(w.draw(20)) * time.Millisecond)
		}
	}()
	w.live(duration)
	if cut {
		time.Sleep(time.Duration(w.draw(2000)) * time.Millisecond)
		w.close(w.draw(2))
	}
	<-attack
	w.apps.Wait()
	struck := w.intruder.stop()
	w.finish()
	watch.Stop()
	if struck < 100 {
		t.Errorf("the intruder has sent %d packets", struck)
	}
	return w
}

// draw returns a random number.
func (w *steps) draw(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.random.IntN(n)
}

// source returns a random source of its own for an application.
func (w *steps) source() *rand.Rand {
	w.mu.Lock()
	defer w.mu.Unlock()
	return rand.New(rand.NewPCG(w.random.Uint64(), 0))
}

// open opens an end that listens.
func (w *steps) open(i int) {
	config := w.config
	w.hook(i, &config)
	config.KeepAlive, config.PeerTimeout, config.MaxStreams = 5*time.Second, 20*time.Second, 4
	config.DialTimeout, config.Linger = 5*time.Second, 5*time.Second
	pc, err := w.net.Listen(w.addrs[i].String())
	if err != nil {
		w.t.Fatal(err)
	}
	if w.ends[i], err = kcp.NewEndpoint(pc, &config); err != nil {
		w.t.Fatal(err)
	}
	w.listen(i)
}

// hook has all that an end calls of its user's send packets to it. Some of it is called
// with a lock of a session held, where nothing may wait.
func (w *steps) hook(i int, c *kcp.Config) {
	locked := func() { w.step(i, false) }
	c.CongestionControl = func() congestion.Control {
		w.step(i, within(".openSession", ".openAccepted"))
		return congestion.NewBBR()
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
					locked()
				}
				return nil
			}))
		}
		return hooks
	}
	if c.TLS != nil {
		c.TLS = c.TLS.Clone()
		c.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { w.step(i, true); return nil, nil }
		c.TLS.VerifyConnection = func(tls.ConnectionState) error { w.step(i, true); return nil }
	}
}

// within reports whether a function whose name ends so is one of the callers.
func within(names ...string) bool {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for f, more := frames.Next(); ; f, more = frames.Next() {
		for _, name := range names {
			if strings.HasSuffix(f.Function, name) {
				return true
			}
		}
		if !more {
			return false
		}
	}
}

// step sends packets to an end, and lets them be read before the next step.
func (w *steps) step(i int, free bool) {
	w.intruder.strike(w.intruder.end(i))
	if free {
		time.Sleep(time.Duration(w.draw(3)) * time.Millisecond)
		return
	}
	for range 20 {
		runtime.Gosched()
	}
}

// call is a call of the application at an end, before and after which packets come.
func (w *steps) call(i int, name string, f func()) {
	if w.draw(2) == 0 {
		w.step(i, true)
	}
	w.mu.Lock()
	w.called++
	n := w.called
	w.calls[n] = fmt.Sprintf("%s at %d", name, i)
	w.mu.Unlock()
	f()
	w.mu.Lock()
	delete(w.calls, n)
	w.mu.Unlock()
	if w.draw(4) == 0 {
		w.step(i, true)
	}
}

// hangs tells which calls have not returned, and ends them.
func (w *steps) hangs() {
	w.mu.Lock()
	defer w.mu.Unlock()
	stacks := make([]byte, 1<<20)
	w.t.Errorf("not at an end: %v\n%s", w.calls, stacks[:runtime.Stack(stacks, true)])
	for _, e := range w.ends {
		go func() { _ = e.Close() }()
	}
}

// listen accepts sessions at an end, until its listener is closed.
func (w *steps) listen(i int) {
	var l *kcp.Listener
	w.call(i, "Listen", func() {
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
		}
	}()
}

// closeListener closes the listener of an end.
func (w *steps) closeListener(i int) {
	w.mu.Lock()
	l := w.lists[i]
	w.mu.Unlock()
	w.call(i, "Listener.Close", func() { _ = l.Close() })
}

// live dials sessions in all ways, while the intruder is at work.
func (w *steps) live(duration time.Duration) {
	later := func() { time.Sleep(time.Duration(w.draw(int(duration/time.Millisecond)))*time.Millisecond/2 + 1) }
	w.apps.Go(func() { w.honest(0) })
	for i := range 2 {
		w.apps.Go(func() { later(); w.dial(i, kcp.DialOptions{}) })
		w.apps.Go(func() { later(); w.dial(i, kcp.DialOptions{Conv: new(uint32)}) })
		w.apps.Go(func() { later(); conv := uint32(stepsConv); w.dial(i, kcp.DialOptions{Conv: &conv, Quiet: true}) })
	}
	w.apps.Go(func() {
		for range 3 {
			w.openBoth()
		}
	})
	if w.draw(2) == 0 {
		w.apps.Go(func() {
			later()
			w.closeListener(0) // nobody honest dials it
			w.listen(0)
		})
	}
}

// finish ends both ends, and demands that nothing is left of their sessions.
func (w *steps) finish() {
	w.closeListener(0)
	w.closeListener(1)
	w.apps.Wait()
	time.Sleep(4 * time.Minute)
	for i, e := range w.ends {
		if s := e.Stats(); s.Sessions != 0 || s.HalfOpen != 0 || s.Buffered != 0 || s.Backlog != 0 {
			w.t.Errorf("end %d: left are %d sessions, %d half open, %d bytes, backlog %d", i, s.Sessions, s.HalfOpen, s.Buffered, s.Backlog)
		}
		w.close(i)
	}
}

// close ends an end in one of two ways.
func (w *steps) close(i int) {
	if w.draw(2) == 0 {
		w.call(i, "Shutdown", func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_ = w.ends[i].Shutdown(ctx)
		})
	}
	w.call(i, "Endpoint.Close", func() { _ = w.ends[i].Close() })
}
