package takeover

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/stretchr/testify/require"
)

// lossy is a socket that loses packets in both directions.
type lossy struct {
	*net.UDPConn
	loss float64
}

func (l lossy) WriteToAddrPort(b []byte, to netip.AddrPort) (int, error) {
	if rand.Float64() < l.loss {
		return len(b), nil
	}
	return l.UDPConn.WriteToUDPAddrPort(b, to)
}

func (l lossy) ReadFromAddrPort(b []byte) (n int, from netip.AddrPort, err error) {
	for {
		if n, from, err = l.UDPConn.ReadFromUDPAddrPort(b); err != nil || rand.Float64() >= l.loss {
			return n, from, err
		}
	}
}

// load is what TestLoad does. KCP_TAKEOVER_FULL=1 makes it that of a busy server.
type load struct {
	sessions, bulks, upgrades int
	every                     time.Duration // between upgrades
	loss                      float64
}

func theLoad(t *testing.T) load {
	switch {
	case os.Getenv("KCP_TAKEOVER_FULL") != "":
		return load{1000, 10, 5, 12 * time.Second, 0.02}
	case testing.Short():
		return load{50, 2, 2, 700 * time.Millisecond, 0.02}
	}
	return load{200, 5, 5, time.Second, 0.02}
}

// result is what the sessions of one run have seen.
type result struct {
	mu    sync.Mutex
	gaps  []time.Duration // the longest wait for an echo, of each session
	sent  int64           // bytes of bulk transfers
	calls int
}

// A server is upgraded again and again under load. No call fails, all bytes arrive, new
// sessions are with the newest process, and each old one ends with its last session. The
// longest waits for an echo are logged, beside those without upgrades.
func TestLoad(t *testing.T) {
	kinds := []string{"plain", "tls", "aes-gcm", "fec", "shards"}
	if testing.Short() {
		kinds = kinds[:2]
	}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			without, with := new(result), new(result)
			runLoad(t, kind, false, without)
			runLoad(t, kind, true, with)
			for _, r := range []*result{without, with} {
				slices.Sort(r.gaps)
			}
			t.Logf("longest wait for an echo: %v (median %v), without upgrades %v (median %v); %d echoes, %d without; %d MB of bulk, %d without",
				last(with.gaps), middle(with.gaps), last(without.gaps), middle(without.gaps), with.calls, without.calls, with.sent>>20, without.sent>>20)
		})
	}
}

func last(d []time.Duration) time.Duration   { return d[len(d)-1].Round(time.Millisecond) }
func middle(d []time.Duration) time.Duration { return d[len(d)/2].Round(time.Millisecond) }

// runLoad is one run of TestLoad.
func runLoad(t *testing.T, kind string, upgrades bool, r *result) {
	how := theLoad(t)
	p := launch(t, kind, "g0", "").ready()
	ends := clientEnds(t, kind, how)
	processes := []*process{p}
	over := make([]chan struct{}, how.upgrades+1) // closed to end the sessions of a process
	var failed atomic.Pointer[error]
	fail := func(err error) {
		if failed.CompareAndSwap(nil, &err) {
			t.Log(err)
		}
	}
	var sessions sync.WaitGroup
	open := func(g int, count, bulks int) {
		over[g] = make(chan struct{})
		name := p.name
		var begun sync.WaitGroup
		dialling := make(chan struct{}, 50)
		serve := func(first int, wants byte, work func([]*kcp.Conn, <-chan struct{}) error, n int) {
			begun.Add(1)
			sessions.Go(func() {
				conns, err := dialAll(ends, first, n, p.addr, wants, name, dialling)
				begun.Done()
				if err == nil {
					err = work(conns, over[g])
				}
				if err != nil {
					fail(fmt.Errorf("sessions %d to %d of %s: %w", first, first+n-1, name, err))
				}
			})
		}
		for i := 0; i < count; i += perLoop {
			serve(i, wantsEcho, r.echoes, min(perLoop, count-i))
		}
		for i := range bulks {
			serve(count+i, wantsHash, r.bulk, 1)
		}
		begun.Wait()
	}
	open(0, how.sessions, how.bulks)
	for g := 1; g <= how.upgrades; g++ {
		time.Sleep(how.every)
		if upgrades {
			p = p.handsOver("g" + strconv.Itoa(g))
			processes = append(processes, p)
		}
		open(g, how.sessions/50, 1) // few, as all share the machine with their clients
	}
	time.Sleep(how.every)
	for _, p := range processes {
		s := p.stats()
		t.Logf("%s: %d sessions, %d packets, %d forwarded, %d of them dropped, %d dropped by the socket, lag %v, %d write errors", p.name, s.Sessions, s.PacketsReceived, s.Forwarded, s.DropForward, s.SocketDrops, s.Lag, s.WriteErrors)
	}
	order := rand.Perm(len(over))
	for _, g := range order {
		close(over[g])
	}
	sessions.Wait()
	for _, p := range processes[:len(processes)-1] {
		p.leaves()
	}
	if err := failed.Load(); err != nil {
		require.NoError(t, *err)
	}
	s := processes[len(processes)-1].stats()
	require.Zero(t, s.PredecessorSessions)
}

