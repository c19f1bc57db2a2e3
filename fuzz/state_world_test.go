package fuzz_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	kcp "github.com/arqnet/kcp"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/selfsigned"
	"github.com/arqnet/kcp/netsim"
)

// arena is a virtual network with a server, clients, an attacker, and a session
// beside all that, which is not attacked. It lives in a synctest bubble.
type arena struct {
	t        testing.TB
	seed     uint64
	random   *rand.Rand // of the goroutine of the test
	net      *netsim.Network
	attacker *attacker
	config   kcp.Config // what all endpoints have in common
	volume   int        // bytes that an application writes at most
	finds    bool       // the server finds out by keep-alives that a peer is gone
	keyless  bool       // the attacker has no key: what is read has to be what was written
	streams  bool       // applications use streams
	insider  bool       // the attacker has authenticated itself
	receipts receipts

	listener *kcp.Listener
	apps     sync.WaitGroup
	until    time.Time // end of the attack

	mu        sync.Mutex // guards the rest
	endpoints []*kcp.Endpoint
	limits    []int // Config.MaxBuffered of each
	conns     map[*kcp.Endpoint][]*kcp.Conn
	calls     map[string]time.Time    // of applications, that have not returned
	readers   map[uint32]*application // of what a dialling end has written, by conversation
}

const (
	arenaServer    = "10.0.0.1:4000"
	arenaBystander = "10.0.0.9:4000"
	// patience is how long a call may take that nobody holds up any more:
	// what honest ends have written crosses a bad path, or a peer is lost.
	patience = 30 * time.Minute
	// receiptTime is how long after the end of its session a receipt may come.
	receiptTime = 5 * time.Second
)

// newArena returns an arena. If the attacker is an insider, it has the keys, and
// seeds in turn are plain, with an AEAD, and with TLS.
func newArena(t testing.TB, seed uint64, insider bool) *arena {
	random := rand.New(rand.NewPCG(seed, 11))
	link := netsim.LinkConfig{
		Delay:     time.Duration(random.IntN(100)) * time.Millisecond,
		Jitter:    time.Duration(random.IntN(30)) * time.Millisecond,
		Duplicate: random.Float64() * 0.05,
		Reorder:   random.Float64() * 0.2,
	}
	if random.IntN(2) == 0 {
		link.Loss = random.Float64() * 0.1
	}
	w := &arena{
		t: t, seed: seed, random: random, net: netsim.NewNetwork(seed, link),
		conns: make(map[*kcp.Endpoint][]*kcp.Conn), calls: make(map[string]time.Time),
		readers: make(map[uint32]*application), insider: insider,
	}
	var known wire
	if sealed := random.IntN(3) == 0; insider && seed%3 == 1 || !insider && sealed {
		known = newGCM(bytes.Repeat([]byte{byte(seed)}, 16))
		w.config.Cipher = known.cipher
	}
	if insider && seed%3 == 2 {
		known = w.secure()
	}
	w.config.MessageMode = random.IntN(2) == 0
	server := netip.MustParseAddrPort(arenaServer)
	w.keyless = w.config.Cipher != nil && !insider && random.IntN(3) == 0
	if w.keyless {
		known = newGCM(bytes.Repeat([]byte{byte(seed) + 1}, 16))
	}
	w.attacker = newAttacker(t, w.net, known, rand.New(rand.NewPCG(seed, 12)), server)
	w.attacker.keyless, w.attacker.insider = w.keyless, insider
	w.streams = seed%4 > 0
	w.attacker.streams = w.streams
	return w
}

// secure makes all sessions those with TLS, and returns what the attacker knows.
func (w *arena) secure() wire {
	certificate, roots, err := selfsigned.New("arena")
	if err != nil {
		w.t.Fatal(err)
	}
	log := &keyLog{sessions: make(map[string]*secrets)}
	w.config.TLS = &tls.Config{
		Certificates: []tls.Certificate{*certificate}, RootCAs: roots, ServerName: "arena",
		ClientSessionCache: tls.NewLRUClientSessionCache(0), KeyLogWriter: log,
	}
	if w.random.IntN(3) == 0 {
		w.config.TLS.ClientAuth = tls.RequireAnyClientCert
	}
	if w.random.IntN(2) == 0 {
		w.config.StatelessResetKey = bytes.Repeat([]byte{byte(w.seed)}, 32)
	}
	return wire{tls: log}
}

