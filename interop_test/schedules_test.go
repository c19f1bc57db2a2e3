package interop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

const (
	schedulePath = 20 * time.Millisecond // one way
	scheduleHold = 300 * time.Millisecond
	scheduleTime = 8 * time.Second

	scheduleOvertake = time.Millisecond // what leaves so much later arrives first
)

// scheduleRun is a question and its answer, between a session and kcp-go's state
// machine.
type scheduleRun struct {
	plan             testenv.Schedule
	net              *netsim.Network
	question, answer []byte

	mu    sync.Mutex // guards what follows
	count map[testenv.Side]int
	sent  []testenv.Packet
	wrong []string
}

func (r *scheduleRun) fail(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrong = append(r.wrong, fmt.Sprintf(format, args...))
}

// scheduledSocket does to its packets what the plan says.
type scheduledSocket struct {
	*netsim.PacketConn
	r    *scheduleRun
	side testenv.Side
}

func (r *scheduleRun) listen(side testenv.Side, addr string) *scheduledSocket {
	pc, err := r.net.Listen(addr)
	if err != nil {
		panic(err)
	}
	return &scheduledSocket{pc, r, side}
}

// WriteTo implements net.PacketConn.
func (s *scheduledSocket) WriteTo(b []byte, addr net.Addr) (int, error) {
	return s.WriteToAddrPort(b, addr.(*net.UDPAddr).AddrPort())
}

// WriteToAddrPort is WriteTo as an endpoint calls it.
func (s *scheduledSocket) WriteToAddrPort(b []byte, to netip.AddrPort) (int, error) {
	s.r.mu.Lock()
	s.r.count[s.side]++
	p := testenv.Packet{From: s.side, N: s.r.count[s.side]}
	s.r.sent = append(s.r.sent, p)
	fault, _ := s.r.plan.At(p)
	s.r.mu.Unlock()
	switch fault {
	case testenv.Drop:
		return len(b), nil
	case testenv.Hold, testenv.Overtake:
		late, delay := bytes.Clone(b), schedulePath+scheduleHold
		if fault == testenv.Overtake {
			delay = schedulePath + scheduleOvertake
		}
		time.AfterFunc(delay, func() { s.r.net.Inject(s.AddrPort(), to, late) })
		return len(b), nil
	case testenv.Duplicate:
		_, _ = s.PacketConn.WriteToAddrPort(b, to)
	}
	return s.PacketConn.WriteToAddrPort(b, to)
}

// kcpGo returns kcp-go's end. It dials to, unless that is nil.
func (r *scheduleRun) kcpGo(side testenv.Side, addr string, to net.Addr) *machine {
	m := &machine{pc: r.listen(side, addr), window: 256, arrived: make(chan struct{}, 1)}
	if to != nil {
		m.begin(77, to)
	}
	return m
}

// converse is the session's part: it takes or sends, and closes.
func converse(c *kcp.Conn, sends, takes []byte, first bool) error {
	take := func() error {
		got := make([]byte, len(takes))
		_, err := io.ReadFull(c, got)
		if err == nil && !bytes.Equal(got, takes) {
			err = errors.New("wrong bytes")
		}
		return err
	}
	var err error
	if !first {
		err = take()
	}
	if err == nil {
		_, err = c.Write(sends)
	}
	if err == nil && first {
		err = take()
	}
	return errors.Join(err, c.Close())
}

