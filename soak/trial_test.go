package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
)

// trial is a run of a plan: what the client's process does.
type trial struct {
	plan  *plan
	port  int
	began time.Time // when the log's time began
	start time.Time // when the path's did
	log   func(format string, args ...any)

	relay  *netsim.Relay
	shared *kcp.Endpoint // nil if each session has its own
	socket net.PacketConn
	stop   chan struct{} // closed when nothing is to happen to the path any more

	mu       sync.Mutex
	server   *serverProcess   // the present one
	servers  []*serverProcess // all
	mapped   []order          // what each server's process has to know
	dials    []dialled        // by session
	apps     []*app           // by session; nil as long as Dial has not succeeded
	eventAt  time.Time        // when Plan.Event began; zero: it did not
	failures []string
}

// dialled is what became of a Dial.
type dialled struct {
	Err      string
	From, To time.Time
	Done     bool
}

func (t *trial) fail(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures = append(t.failures, fmt.Sprintf(format, args...))
}

// result is what the client's process says of a seed.
type result struct {
	Seed            uint64
	Failures, Notes []string
	Sessions        int
	Bytes           int64
	Took            time.Duration
}

// try runs the plan. began is when the time of the log began.
func try(p *plan, began time.Time, log func(string, ...any)) (r result) {
	t := &trial{plan: p, began: began, start: began, log: log, stop: make(chan struct{})}
	t.dials, t.apps = make([]dialled, len(p.Sessions)), make([]*app, len(p.Sessions))
	r.Seed = p.Seed
	if err := t.run(); err != nil {
		t.fail("cannot run: %v", err)
	}
	f := t.facts()
	failures, notes := judge(p, f)
	r.Failures, r.Notes = append(t.failures, failures...), notes
	for _, c := range append(f.Clients, f.Servers...) {
		r.Bytes += c.Read
	}
	r.Sessions, r.Took = len(f.Clients), time.Since(began)
	return r
}

func (t *trial) run() (err error) {
	if t.port, err = freePort(); err != nil {
		return err
	}
	before := descriptors()
	if err := t.startServer(); err != nil {
		return err
	}
	defer func() {
		for _, s := range t.servers {
			s.kill()
		}
	}()
	t.relay, err = netsim.NewRelay(fmt.Sprintf("127.0.0.1:%d", t.port), t.plan.Up, t.plan.Down, t.plan.Seed)
	if err != nil {
		return err
	}
	if err := t.openSocket(); err != nil {
		return err
	}
	t.start = time.Now()
	if err := t.relay.Play(t.plan.course(), t.plan.course()); err != nil {
		return err
	}
	if t.sessions() {
		t.settle()
		t.leave(before)
	}
	return nil
}

// openSocket opens the socket that the sessions share, if they do.
func (t *trial) openSocket() (err error) {
	if t.plan.Client.Sockets != ownSockets {
		t.shared, t.socket, err = t.endpoint()
	}
	return err
}

func (t *trial) endpoint() (*kcp.Endpoint, net.PacketConn, error) {
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	e, err := kcp.NewEndpoint(wrap(t.plan.Client.Sockets, pc), t.plan.config(t.plan.Client))
	return e, pc, err
}

// sessions runs all of them, and what happens meanwhile. It is false if one hangs.
func (t *trial) sessions() bool {
	var running, dials, background sync.WaitGroup
	defer background.Wait() // a restart under way is finished
	defer close(t.stop)
	dials.Add(len(t.plan.Sessions))
	released := make(chan struct{}) // the clients may write
	if t.plan.Event != restartBeforeData {
		close(released)
	}
	background.Go(func() {
		dials.Wait()
		t.tell(order{Over: true})
		if t.plan.Event == restartBeforeData {
			t.restart()
			close(released)
		}
	})
	background.Go(t.rebind)
	background.Go(t.event)
	for i := range t.plan.Sessions {
		running.Go(func() { t.session(i, &dials, released) })
	}
	done := make(chan struct{})
	go func() {
		running.Wait()
		close(done)
	}()
	limit := t.plan.callBound()
	for {
		select {
		case <-done:
			return true
		case <-time.After(100 * time.Millisecond):
		}
		if blocked := t.blocked(limit); len(blocked) > 0 {
			for _, b := range blocked {
				t.fail("hangs: %s", b)
			}
			return false
		}
	}
}

