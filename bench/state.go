package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/arqnet/kcp"
)

// The state suite runs a server that sends each of its players 3 KB, 20 times a
// second, from one loop over a kcp.Group. The clients are in another process, and
// read. That too is one group, but each client has a socket of its own.
//
// streams sends each state as a message of a stream, with a lifetime of 100 ms.
// datagrams cuts it into three datagrams.
//
// The metric cpu is the user and system time of the server's process, for each
// state that it has sent, and clients cpu is of the other process. Goroutines are
// the server process's, of which a few carry out orders. Packets are the
// server's for each state, delivered the share of bytes that have arrived.
//
// Cases with -lowlatency use kcp.LowLatency at both ends, those with -5hz send 5
// times a second.

const (
	serverState     = "state" // kind of a serverJob
	stateClients    = "state clients"
	stateStreams    = "streams"
	stateDatagrams  = "datagrams"
	stateSize       = 3 << 10
	statePiece      = 1 << 10 // of a state, in a datagram
	stateRate       = 20
	stateLifetime   = 100 * time.Millisecond
	metricServer    = "goroutines"
	metricPackets   = "packets"
	metricDelivered = "delivered"
)

func init() {
	serverImpls[stateStreams] = serverImpl{listen: listenState}
	serverImpls[stateDatagrams] = serverImpl{listen: listenState}
	register(&suite{
		name:     "state",
		about:    "3 KB to each player 20 times a second from one loop; cpu is the server's alone",
		duration: 3 * time.Second,
		cases:    []string{"state-20", "state-200", "state-1000"},
		optional: []string{"state-1000-lowlatency", "state-1000-5hz", "state-1000-5hz-lowlatency"},
		impls:    []string{stateStreams, stateDatagrams},
		metrics: []metric{
			{metricCPU, "µs a state"}, {metricClientsCPU, "µs a state"}, {metricServer, "count"},
			{metricPackets, "a state"}, {metricDelivered, "share"},
		},
		measure: measureState,
		thresholds: []threshold{
			{c: "state-1000", impl: stateStreams, metric: metricCPU, max: 1.5, of: stateDatagrams},
		},
	})
}

// parseStateCase returns the measurement that a case's name stands for.
func parseStateCase(c string) (job serverJob, err error) {
	unknown := fmt.Errorf("no case %q", c)
	parts := strings.Split(c, "-")
	if len(parts) < 2 || parts[0] != serverState {
		return job, unknown
	}
	job.Kind, job.Rate = serverState, stateRate
	if job.Clients, err = strconv.Atoi(parts[1]); err != nil || job.Clients < 1 {
		return job, unknown
	}
	for _, variant := range parts[2:] {
		switch variant {
		case "lowlatency":
			job.LowLatency = true
		case "5hz":
			job.Rate = 5
		default:
			return job, unknown
		}
	}
	return job, nil
}

// measureState runs the server and the clients of one measurement.
func measureState(c, impl string, d time.Duration) (f figures, err error) {
	job, err := parseStateCase(c)
	if err != nil {
		return nil, err
	}
	if impl != stateStreams && impl != stateDatagrams {
		return nil, fmt.Errorf("no implementation %q", impl)
	}
	if err := roomForSockets(&job); err != nil {
		return nil, err
	}
	job.Impl, job.Profile = impl, serverProfile
	server, err := startChild(serverRole, 0)
	if err != nil {
		return nil, err
	}
	defer server.kill()
	clients, err := startChild(stateClients, 0)
	if err != nil {
		return nil, err
	}
	defer clients.kill()
	r := &serverRun{job: job, server: server, clients: clients}
	if err := r.connect(); err != nil {
		return nil, err
	}
	time.Sleep(min(d/2, time.Second))
	var before, after [2]answer
	for i, p := range []*child{server, clients} {
		if before[i], err = p.ask(order{Do: doBegin}, answerLimit); err != nil {
			return nil, err
		}
	}
	time.Sleep(max(d, 2*time.Second/time.Duration(job.Rate))) // there is a state in it
	for i, p := range []*child{server, clients} {
		if after[i], err = p.ask(order{Do: doMark}, answerLimit); err != nil {
			return nil, err
		}
		after[i].subtract(before[i])
	}
	sent, states := float64(after[0].moved()), float64(after[0].moved())/stateSize
	return figures{
		metricCPU:        float64(after[0].CPU) / 1e3 / states,
		metricClientsCPU: float64(after[1].CPU) / 1e3 / states,
		metricServer:     float64(after[0].Goroutines),
		metricPackets:    float64(after[0].Sent) / states,
		metricDelivered:  float64(after[1].moved()) / sent,
	}, nil
}