// settings returns the settings of one endpoint.
func (w *arena) settings() *kcp.Config {
	r, c := w.random, w.config
	one := func(of ...int) int { return of[r.IntN(len(of))] }
	c.MTU = one(0, 58, 64, 100, 300, 576, 1200, 1400, 9000)
	c.MaxMTU = one(0, -1, 1472, 9000)
	c.SendWindow = one(0, 1, 2, 16, 128, 1024, 65535)
	c.ReceiveWindow = one(0, 1, 128, 200, 1024, 65535)
	c.WriteBuffer = one(0, 4096, 1<<16)
	c.CongestionControl = [5]func() congestion.Control{nil, congestion.NewBBR, congestion.NewCubic, congestion.NewReference, congestion.NewNone}[r.IntN(5)]
	c.NoDelay = kcp.NoDelay(r.IntN(4))
	c.FastResend = one(0, -1, 1, 3)
	c.FastResendLimit = one(0, -1, 1)
	c.Redundancy = float64(one(0, 0, 1, 4))
	if r.IntN(3) == 0 {
		c.FEC = kcp.FEC{Data: 1 + r.IntN(10), Parity: 1 + r.IntN(4)}
	}
	c.PeerTimeout = time.Duration(10+r.IntN(20)) * time.Second
	c.KeepAlive = time.Duration(one(0, -1, 1, 5)) * time.Second
	c.IdleTimeout = time.Duration(one(0, 0, 40)) * time.Second
	c.Linger = time.Duration(one(0, -1, 1, 10)) * time.Second
	c.DeadLink = one(0, 0, 40)
	if w.streams {
		c.MaxStreams = one(0, 1, 4)
		c.StreamReceiveBuffer = one(0, 1<<16, 100000)
		c.StreamWriteBuffer = one(0, 4096, 1<<16)
	}
	for c.Validate() != nil {
		c.MTU += 20
	}
	return &c
}

// serverSettings adds limits of what unknown senders may cause.
func (w *arena) serverSettings() *kcp.Config {
	r, c := w.random, w.settings()
	one := func(of ...int) int { return of[r.IntN(len(of))] }
	c.Backlog = one(0, 4, 16)
	c.MaxSessions = one(0, 16, 64)
	c.MaxHalfOpen = one(0, 2, 16)
	c.MaxSessionsPerAddress = one(0, 0, 8)
	c.MaxBuffered = one(0, 1<<20)
	c.AddressValidation = kcp.AddressValidation(r.IntN(2))
	if r.IntN(3) == 0 {
		c.LegacyPeers = kcp.LegacyRefuse
	}
	w.finds = c.KeepAlive >= 0
	if w.insider && r.IntN(3) == 0 {
		c.MaxBuffered = one(1<<18, 1<<19, 1<<20)
	}
	if c.TLS != nil {
		// What it answers to a ClientHello that is repeated has other secrets, and
		// the same random number.
		c.TLS = c.TLS.Clone()
		c.TLS.KeyLogWriter = nil
	}
	w.hook(c)
	return c
}