// blocked returns the calls that take longer than limit.
func (t *trial) blocked(limit time.Duration) (all []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, a := range t.apps {
		if a == nil {
			if d := t.dials[i]; !d.Done && !d.From.IsZero() && time.Since(d.From) > limit {
				all = append(all, fmt.Sprintf("session %d, client: Dial for %v", i, time.Since(d.From)))
			}
			continue
		}
		a.mu.Lock()
		for o, since := range a.calls {
			if took := time.Since(since); took > limit {
				all = append(all, fmt.Sprintf("session %d (%s), client: %s for %v", i, t.plan.Sessions[i].Kind, o, took.Round(time.Millisecond)))
			}
		}
		a.mu.Unlock()
	}
	return all
}

// session dials session i and runs its client.
func (t *trial) session(i int, dials *sync.WaitGroup, released chan struct{}) {
	s := t.plan.Sessions[i]
	log := func(format string, args ...any) { t.log("client %d: %s", i, fmt.Sprintf(format, args...)) }
	time.Sleep(s.Start)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if s.GiveUp > 0 {
		defer time.AfterFunc(s.GiveUp, cancel).Stop()
	}
	t.mu.Lock()
	t.dials[i].From = time.Now()
	t.mu.Unlock()
	exits := does(s.Client, closeExit)
	c, own, err := t.dial(ctx, exits)
	log("%v: Dial: %v", s, err)
	t.mu.Lock()
	d := &t.dials[i]
	d.To, d.Done, d.Err = time.Now(), true, class(err)
	if err == nil {
		t.apps[i] = newApp(t.plan, false, i, 0, c, log)
	}
	t.mu.Unlock()
	if err == nil {
		log("conv %08x from %v", c.Conv(), c.LocalAddr())
		t.tell(order{Conv: c.Conv(), Session: i})
	}
	dials.Done()
	if err == nil {
		<-released
		t.apps[i].run(s.Client)
		t.apps[i].awaitReceipts(slack)
	}
	if own != nil {
		_ = own.socket.Close() // as a process that exits would
		_ = own.endpoint.Close()
	}
}

// ownEndpoint is that of a client that exits after its session.
type ownEndpoint struct {
	endpoint *kcp.Endpoint
	socket   net.PacketConn
}

func (t *trial) dial(ctx context.Context, exits bool) (c *kcp.Conn, own *ownEndpoint, err error) {
	e := t.shared
	switch {
	case t.plan.Client.Sockets == ownSockets:
		d := kcp.Dialer{Config: t.plan.config(t.plan.Client)}
		n, err := d.DialContext(ctx, "udp4", t.relay.Addr().String())
		if err != nil {
			return nil, nil, err
		}
		return n.(*kcp.Conn), nil, nil
	case exits:
		var pc net.PacketConn
		if e, pc, err = t.endpoint(); err != nil {
			return nil, nil, err
		}
		own = &ownEndpoint{e, pc}
	}
	c, err = e.Dial(ctx, t.relay.Addr())
	return c, own, err
}

// tell tells the server's process, and those that come after it.
func (t *trial) tell(o order) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mapped = append(t.mapped, o)
	t.server.order(o)
}