// clientEnds returns endpoints with sockets that lose packets, one for 50 sessions.
func clientEnds(t *testing.T, kind string, how load) (ends []*kcp.Endpoint) {
	config := configOf(kind)
	config.Shards = 0
	config.DialTimeout, config.PeerTimeout = time.Hour, time.Hour // the test binary has a shorter limit
	config.SocketBuffer = 1 << 20
	for range (how.sessions + 49) / 50 {
		pc, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(t, err)
		e, err := kcp.NewEndpoint(lossy{pc, how.loss}, config)
		require.NoError(t, err)
		t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
		ends = append(ends, e)
	}
	return ends
}

// perLoop is how many sessions one loop of echoes serves.
const perLoop = 50

// dialAll opens n sessions, which must be with the process of that name.
func dialAll(ends []*kcp.Endpoint, first, n int, addr net.Addr, wants byte, name string, dialling chan struct{}) ([]*kcp.Conn, error) {
	conns, failed := make([]*kcp.Conn, n), make([]error, n)
	var all sync.WaitGroup
	for i := range conns {
		all.Go(func() {
			dialling <- struct{}{}
			defer func() { <-dialling }()
			conns[i], failed[i] = begin(ends[(first+i)%len(ends)], addr, wants, name)
		})
	}
	all.Wait()
	return conns, errors.Join(failed...)
}

// begin opens a session, which must be with the process of that name.
func begin(e *kcp.Endpoint, addr net.Addr, wants byte, name string) (*kcp.Conn, error) {
	c, err := e.Dial(context.Background(), addr)
	if err != nil {
		return nil, err
	}
	got, err := greet(c, wants)
	if err == nil && got != name {
		err = fmt.Errorf("served by %s in place of %s", got, name)
	}
	return c, err
}

// echoRate is how often the sessions of echoes send.
const echoRate = 50 * time.Millisecond

// echoing is a session of echoes.
type echoing struct {
	conn    *kcp.Conn
	sent    [1 << 10]time.Duration // when each number was, since the start
	next    uint32                 // number to be sent
	got     uint32                 // numbers that have come back
	part    []byte                 // of the number to come
	longest time.Duration
	over    bool
}