// hook has what the server calls of its user's ask the server for its state: it
// is to be called without the server's locks.
func (w *arena) hook(c *kcp.Config) {
	ask := func() {
		if l := w.listener; l != nil {
			_ = l.Stats()
		}
	}
	c.Logger = slog.New(askingHandler(ask))
	newControl := c.CongestionControl
	if newControl == nil {
		newControl = congestion.NewBBR
	}
	c.CongestionControl = func() congestion.Control {
		ask()
		return newControl()
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

// endpoint opens an endpoint at addr.
func (w *arena) endpoint(addr string, config *kcp.Config) (*kcp.Endpoint, *netsim.PacketConn) {
	pc, err := w.net.Listen(addr)
	if err != nil {
		w.t.Fatal(err)
	}
	e, err := kcp.NewEndpoint(pc, config)
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endpoints = append(w.endpoints, e)
	w.limits = append(w.limits, config.MaxBuffered)
	return e, pc
}

// note keeps c for the accounts of its endpoint.
func (w *arena) note(e *kcp.Endpoint, c *kcp.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[e] = append(w.conns[e], c)
}

// within runs one call of an application, which may take so long, and as long
// again as the attack lasts.
func (w *arena) within(limit time.Duration, name string, call func()) {
	start := time.Now()
	w.mu.Lock()
	for i := 0; ; i++ {
		if _, taken := w.calls[name]; !taken {
			break
		}
		name = fmt.Sprintf("%s, call %d", name, i)
	}
	w.calls[name] = start
	w.mu.Unlock()
	call()
	w.mu.Lock()
	delete(w.calls, name)
	w.mu.Unlock()
	if rest := w.until.Sub(start); rest > 0 && limit == patience {
		limit += rest
	}
	if took := time.Since(start); took > limit {
		w.t.Errorf("%s took %v", name, took)
	}
}

// watch fails when not all calls have returned long after the attack, and
// ends the sessions then, so that the test can end.
func (w *arena) watch() (stop func() bool) {
	timer := time.AfterFunc(4*patience, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for name, since := range w.calls {
			w.t.Errorf("%s hangs since %v", name, time.Since(since))
		}
		stacks := make([]byte, 1<<20)
		w.t.Errorf("not at an end:\n%s", stacks[:runtime.Stack(stacks, true)])
		for _, e := range w.endpoints {
			go func() { _ = e.Close() }()
		}
	})
	return timer.Stop
}

// check is called before a packet is injected. What it returns fails if the
// packet has cost more packets at once than it may: for each of its segments an
// answer, and what acknowledgements in it let leave, or have repeated.
func (w *arena) check(p recorded) func() {
	w.mu.Lock()
	var target *kcp.Endpoint
	for i, e := range w.endpoints {
		if e.LocalAddr().String() == p.to.String() {
			target = e
			if limit := w.limits[i]; limit > 0 {
				// Beyond half of it more, and 1 MiB, nobody is spared. What one
				// packet allocates comes before that.
				if held := e.Stats().Buffered; held > limit+max(limit/2, 1<<20)+1<<16 {
					w.t.Errorf("%d bytes are held, of %d", held, limit)
				}
			}
		}
	}
	w.mu.Unlock()
	if target == nil {
		return nil
	}
	work := func() (flight, sent int) {
		w.mu.Lock()
		conns := slices.Clone(w.conns[target])
		w.mu.Unlock()
		for _, c := range conns {
			s := c.Stats()
			flight += s.InFlight
			sent += int(s.SegmentsSent)
		}
		return flight, sent
	}
	flight, sent := work()
	packets := w.attacker.sentBy(p.to)
	return func() {
		_, now := work()
		// With parity each packet may be five, and a segment two pieces.
		limit := 64 + 2*len(p.data)/headerSize + 10*(now-sent+2*flight)
		if n := w.attacker.sentBy(p.to) - packets; n > limit {
			w.t.Errorf("%d packets for one of %d bytes, with %d in flight and %d new segments", n, len(p.data), flight, now-sent)
		}
	}
}

// bystander opens the session that is not attacked. Its server's side is an
// echo; see accept.
func (w *arena) bystander() {
	w.attacker.spare(netip.MustParseAddrPort(arenaBystander))
	config := w.config
	config.PeerTimeout = time.Minute
	e, _ := w.endpoint(arenaBystander, &config)
	if c := w.reach(e, "bystander"); c != nil {
		size := 5000 + w.random.IntN(w.volume)
		w.apps.Go(func() { w.converseStream(c, "bystander", size) })
	}
}

// reach opens a session with the server that is not attacked. On a bad path it
// may take more than one Dial.
func (w *arena) reach(e *kcp.Endpoint, name string) (c *kcp.Conn) {
	var err error
	w.within(time.Minute, name+"'s Dial", func() {
		for range 3 {
			if c, err = e.Dial(context.Background(), w.listener.Addr()); err == nil {
				return
			}
		}
		w.t.Errorf("%s: %v; %+v", name, err, w.listener.Stats())
	})
	return c
}

// flow is a session, or a stream of one.
type flow interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// converseStream is converse, on a stream of c if streams are used.
func (w *arena) converseStream(c *kcp.Conn, name string, size int) {
	if !w.streams {
		w.converse(c, name, size)
		return
	}
	s, err := c.OpenStream(context.Background(), nil)
	if err != nil {
		w.t.Errorf("%s: OpenStream: %v", name, err)
	} else {
		w.converse(s, name, size)
	}
	w.within(patience, name+"'s Close", func() { _ = c.Close() })
}

// converse sends bytes to an echo and holds what comes back against them.
func (w *arena) converse(c flow, name string, size int) {
	const key = 77
	var calls sync.WaitGroup
	calls.Go(func() {
		for at := 0; at < size; {
			p := make([]byte, min(500, size-at))
			fill(p, key, uint64(at))
			w.within(patience, name+"'s Write", func() {
				if err := w.send(c, p, name); err != nil {
					w.t.Errorf("%s: Write after %d of %d bytes: %v", name, at, size, err)
				}
			})
			at += len(p)
			time.Sleep(20 * time.Millisecond)
		}
	})
	p := make([]byte, 3000)
	for at := 0; at < size; {
		var n int
		var err error
		w.within(patience, name+"'s Read", func() { n, err = c.Read(p) })
		if wrong := differs(p[:n], key, uint64(at)); wrong >= 0 {
			w.t.Errorf("%s: byte %d is wrong", name, at+wrong)
		}
		if at += n; err != nil {
			w.t.Errorf("%s: Read after %d of %d bytes: %v", name, at, size, err)
			break
		}
	}
	calls.Wait()
	// The echo closes the session when it has all. Acknowledgements that are lost
	// then are not repeated, so the receipts have to be there before.
	w.within(2*time.Minute, name+"'s receipts", func() {
		for end := time.Now().Add(time.Minute); w.receipts.missing(name) && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
	})
	w.receipts.check(w, name, true)
	if err := c.CloseWrite(); err != nil {
		w.t.Errorf("%s: CloseWrite: %v", name, err)
	}
	w.within(patience, name+"'s last Read", func() {
		if n, err := c.Read(p); n > 0 || err == nil {
			w.t.Errorf("%s: read %d bytes more, %v", name, n, err)
		}
	})
	w.within(patience, name+"'s Close", func() { _ = c.Close() })
}

// send writes p, as a message with a receipt if there are messages.
func (w *arena) send(f flow, p []byte, name string) error {
	if s, ok := f.(interface {
		SendMessage([]byte, *kcp.MessageOptions) error
	}); ok && w.insider && (w.streams || w.config.MessageMode) {
		return w.receipts.note(name, func(done func(error)) error {
			return s.SendMessage(p, &kcp.MessageOptions{Done: done})
		})
	}
	_, err := f.Write(p)
	return err
}

// echo is the other side of converseStream.
func (w *arena) echo(c *kcp.Conn) {
	w.within(2*patience, "echo", func() {
		var f flow = c
		if w.streams {
			s, err := c.AcceptStream(context.Background())
			if err != nil {
				w.t.Errorf("echo: AcceptStream: %v", err)
				return
			}
			f = s
			defer func() { _ = c.Close() }()
		}
		p := make([]byte, 400)
		for {
			n, err := f.Read(p)
			if err == io.EOF {
				break
			}
			if err == nil {
				_, err = f.Write(p[:n])
			}
			if err != nil {
				w.t.Errorf("echo: %v", err)
				break
			}
		}
		_ = f.Close()
	})
}

// newcomer demands that the server serves whoever comes after the attack.
func (w *arena) newcomer() {
	addr := netip.MustParseAddrPort("10.0.0.10:4000")
	w.attacker.spare(addr)
	e, _ := w.endpoint(addr.String(), &w.config)
	if c := w.reach(e, "newcomer"); c != nil {
		w.converseStream(c, "newcomer", 2000)
	}
}

// spares reports whether a session is one that is not attacked.
func spares(c *kcp.Conn) bool {
	ip := c.RemoteAddr().(*net.UDPAddr).IP.String()
	return ip == "10.0.0.9" || ip == "10.0.0.10"
}

// accept serves the sessions that the listener has, each by an application of
// its own, and takes its time over it.
func (w *arena) accept(random *rand.Rand, lag time.Duration) {
	for i := uint64(0); ; i++ {
		c, err := w.listener.AcceptKCP(context.Background())
		if err != nil {
			return
		}
		w.note(w.listener.Endpoint(), c)
		if spares(c) {
			w.apps.Go(func() { w.echo(c) })
			continue
		}
		x := &application{w: w, c: c, name: fmt.Sprintf("session %d of the server", i), random: rand.New(rand.NewPCG(w.seed, 1000+i))}
		x.waits = w.finds && x.random.IntN(4) == 0
		w.apps.Go(x.run)
		if lag > 0 && time.Now().Before(w.until) {
			time.Sleep(time.Duration(random.Int64N(int64(lag))))
		}
	}
}

// checkBooks demands that nothing is left of the sessions, once what lingers
// in the background has had its time, and that all receipts have come.
func (w *arena) checkBooks() {
	time.Sleep(3 * time.Minute)
	w.receipts.check(w, "", false)
	for _, e := range w.endpoints {
		if s := e.Stats(); s.Sessions != 0 || s.HalfOpen != 0 || s.Buffered != 0 || s.Backlog != 0 {
			w.t.Errorf("%v: left are %d sessions, %d half open, %d bytes, backlog %d", e.LocalAddr(), s.Sessions, s.HalfOpen, s.Buffered, s.Backlog)
		}
	}
}