// stateEnd is the server. Its tallies count what it has sent.
type stateEnd struct {
	*kcp.Listener
	job     *serverJob
	players []statePlayer
	batch   []kcp.Outgoing
}

// statePlayer is a session of stateEnd.
type statePlayer struct {
	conn   *kcp.Conn
	stream *kcp.Stream // nil: datagrams
	tally  *tally
}

func listenState(job *serverJob) (serverEnd, error) {
	l, err := newKCPListener(job)
	if err != nil {
		return nil, err
	}
	return &stateEnd{Listener: l, job: job}, nil
}

func (e *stateEnd) serve(p *serverProcess) error {
	g := kcp.NewGroup()
	g.ReportStreams()
	if err := e.AcceptInto(g); err != nil {
		return err
	}
	interval := time.Second / time.Duration(e.job.Rate)
	state := make([]byte, stateSize)
	fill(state)
	events := make([]kcp.Event, 256)
	for next := time.Now(); ; next = next.Add(max(interval, time.Since(next).Truncate(interval))) {
		if err := e.takeUntil(p, g, next, events); err != nil {
			return err
		}
		binary.LittleEndian.PutUint64(state, uint64(next.UnixNano()))
		if err := e.send(g, state); err != nil {
			return err
		}
	}
}

// takeUntil takes events until it is time to send.
func (e *stateEnd) takeUntil(p *serverProcess, g *kcp.Group, next time.Time, events []kcp.Event) error {
	ctx, cancel := context.WithDeadline(context.Background(), next)
	defer cancel()
	for {
		n, err := g.Wait(ctx, events)
		if err != nil && ctx.Err() == nil {
			return err
		}
		for _, event := range events[:n] {
			switch event.Kind {
			case kcp.EventAccepted:
				player := statePlayer{conn: event.Conn, tally: p.begin()}
				if e.job.Impl == stateStreams {
					if player.stream, err = event.Conn.TryOpenStream(nil); err != nil {
						return err
					}
				}
				e.players = append(e.players, player)
			case kcp.EventEnded:
				return event.Err
			}
		}
		if n == 0 || ctx.Err() != nil {
			return nil
		}
	}
}

// send sends a state to all players.
func (e *stateEnd) send(g *kcp.Group, state []byte) error {
	if len(e.players) < e.job.Clients {
		return nil // the others could not open their sessions in peace
	}
	e.batch = e.batch[:0]
	for _, p := range e.players {
		if p.stream != nil {
			e.batch = append(e.batch, kcp.Outgoing{Stream: p.stream, Data: state, Lifetime: stateLifetime})
		} else {
			for at := 0; at < stateSize; at += statePiece {
				e.batch = append(e.batch, kcp.Outgoing{Conn: p.conn, Data: state[at : at+statePiece], Datagram: true})
			}
		}
		p.tally.received.Add(stateSize)
	}
	if g.Send(e.batch) == len(e.batch) {
		return nil
	}
	for _, o := range e.batch {
		if o.Err != nil && !errors.Is(o.Err, kcp.ErrWouldBlock) {
			return o.Err
		}
	}
	return nil
}

// sent returns how many packets the server has sent.
func (e *stateEnd) sent() uint64 { return e.Endpoint().Stats().PacketsSent }

// stateReaders is the clients' process.
type stateReaders struct {
	mu       sync.Mutex
	received uint64 // bytes
	err      error
}

// do carries out an order.
func (r *stateReaders) do(o order) (answer, error) {
	switch o.Do {
	case doPrepare:
		return answer{}, r.prepare(o)
	case doBegin, doMark:
		a := usedSoFar()
		r.mu.Lock()
		defer r.mu.Unlock()
		a.Received = []uint64{r.received}
		return a, r.err
	}
	return answer{}, errOrder
}

// prepare opens all sessions.
func (r *stateReaders) prepare(o order) error {
	ctx, cancel := context.WithTimeout(context.Background(), o.Limit)
	defer cancel()
	dial, err := kcpDialer(&o)
	if err != nil {
		return err
	}
	g := kcp.NewGroup()
	g.ReportStreams()
	if err := g.Handle(r.handle); err != nil {
		return err
	}
	return inParallel(o.Job.Clients, dialsAtOnce, func(i int) error {
		c, err := dial(ctx, i)
		if err != nil {
			return err
		}
		return g.Add(c.(*kcp.Conn))
	})
}

// handle counts what has arrived.
func (r *stateReaders) handle(events []kcp.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range events {
		r.received += uint64(len(e.Data))
		if e.Kind == kcp.EventEnded {
			r.err = e.Err
		}
	}
}