// echoes sends a number 20 times a second on each session, which must come back, until
// end is closed. One loop serves all of them, as the clients share the processors with
// the servers.
func (r *result) echoes(conns []*kcp.Conn, end <-chan struct{}) error {
	g := kcp.NewGroup()
	defer g.Close()
	all := make(map[*kcp.Conn]*echoing)
	for _, c := range conns {
		all[c] = &echoing{conn: c}
		if err := g.Add(c); err != nil {
			return err
		}
	}
	batch := make([]kcp.Outgoing, 0, len(all))
	start := time.Now()
	for next := start.Add(rand.N(echoRate)); ; next = next.Add(echoRate) {
		if err := takeEchoes(g, all, start, next); err != nil {
			return err
		}
		select {
		case <-end:
			return r.endEchoes(g, all, start)
		default:
		}
		batch = batch[:0]
		for _, s := range all {
			batch = append(batch, kcp.Outgoing{Conn: s.conn, Data: binary.LittleEndian.AppendUint32(nil, s.next)})
			s.sent[s.next%uint32(len(s.sent))] = time.Since(start)
			s.next++
		}
		if g.Send(batch) < len(batch) {
			return errors.New("a session has no room, or has ended")
		}
	}
}

// takeEchoes takes what comes back, until a time, or until all sessions are over.
func takeEchoes(g *kcp.Group, all map[*kcp.Conn]*echoing, start, until time.Time) error {
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	var events [64]kcp.Event
	for left := true; left; {
		n, err := g.Wait(ctx, events[:])
		if err != nil && ctx.Err() == nil {
			return err
		}
		for _, e := range events[:n] {
			if err := all[e.Conn].take(&e, start); err != nil {
				return err
			}
		}
		left = false
		for _, s := range all {
			left = left || !s.over
		}
		if n == 0 {
			return nil
		}
	}
	return nil
}

// take compares what has come back with what was sent.
func (s *echoing) take(e *kcp.Event, start time.Time) error {
	switch {
	case e.Kind == kcp.EventData:
	case errors.Is(e.Err, io.EOF): // EventEOF, or EventEnded if the server has closed
		s.over = true
		return nil
	default:
		return fmt.Errorf("event %d: %w", e.Kind, e.Err)
	}
	for s.part = append(s.part, e.Data...); len(s.part) >= 4; s.part = s.part[4:] {
		if got := binary.LittleEndian.Uint32(s.part); got != s.got || got >= s.next || s.next-got > uint32(len(s.sent)) {
			return fmt.Errorf("number %d in place of %d", got, s.got)
		}
		s.longest = max(s.longest, time.Since(start)-s.sent[s.got%uint32(len(s.sent))])
		s.got++
	}
	return nil
}

// endEchoes takes what is still to come back, and closes the sessions.
func (r *result) endEchoes(g *kcp.Group, all map[*kcp.Conn]*echoing, start time.Time) error {
	for _, s := range all {
		if err := s.conn.CloseWrite(); err != nil {
			return err
		}
	}
	if err := takeEchoes(g, all, start, time.Now().Add(20*time.Second)); err != nil {
		return err
	}
	var closing sync.WaitGroup
	for _, s := range all {
		if !s.over || s.got != s.next {
			return fmt.Errorf("%d of %d numbers have come back", s.got, s.next)
		}
		closing.Go(func() { _ = s.conn.Close() })
		r.mu.Lock()
		r.gaps, r.calls = append(r.gaps, s.longest), r.calls+int(s.got)
		r.mu.Unlock()
	}
	closing.Wait()
	return nil
}

// bulk sends 1 MB/s until end is closed, and compares the hash.
func (r *result) bulk(conns []*kcp.Conn, end <-chan struct{}) error {
	c := conns[0]
	sum, random := sha256.New(), rand.NewChaCha8([32]byte{})
	b := make([]byte, 16<<10)
	total := int64(0)
	tick := time.NewTicker(time.Second / (1 << 20 / (16 << 10)))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-end:
			if err := c.CloseWrite(); err != nil {
				return err
			}
			got, err := io.ReadAll(c)
			if err == nil && string(got) != string(sum.Sum(nil)) {
				err = errors.New("other bytes have arrived")
			}
			r.mu.Lock()
			r.sent += total
			r.mu.Unlock()
			return errors.Join(err, c.Close())
		}
		_, _ = random.Read(b)
		n, err := c.Write(b)
		if err != nil {
			return err
		}
		_, _ = sum.Write(b[:n])
		total += int64(n)
	}
}
