package fuzz_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	kcp "github.com/arqnet/kcp"
)

// TestHostilePeer attacks sessions of real endpoints by somebody who knows
// their state: conversations, tokens, sequence numbers, windows, questions,
// cookies and keys. Whatever arrives, no endpoint panics, no call hangs, one
// packet causes bounded work, nothing is left at the end, and what the sessions
// beside them read is what was written.
//
// KCP_FUZZ_SEEDS is how many seeds to try, from KCP_FUZZ_FIRST on; KCP_SEED
// repeats one. Tokens and conversation ids are random all the same, so a
// repetition takes nearly the same course, not exactly the same.
func TestHostilePeer(t *testing.T) { hostileSeeds(t, 24, false) }

// TestHostileAuthenticatedPeer is TestHostilePeer by a peer that has authenticated
// itself: it speaks under the keys of the sessions, with TLS too, and numbers its
// packets, so that what it says counts.
func TestHostileAuthenticatedPeer(t *testing.T) { hostileSeeds(t, 12, true) }

// hostileSeeds runs the attacks of the seeds that the environment names, or of
// the first so many.
func hostileSeeds(t *testing.T, seeds uint64, insider bool) {
	first, count := number(t, "KCP_FUZZ_FIRST", 0), number(t, "KCP_FUZZ_SEEDS", seeds)
	if seed := os.Getenv("KCP_SEED"); seed != "" {
		first, count = number(t, "KCP_SEED", 0), 1
	}
	opened, secured := 0, 0
	for seed := first; seed < first+count; seed++ {
		// A panic in a goroutine of an endpoint ends the process without the
		// name of the test.
		fmt.Printf("%s: KCP_SEED=%d\n", t.Name(), seed)
		if !t.Run(seedName(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := hostile(t, seed, insider)
				if opened += a.opened; a.wire.tls != nil {
					secured++
				}
			})
		}) {
			t.Fatalf("repeat with KCP_SEED=%d go test -run '^%s$' ./fuzz", seed, t.Name())
		}
	}
	if opened == 0 && secured > 3 {
		t.Error("the attacker has read no packet under the keys of TLS")
	}
}

// number returns the number in an environment variable.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// hostile is one attack, from the beginning to the end. It returns the attacker.
func hostile(t *testing.T, seed uint64, insider bool) *attacker {
	w := newArena(t, seed, insider)
	r := w.random
	w.volume = []int{500, 5000, 20000, 60000}[r.IntN(4)]
	server, pc := w.endpoint(arenaServer, w.serverSettings())
	defer func() { _ = pc.Close() }()
	var err error
	if w.listener, err = server.Listen(); err != nil {
		t.Fatal(err)
	}
	duration := time.Duration(2000+r.IntN(20000)) * time.Millisecond
	w.until = time.Now().Add(duration)
	stop := w.watch()
	lag := time.Duration(r.IntN(3)) * time.Duration(r.IntN(3000)) * time.Millisecond
	accepting := rand.New(rand.NewPCG(seed, 13))
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.accept(accepting, lag)
	}()
	w.bystander()
	clients := 1 + r.IntN(3)
	if insider {
		clients += 2
	}
	for i := range clients {
		w.client(i, duration)
	}
	w.attacker.attack(duration, 200+r.IntN(600), w.check)
	time.Sleep(time.Minute)
	w.newcomer()
	if err := w.listener.Close(); err != nil {
		t.Error(err)
	}
	<-done
	w.apps.Wait()
	stop()
	w.checkBooks()
	for _, e := range w.endpoints {
		w.within(time.Second, "Endpoint.Close", func() { _ = e.Close() })
	}
	return w.attacker
}

// client opens an endpoint that dials the server, or the attacker, some times
// during the attack. Now and then it moves, or cannot be reached any more.
func (w *arena) client(i int, duration time.Duration) {
	e, pc := w.endpoint(fmt.Sprintf("10.0.0.%d:4000", 20+i), w.settings())
	if (w.config.Cipher != nil || w.config.TLS != nil) && w.random.IntN(2) == 0 {
		w.net.At(time.Duration(w.random.Int64N(int64(duration))), func() {
			if err := pc.Rebind(fmt.Sprintf("10.0.1.%d:4000", 20+i)); err != nil {
				w.t.Error(err)
			}
		})
	}
	if w.random.IntN(6) == 0 { // gone for good, or for a while
		gone := time.Duration(w.random.Int64N(int64(duration)))
		host := pc.AddrPort().Addr().String()
		w.net.At(gone, func() { w.net.Cut(host, "") })
		if w.random.IntN(2) == 0 {
			w.net.At(gone+time.Duration(w.random.IntN(8000))*time.Millisecond, func() { w.net.Heal(host, "") })
		}
	}
	for j := range 1 + w.random.IntN(3) {
		random := rand.New(rand.NewPCG(w.seed, uint64(20+10*i+j)))
		w.apps.Go(func() { w.dial(e, fmt.Sprintf("session %d of client %d", j, i), random, duration) })
	}
}

// dial opens one session and uses it.
func (w *arena) dial(e *kcp.Endpoint, name string, random *rand.Rand, duration time.Duration) {
	time.Sleep(time.Duration(random.Int64N(int64(duration))) / 2)
	addr := w.listener.Addr()
	if random.IntN(4) == 0 {
		addr = net.UDPAddrFromAddrPort(w.attacker.own[random.IntN(len(w.attacker.own))])
	}
	var c *kcp.Conn
	// Twice DialTimeout, so that a context that is done counts too.
	limit := 20 * time.Second
	if random.IntN(3) == 0 {
		limit = time.Duration(random.IntN(2000)) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var err error
	w.within(limit, name+": Dial", func() { c, err = e.Dial(ctx, addr) })
	if err != nil {
		return
	}
	w.note(e, c)
	x := &application{w: w, c: c, name: name, dialled: true, random: random}
	x.run()
}