func (t *trial) startServer() (err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	life := len(t.servers)
	for range 100 { // the port may still be held
		var s *serverProcess
		if s, err = startServer(t.plan, life, t.port, t.began); err == nil {
			for _, o := range t.mapped {
				s.order(o)
			}
			t.server, t.servers = s, append(t.servers, s)
			t.log("server %d listens", life)
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}

func (t *trial) killServer() {
	t.mu.Lock()
	s := t.server
	t.mu.Unlock()
	s.kill()
	t.log("server %d killed", s.life)
}

func (t *trial) eventBegins() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.eventAt = time.Now()
}

func (t *trial) restart() {
	t.eventBegins()
	t.killServer()
	time.Sleep(t.plan.Downtime)
	if err := t.startServer(); err != nil {
		t.fail("cannot start the server again: %v", err)
	}
}

// pause waits and reports whether the sessions still run.
func (t *trial) pause(d time.Duration) bool {
	select {
	case <-t.stop:
		return false
	case <-time.After(d):
		return true
	}
}

// event lets happen what the plan has.
func (t *trial) event() {
	if t.plan.Event == noEvent || t.plan.Event == restartBeforeData || !t.pause(t.plan.EventAt) {
		return
	}
	switch t.plan.Event {
	case kill:
		t.eventBegins()
		t.killServer()
	case restart, restartInDial:
		t.restart()
	case terminate:
		t.eventBegins()
		t.server.terminate()
	case pathEnds:
		t.eventBegins()
		t.log("the path ends")
		_ = t.relay.Close()
	}
}

func (t *trial) rebind() {
	for t.plan.Rebind > 0 && t.pause(t.plan.Rebind) {
		if err := t.relay.Rebind(); err != nil {
			if !errors.Is(err, net.ErrClosed) {
				t.fail("%v", err)
			}
			return
		}
		t.log("the clients have other addresses")
	}
}

// settle waits until the server has nothing left.
func (t *trial) settle() {
	limit := t.plan.idleBound() + maxPause
	s := t.server
	clientsEnd := time.Now()
	for {
		if _, killed := s.end(); killed {
			return
		}
		select {
		case <-s.exited:
			return // leave looks at how
		default:
		}
		now := s.report()
		if now != nil && now.Sessions == 0 && now.Apps == 0 {
			if now.HalfOpen != 0 || now.Buffered != 0 {
				t.fail("the server has no sessions, but counts %d half open and %d bytes", now.HalfOpen, now.Buffered)
			}
			t.log("the server has no sessions left")
			return
		}
		if waited := time.Since(clientsEnd); waited > limit {
			t.fail("%v after the clients' end the server has %+v", waited.Round(time.Millisecond), now)
			return
		}
		time.Sleep(30 * time.Millisecond)
	}
}

// leave ends everything and looks for what stays behind.
func (t *trial) leave(before int) {
	t.server.order(order{Quit: true})
	for _, s := range t.servers {
		if !s.wait(t.plan.Linger + 3*slack) {
			t.fail("server %d does not exit", s.life)
			s.kill()
		}
		last, killed := s.end()
		switch {
		case killed:
		case last == nil:
			t.fail("server %d has crashed: %v", s.life, s.err)
		case len(last.Left) > 0:
			t.fail("server %d leaves goroutines: %s", s.life, last.Left[0])
		}
		_ = s.stdin.Close() // of a process that is gone
	}
	if t.shared != nil {
		if err := t.shared.Close(); err != nil {
			t.fail("Endpoint.Close: %v", err)
		}
		_ = t.socket.Close()
	}
	_ = t.relay.Close()
	if left := awaitNoGoroutines(4 * slack); len(left) > 0 {
		t.fail("goroutines left at the client, of which the first: %s", left[0])
	}
	for range 100 { // the runtime closes some by itself
		if descriptors() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.fail("%d descriptors open at the client, %d before", descriptors(), before)
}

// descriptors returns how many files are open, 0 where the system does not say.
func descriptors() int {
	files, _ := os.ReadDir("/proc/self/fd")
	return len(files)
}

// freePort returns a port that nobody uses, not even shared.
func freePort() (port int, err error) {
	for range 100 {
		// Below the ports that the system gives to sockets of other trials meanwhile.
		port = 20000 + rand.IntN(10000)
		var pc net.PacketConn
		if pc, err = net.ListenPacket("udp4", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return port, pc.Close()
		}
	}
	return 0, err
}

// facts returns what the judge needs.
func (t *trial) facts() facts {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := facts{Start: t.start, EventAt: t.eventAt, Dials: t.dials}
	for _, a := range t.apps {
		if a != nil {
			f.Clients = append(f.Clients, a.record())
		}
	}
	for _, s := range t.servers {
		f.Servers = append(f.Servers, s.seen()...)
	}
	return f
}
