package schedules

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/schedule"
	"github.com/arqnet/kcp/internal/takeover"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/testenv/life"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A socket that changes hands at a packet is one of the system, so these runs are in real
// time, and few. The rules are those of TestSchedules, but for times.

// takenRun is a run over sockets of the system. Its server is handed over to another
// listener of this process.
type takenRun struct {
	*trial
	relay *faultyRelay

	taking sync.WaitGroup // takeOver

	mu        sync.Mutex // guards what follows
	listeners []*kcp.Listener
	handed    chan error // what HandOver has returned
}

// faultyRelay carries packets between a client and a server, and does to them what the
// plan says.
type faultyRelay struct {
	in, out *net.UDPConn // towards the client, and the server
	tr      *trial
	event   func()
	carries sync.WaitGroup

	mu     sync.Mutex // guards what follows
	client *net.UDPAddr
}

func newFaultyRelay(tr *trial, server net.Addr, event func()) (*faultyRelay, error) {
	in, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	out, err := net.DialUDP("udp4", nil, server.(*net.UDPAddr))
	if err != nil {
		_ = in.Close()
		return nil, err
	}
	r := &faultyRelay{in: in, out: out, tr: tr, event: event}
	r.carries.Go(func() { r.carry(in, schedule.Client, func(b []byte) { _, _ = out.Write(b) }) })
	r.carries.Go(func() {
		r.carry(out, schedule.Server, func(b []byte) {
			r.mu.Lock()
			to := r.client
			r.mu.Unlock()
			_, _ = in.WriteToUDP(b, to)
		})
	})
	return r, nil
}

// close returns when no packet is carried any more.
func (r *faultyRelay) close() {
	_, _ = r.in.Close(), r.out.Close()
	r.carries.Wait()
}

// relayed is a packet on its way.
type relayed struct {
	at time.Time // when it arrives
	b  []byte
}

// relayDelay is how long a packet takes.
const relayDelay = 2 * time.Millisecond

// carry takes packets of one side to the other, in order.
func (r *faultyRelay) carry(from *net.UDPConn, side schedule.Side, write func(b []byte)) {
	way := make(chan relayed, 1000)
	defer close(way)
	go func() {
		for p := range way {
			time.Sleep(time.Until(p.at))
			write(p.b)
		}
	}()
	for buf := make([]byte, 1<<16); ; {
		n, addr, err := from.ReadFromUDP(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // a port that was closed
		}
		if side == schedule.Client {
			r.mu.Lock()
			r.client = addr
			r.mu.Unlock()
		}
		p := relayed{time.Now().Add(relayDelay), bytes.Clone(buf[:n])}
		fault := r.met(side)
		switch fault {
		case schedule.Drop:
			continue
		case schedule.Hold:
			time.AfterFunc(relayDelay+heldFor, func() { write(p.b) })
			continue
		case schedule.Damage:
			p.b[n/2] ^= 1
		case schedule.Duplicate:
			way <- p
		}
		way <- p
	}
}

// met counts a packet, and has the event happen that the plan has at it. It returns the
// fault that the packet meets.
func (r *faultyRelay) met(side schedule.Side) schedule.Act {
	r.tr.mu.Lock()
	r.tr.count[side]++
	p := schedule.Packet{From: side, N: r.tr.count[side]}
	r.tr.sent = append(r.tr.sent, p)
	r.tr.mu.Unlock()
	fault, event := r.tr.plan.At(p)
	if event == schedule.TakeOver {
		r.event()
	}
	return fault
}

// serve accepts sessions of l.
func (r *takenRun) serve(l *kcp.Listener) {
	p := &process{who: "server", endpoint: l.Endpoint()}
	for {
		c, err := l.AcceptKCP(context.Background())
		if err != nil {
			return
		}
		r.server().accepted.Add(1)
		r.lives.Add(1)
		go func() {
			defer r.lives.Add(-1)
			r.newEnd(1, c, p).live()
		}()
	}
}

// unhurried returns a context for takeovers that have to succeed on a busy machine.
func unhurried() context.Context { return takeover.WithFactor(context.Background(), 1000) }

// takeOver hands the first listener over to a second one.
func (r *takenRun) takeOver() {
	old, next, err := socketPair()
	if err != nil {
		r.fail("takeover: %v", err)
		return
	}
	r.mu.Lock()
	first := r.listeners[0]
	r.mu.Unlock()
	go func() {
		defer old.Close()
		r.handed <- first.HandOver(unhurried(), old)
	}()
	defer next.Close()
	l, err := kcp.TakeOver(unhurried(), next, &r.rules)
	if err != nil {
		r.fail("takeover: %v", err)
		return
	}
	r.mu.Lock()
	r.listeners = append(r.listeners, l)
	r.mu.Unlock()
	go r.serve(l)
}

