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
		begun.Add(count + bulks)
		dialling := make(chan struct{}, 50)
		for i := range count + bulks {
			wants, work := byte(wantsEcho), r.echo
			if i >= count {
				wants, work = wantsHash, r.bulk
			}
			sessions.Go(func() {
				dialling <- struct{}{}
				c, err := begin(ends[i%len(ends)], p.addr, wants, name)
				<-dialling
				begun.Done()
				if err == nil {
					err = work(c, over[g])
				}
				if err != nil {
					fail(fmt.Errorf("session %d of %s: %w", i, name, err))
				}
			})
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
		open(g, how.sessions/10, 1)
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
	config.PeerTimeout = 20 * time.Second
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

// begin opens a session, which must be with the process of that name.
func begin(e *kcp.Endpoint, addr net.Addr, wants byte, name string) (*kcp.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := e.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	got, err := greet(c, wants)
	if err == nil && got != name {
		err = fmt.Errorf("served by %s in place of %s", got, name)
	}
	return c, err
}

// echo sends a number 20 times a second, which must come back, until end is closed.
func (r *result) echo(c *kcp.Conn, end <-chan struct{}) error {
	const every = 50 * time.Millisecond
	var sent [1 << 14]atomic.Int64 // when each number was
	stopped := make(chan error, 1)
	start := time.Now()
	go func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for n := uint32(0); ; n++ {
			sent[n%uint32(len(sent))].Store(int64(time.Since(start)))
			if _, err := c.Write(binary.LittleEndian.AppendUint32(nil, n)); err != nil {
				stopped <- err
				return
			}
			select {
			case <-tick.C:
			case <-end:
				stopped <- c.CloseWrite()
				return
			}
		}
	}()
	var longest time.Duration
	var b [4]byte
	n := uint32(0)
	for ; ; n++ {
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.ReadFull(c, b[:]); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		if got := binary.LittleEndian.Uint32(b[:]); got != n {
			return fmt.Errorf("number %d in place of %d", got, n)
		}
		longest = max(longest, time.Since(start)-time.Duration(sent[n%uint32(len(sent))].Load()))
	}
	r.mu.Lock()
	r.gaps, r.calls = append(r.gaps, longest), r.calls+int(n)
	r.mu.Unlock()
	return errors.Join(<-stopped, c.Close())
}

// bulk sends 1 MB/s until end is closed, and compares the hash.
func (r *result) bulk(c *kcp.Conn, end <-chan struct{}) error {
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
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
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