// run is one run. If asks is set, the session asks, and else kcp-go.
func (r *scheduleRun) run(ctx context.Context, asks bool) {
	begun := time.Now()
	ours, theirs, peer := testenv.Server, testenv.Client, "10.0.0.2:5000"
	if asks {
		ours, theirs = theirs, ours
	}
	pc := r.listen(ours, "10.0.0.1:4000")
	e, err := kcp.NewEndpoint(pc, &kcp.Config{Repetition: netsim.NewRepetition(1)})
	if err != nil {
		panic(err)
	}
	var l *kcp.Listener
	var end *machine
	if asks {
		end = r.kcpGo(theirs, peer, nil)
	} else {
		l, _ = e.Listen()
		end = r.kcpGo(theirs, peer, pc.LocalAddr())
		end.write(r.question)
	}
	go end.run(ctx)
	both := make(chan error, 2)
	go func() { both <- r.session(e, l, end.pc.LocalAddr()) }()
	go func() {
		wants := r.answer
		if asks {
			wants = r.question
		}
		if got := end.receive(wants, time.After(2*scheduleTime)); !bytes.Equal(got, wants) {
			both <- fmt.Errorf("kcp-go has got wrong bytes, or waits with %d", len(got))
			return
		}
		if asks {
			end.write(r.answer)
		}
		both <- nil
	}()
	if err := errors.Join(<-both, <-both); err != nil {
		r.fail("%v", err)
	}
	if took := time.Since(begun); took > scheduleTime {
		r.fail("it took %v", took)
	}
	time.Sleep(scheduleTime)
	if s := e.Stats(); s.Sessions+s.Buffered+s.WriteBuffered != 0 || s.Dialled+s.Accepted != 1 {
		r.fail("left: %d sessions of %d, %d bytes held, %d to be written", s.Sessions, s.Dialled+s.Accepted, s.Buffered, s.WriteBuffered)
	}
	_, _ = e.Close(), pc.Close()
}

// session is our end.
func (r *scheduleRun) session(e *kcp.Endpoint, l *kcp.Listener, peer net.Addr) error {
	ctx := context.Background()
	if l == nil {
		c, err := e.Dial(ctx, peer, nil)
		if err != nil {
			return err
		}
		return converse(c, r.question, r.answer, true)
	}
	c, err := l.AcceptKCP(ctx)
	if err != nil {
		return err
	}
	return converse(c, r.answer, r.question, false)
}

// Every placement of a fault on the packets of a conversation with kcp-go, in either
// role, or of three if time allows: all bytes arrive, within 8 s, and nothing is left.
// e2e has the same for sessions. KCP_SCHEDULE runs one schedule alone.
func TestSchedules(t *testing.T) {
	depth := 1
	if long {
		depth = 3
	}
	faults := []testenv.Act{testenv.Drop, testenv.Duplicate, testenv.Hold, testenv.Overtake}
	for name, asks := range map[string]bool{"asked": false, "asking": true} {
		t.Run(name, func(t *testing.T) {
			var runs, failing atomic.Int32
			try := func(plan testenv.Schedule) []testenv.Packet {
				r := &scheduleRun{plan: plan, question: bytes.Repeat([]byte("question"), 200), answer: bytes.Repeat([]byte("reply"), 700), count: make(map[testenv.Side]int)}
				synctest.Test(t, func(t *testing.T) {
					r.net = netsim.NewNetwork(1, netsim.LinkConfig{Delay: schedulePath})
					r.run(t.Context(), asks)
				})
				if runs.Add(1); len(r.wrong) > 0 {
					failing.Add(1)
					t.Errorf("KCP_SCHEDULE=%q -run TestSchedules/%s: %q", plan, name, r.wrong)
				}
				return r.sent
			}
			if text, ok := os.LookupEnv("KCP_SCHEDULE"); ok {
				plan, err := testenv.ParseSchedule(text)
				require.NoError(t, err)
				t.Logf("sent %v", try(plan))
				return
			}
			var grow func(plan testenv.Schedule, more int)
			grow = func(plan testenv.Schedule, more int) {
				if failing.Load() > 20 {
					return
				}
				sent := try(plan)
				if more > 0 {
					for _, next := range plan.Extend(sent, faults) {
						grow(next, more-1)
					}
				}
			}
			grow(nil, depth)
			t.Logf("%d schedules, %d failing", runs.Load(), failing.Load())
		})
	}
}