func socketPair() (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			return nil, nil, err
		}
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1], nil
}

// runTaken runs a conversation, and returns which packets were sent and what was wrong.
func runTaken(w *wire, l *conversation, plan schedule.Schedule) (sent []schedule.Packet, failures []string) {
	tr := &trial{wire: w, life: l, plan: plan, rules: w.config, begun: time.Now(), count: make(map[schedule.Side]int), sessions: make(map[uint32]*life.Session), servers: []*process{{}}}
	first, err := kcp.Listen("udp4", "127.0.0.1:0", &tr.rules)
	if err != nil {
		return nil, []string{err.Error()}
	}
	r := &takenRun{trial: tr, handed: make(chan error, 1), listeners: []*kcp.Listener{first}}
	if r.relay, err = newFaultyRelay(tr, first.Addr(), func() { r.taking.Go(r.takeOver) }); err != nil {
		return nil, []string{err.Error()}
	}
	go r.serve(first)
	c, err := kcp.Dial("udp4", r.relay.in.LocalAddr().String(), &tr.rules)
	if err == nil {
		tr.newEnd(0, c, &process{who: "client"}).perform()
	} else {
		tr.fail("Dial: %v", err)
	}
	r.judgeTaken()
	tr.judgeSessions()
	return tr.sent, tr.failures
}

// judgeTaken judges what is left of a run.
func (r *takenRun) judgeTaken() {
	over := func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		n := 0
		for _, l := range r.listeners {
			n += l.Stats().Sessions
		}
		return n == 0 && r.server().accepted.Load() > 0
	}
	slow := time.AfterFunc(time.Minute, func() {
		fmt.Fprintf(os.Stderr, "after a minute sessions are left of KCP_SCHEDULE=%q of %s/%s\n", r.plan, r.wire.name, r.life.name)
	})
	for !over() {
		time.Sleep(time.Millisecond)
	}
	slow.Stop()
	r.awaitLives()
	r.relay.close()
	r.taking.Wait()
	if n := r.server().accepted.Load(); n != 1 {
		r.fail("Accept has returned %d sessions of 1", n)
	}
	r.mu.Lock()
	all := r.listeners
	r.mu.Unlock()
	if len(all) > 1 {
		if err := <-r.handed; err != nil {
			r.fail("HandOver: %v", err)
		}
	}
	for _, l := range all {
		_ = l.Endpoint().Close()
	}
}

// Takeovers at each packet of some conversations, alone and beside a fault.
func TestSchedulesOfTakeovers(t *testing.T) {
	testenv.Long(t)
	lives := map[string]bool{"request": true, "streams": true, "closes": true, "lastwords": true, "datagrams": true}
	one := uint64(1)
	if testing.Short() {
		one = 25
	}
	seed := scheduleSeed(t)
	room := make(chan struct{}, 8*runtime.GOMAXPROCS(0))
	text, alone := os.LookupEnv("KCP_SCHEDULE")
	var runs, failing atomic.Int32
	t.Cleanup(func() { t.Logf("seed %d: %d schedules, %d failing", seed, runs.Load(), failing.Load()) })
	for _, w := range scheduleWires(t) {
		for _, l := range w.lives {
			if !lives[l.name] {
				continue
			}
			t.Run(w.name+"/"+l.name, func(t *testing.T) {
				t.Parallel()
				var all sync.WaitGroup
				defer all.Wait()
				try := func(plan schedule.Schedule) {
					all.Go(func() {
						room <- struct{}{}
						defer func() { <-room }()
						runs.Add(1)
						if _, failures := runTaken(w, l, plan); len(failures) > 0 {
							failing.Add(1)
							t.Errorf("KCP_SCHEDULE=%q go test ./e2e/schedules -run 'TestSchedulesOfTakeovers/%s/%s$'\n%q", plan, w.name, l.name, failures)
						}
					})
				}
				if alone {
					plan, err := schedule.Parse(text)
					require.NoError(t, err)
					try(plan)
					return
				}
				sent, failures := runTaken(w, l, nil)
				require.Empty(t, failures)
				for _, p := range sent {
					plan := schedule.Schedule{{Packet: p, Act: schedule.TakeOver}}
					beside := plan.Extend(sent, w.faults)
					for _, plan := range append(beside, plan) {
						name := fmt.Sprint(w.name, " ", l.name, " ", plan)
						if (plan.Faults() == 0 || schedule.Share(name, seed, 15)) && schedule.Share(name, seed+1, one) {
							try(plan)
						}
					}
				}
			})
		}
	}
}
