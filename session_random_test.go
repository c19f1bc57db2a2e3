package kcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/pmtud"
	"github.com/stretchr/testify/require"
)

// manner is how an application ends a session.
type manner int

const (
	polite  manner = iota // writes, half-closes, reads to the end, closes
	patient               // writes, reads to the end, closes
	hasty                 // writes, closes
	violent               // breaks off in the middle
	curt                  // writes, half-closes, closes
	manners
)

// life is what one application has seen of a session.
type life struct {
	manner             manner
	wrote, got         []byte // wrote: what Write has taken
	writeErr, readErr  error
	closeErr           error
	closedAt, finished time.Duration // since the beginning

	leaves func()        // the process ends with Close, and its endpoint without a word
	waits  time.Duration // before the first write

	lost bool // a message of a stream was; see streamLives.lost
}

// live uses c until the end.
func (l *life) live(c *Conn, out []byte, random *rand.Rand, start time.Time) {
	buf, pause := make([]byte, 1+random.IntN(30000)), time.Duration(random.IntN(3000))*time.Millisecond
	var wg sync.WaitGroup
	wg.Go(func() {
		time.Sleep(l.waits)
		for n := 0; len(l.wrote) < len(out) && l.writeErr == nil; {
			n, l.writeErr = c.Write(out[len(l.wrote):min(len(out), len(l.wrote)+1+random.IntN(20000))])
			l.wrote = out[:len(l.wrote)+n]
		}
		if (l.manner == polite || l.manner == curt) && l.writeErr == nil {
			l.writeErr = c.CloseWrite()
		}
	})
	switch l.manner {
	case hasty, curt:
		wg.Wait()
	case violent:
		time.Sleep(pause)
	default:
		for l.readErr == nil {
			var n int
			n, l.readErr = c.Read(buf)
			l.got = append(l.got, buf[:n]...)
		}
		wg.Wait()
	}
	l.closedAt = time.Since(start)
	if l.manner == violent {
		l.closeErr = c.Abort()
		wg.Wait()
	} else {
		l.closeErr = c.Close()
	}
	l.finished = time.Since(start)
	if l.leaves != nil {
		l.leaves()
	}
}

// Whatever the network does and wherever one side dies: every session ends on
// both sides, nothing is left of it, what is read is a prefix of what was
// written, and all of it where both sides closed in order. Half of the sessions
// have streams besides, with what TestStreamLives demands of them.
func TestRandomLives(t *testing.T) {
	t.Parallel()
	n := fewer(1000)
	if raceEnabled || strconv.IntSize == 32 {
		n = min(n, fewer(100)*4)
	}
	eachLife(t, n, randomLife)
}

// eachLife runs a life for each of n seeds from 0 on. KCP_SEED replaces the first, and n
// by 1; KCP_LIVES replaces n.
func eachLife(t *testing.T, n uint64, life func(t *testing.T, seed uint64)) {
	first := uint64(0)
	for name, number := range map[string]*uint64{"KCP_SEED": &first, "KCP_LIVES": &n} {
		if s := os.Getenv(name); s != "" {
			var err error
			*number, err = strconv.ParseUint(s, 10, 64)
			require.NoError(t, err)
		}
	}
	if os.Getenv("KCP_SEED") != "" && os.Getenv("KCP_LIVES") == "" {
		n = 1
	}
	for seed := first; seed < first+n; seed++ {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { life(t, seed) }) {
			t.Fatalf("repeat with KCP_SEED=%d", seed)
		}
	}
}

func randomConfig(random *rand.Rand) Config {
	c := []Config{{}, LowLatency()}[random.IntN(2)]
	c.MTU = 200 + random.IntN(1200)
	c.SendWindow, c.ReceiveWindow = 64+random.IntN(500), 64+random.IntN(500)
	c.Linger, c.PeerTimeout, c.KeepAlive = 20*time.Second, 20*time.Second, 10*time.Second
	return c
}

// lifeAfterDeath is for how long something may be left of a session of
// randomConfig after the last call has returned: until a keep-alive of the
// accepting side has found nobody. What is closed then has its time.
const lifeAfterDeath = (15 + 20 + 20) * time.Second

func randomLife(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 99))
	link := randomLink(random, 150*time.Millisecond, 0.25)
	a, b := randomConfig(random), randomConfig(random)
	if random.IntN(3) == 0 {
		cipher, err := crypt.ChaCha20Poly1305(bytes.Repeat([]byte{byte(seed)}, 32))
		require.NoError(t, err)
		a.Cipher, b.Cipher = cipher, cipher
	}
	if random.IntN(3) == 0 {
		a.FEC = FEC{Data: 1 + random.IntN(10), Parity: 1 + random.IntN(4)}
	}
	if random.IntN(4) == 0 {
		b.AddressValidation = ValidateAlways
	}
	end := random.IntN(4) // 0: killed, 1: killed and restarted, others: nothing
	endAt := time.Duration(random.IntN(4000)) * time.Millisecond
	if random.IntN(2) == 0 {
		endAt /= 10 // before the first data
	}
	var outage [2]time.Duration
	if random.IntN(3) == 0 {
		outage[0] = time.Duration(random.IntN(3000)) * time.Millisecond
		outage[1] = time.Duration(random.IntN(3000)) * time.Millisecond
	}
	switch random.IntN(4) { // and the path may swallow what is large
	case 0:
		link.MTU = pmtud.Base + random.IntN(300)
	case 1:
		a.MaxMTU, b.MaxMTU = 1472, 9000
		link.MTU = pmtud.Base + random.IntN(4000)
	}
	inWorld(t, seed, link, func(t *testing.T, w *world) {
		start := time.Now()
		pc, err := w.net.Listen(serverAddr)
		require.NoError(t, err)
		server, err := NewEndpoint(w.socket(pc), &b)
		require.NoError(t, err)
		l, err := server.Listen()
		require.NoError(t, err)
		client, _ := w.endpoint("10.0.0.2:5000", &a)

		up, down := content(seed, random.IntN(100000)), content(seed+1, random.IntN(100000))
		ours, theirs := life{manner: manner(random.IntN(int(manners)))}, life{manner: manner(random.IntN(int(manners)))}
		if random.IntN(2) == 0 {
			ours.waits = time.Duration(random.IntN(500)) * time.Millisecond
		}
		if random.IntN(4) == 0 {
			ours.leaves = func() { _ = client.Close() }
		}
		w.net.At(outage[0], func() { w.net.Cut("10.0.0.1", "10.0.0.2") })
		w.net.At(outage[0]+outage[1], func() { w.net.Heal("10.0.0.1", "10.0.0.2") })
		if ours.manner == patient && theirs.manner == patient {
			ours.manner = polite // or both would wait for the other
		}
		r1, r2 := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))
		lives := &streamLives{t: t, logs: make(map[string]*streamLog)}
		var wg sync.WaitGroup
		var others atomic.Int32 // sessions after the first
		wg.Go(func() {
			c, err := l.AcceptKCP(context.Background())
			if err != nil {
				return
			}
			go func() { // a dial begins again if that session is aborted before it is open
				for {
					c, err := l.AcceptKCP(context.Background())
					if err != nil {
						return
					}
					others.Add(1)
					_ = c.Abort()
				}
			}()
			lives.beside(&wg, c, "b", "a", seed, seed+1)
			theirs.live(c, down, r2, start)
		})
		if end < 2 {
			wg.Go(func() {
				time.Sleep(endAt)
				require.NoError(t, pc.Close())
				if end == 1 {
					again, _ := w.endpoint(serverAddr, &b)
					l, err := again.Listen()
					require.NoError(t, err)
					time.Sleep(2 * time.Minute)
					require.NoError(t, l.Close()) // nobody accepts
					time.Sleep(lifeAfterDeath)
					require.Zero(t, again.Stats().Sessions)
				}
			})
		}
		watchdog := time.AfterFunc(30*time.Minute, func() {
			t.Errorf("not at an end: %d and %d, end %d at %v", ours.manner, theirs.manner, end, endAt)
			for _, l := range []*life{&ours, &theirs} {
				t.Logf("wrote %d got %d, errors %v, %v, %v", len(l.wrote), len(l.got), l.writeErr, l.readErr, l.closeErr)
			}
			for _, e := range []*Endpoint{client, server} {
				for _, c := range e.table.Sessions() {
					t.Logf("%v state %v, unvalidated %v, offered %v, una %d next %d end %d, received %d queued %d, %+v",
						c.entry.Key(), c.closing.Phase, c.hs.unvalidated.Load(), c.hs.Role != opening.Accepted, c.kcp.snd.una, c.kcp.snd.nxt, c.kcp.position().end, c.kcp.rcv.nxt, c.kcp.rcv.queue.n, &c.hs)
					c.fail(errors.New("watchdog"))
				}
			}
		})
		defer watchdog.Stop()
		addr := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(serverAddr))
		c, err := client.Dial(context.Background(), addr)
		if err == nil {
			lives.beside(&wg, c, "a", "b", seed, seed)
			ours.live(c, up, r1, start)
		} else if end > 1 {
			var none *NoAnswerError
			require.ErrorAs(t, err, &none)
		}
		nothing := time.AfterFunc(2*time.Minute, func() { _ = l.Close() }) // to accept, perhaps
		wg.Wait()
		nothing.Stop()
		_ = l.Close()
		time.Sleep(lifeAfterDeath)

		if t.Failed() {
			return
		}
		if others.Load() == 0 {
			lives.check()
			ours.lost, theirs.lost = lives.lost("a"), lives.lost("b")
			ours.check(t, &theirs, up, down, end < 2 || err != nil)
		} else {
			require.Equal(t, violent, theirs.manner)
		}
		for _, e := range []*Endpoint{client, server} {
			s := e.Stats()
			require.Zero(t, s.Sessions)
			require.Zero(t, s.HalfOpen)
			require.Zero(t, s.Buffered, "%v %d %d end %d at %v: %v %v %v, %v %v %v", e.LocalAddr(), ours.manner, theirs.manner, end, endAt,
				ours.writeErr, ours.readErr, ours.closeErr, theirs.writeErr, theirs.readErr, theirs.closeErr)
			require.LessOrEqual(t, max(ours.finished, theirs.finished), 4*time.Minute)
		}
		if end > 1 {
			require.NoError(t, server.Close())
			require.NoError(t, pc.Close())
		}
	})
}

// check compares what both sides have seen.
func (l *life) check(t *testing.T, peer *life, up, down []byte, killed bool) {
	require.True(t, bytes.HasPrefix(peer.wrote, l.got), "not a prefix: %d of %d bytes", len(l.got), len(peer.wrote))
	require.True(t, bytes.HasPrefix(l.wrote, peer.got), "not a prefix: %d of %d bytes", len(peer.got), len(l.wrote))
	if killed {
		return
	}
	for _, s := range []struct{ from, to *life }{{l, peer}, {peer, l}} {
		if errors.Is(s.from.closeErr, ErrNotDelivered) && s.to.leaves == nil && !s.from.lost {
			require.False(t, errors.Is(s.to.readErr, io.EOF) && bytes.Equal(s.from.wrote, s.to.got), "it was delivered: %d to %d", s.from.manner, s.to.manner)
		}
		if s.from.closeErr == nil && s.to.leaves == nil && l.manner != violent && peer.manner != violent {
			require.False(t, s.from.lost, "Close does not say that a message was lost: %d to %d", s.from.manner, s.to.manner)
		}
	}
	for _, s := range []struct {
		from, to *life
		sent     []byte
	}{{l, peer, up}, {peer, l, down}} {
		reads := s.to.manner == polite || s.to.manner == patient
		if !reads || l.manner == violent || peer.manner == violent {
			continue
		}
		if s.to.manner != hasty && s.from.closeErr == nil && s.from.writeErr == nil {
			require.ErrorIs(t, s.to.readErr, io.EOF, "%d to %d", s.from.manner, s.to.manner)
			require.Equal(t, len(s.sent), len(s.to.got), "%d to %d", s.from.manner, s.to.manner)
		}
	}
	if l.manner <= patient && peer.manner <= patient {
		for _, s := range []*life{l, peer} {
			require.NoError(t, s.writeErr)
			// The last answer of an end that leaves may have been lost.
			if (s != peer || l.leaves == nil) && !(s.lost && errors.Is(s.closeErr, ErrNotDelivered)) {
				require.NoError(t, s.closeErr)
			}
			require.True(t, errors.Is(s.readErr, io.EOF), "%v", s.readErr)
		}
	}
}

// streamLives are the logs of a session, by direction and stream.
type streamLives struct {
	t    *testing.T
	mu   sync.Mutex
	logs map[string]*streamLog
}

func (l *streamLives) log(from string, s *Stream) *streamLog {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := fmt.Sprint(from, s.ID())
	if l.logs[key] == nil {
		l.logs[key] = newStreamLog(l.t, key, !s.Options().Unordered)
	}
	return l.logs[key]
}

// write sends messages with receipts until it has sent enough, or cannot.
func (l *streamLives) write(log *streamLog, s *Stream, random *rand.Rand) {
	for range random.IntN(60) {
		size := messageHeader + random.IntN(300)
		if random.IntN(10) == 0 {
			size += random.IntN(100000)
		}
		number, begun := log.begin()
		o := &MessageOptions{Done: log.receipt(number)}
		if random.IntN(4) == 0 {
			o.Lifetime = time.Duration(1+random.IntN(300)) * time.Millisecond
		}
		if random.IntN(4) == 0 {
			o.MaxRetransmits = random.IntN(5) - 1
		}
		if err := s.SendMessage(log.message(number, size), o); err != nil {
			return
		}
		reliable := o.Lifetime == 0 && o.MaxRetransmits == 0
		log.taken(number, sentMessage{size: size, begun: begun, reliable: reliable, hasReceipt: true})
		if random.IntN(3) == 0 {
			time.Sleep(time.Duration(random.IntN(60)) * time.Millisecond)
		}
	}
	_ = s.CloseWrite()
}

// read reads messages to the end, or stops early.
func (l *streamLives) read(log *streamLog, s *Stream, random *rand.Rand) {
	buf := make([]byte, 1<<18)
	stop := -1
	if random.IntN(4) == 0 {
		stop = random.IntN(20)
	}
	for n := 0; n != stop; n++ {
		size, err := s.ReadMessage(buf)
		if err != nil {
			log.end(err)
			return
		}
		log.takeMessage(buf[:size])
	}
}

// life uses one stream, and ends it in one of several ways.
func (l *streamLives) life(from, to string, s *Stream, seed uint64) {
	random := rand.New(rand.NewPCG(seed, uint64(s.ID())))
	out, in := l.log(from, s), l.log(to, s)
	r1, r2 := rand.New(rand.NewPCG(random.Uint64(), 1)), rand.New(rand.NewPCG(random.Uint64(), 2))
	var wg sync.WaitGroup
	wg.Go(func() { l.write(out, s, r1) })
	wg.Go(func() { l.read(in, s, r2) })
	if random.IntN(5) == 0 {
		time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
		_ = s.Reset(random.Uint64())
	}
	wg.Wait()
	_ = s.Close()
}

// open opens streams, and accepts those of the peer, until the session ends.
func (l *streamLives) open(c *Conn, from, to string, random *rand.Rand) {
	var wg sync.WaitGroup
	seed := random.Uint64()
	wg.Go(func() { l.accept(&wg, c, from, to, seed) })
	l.dial(&wg, c, from, to, random.IntN(12), random, seed)
	time.Sleep(time.Duration(random.IntN(6000)) * time.Millisecond)
	switch random.IntN(4) {
	case 0:
		_ = c.Abort()
	case 1:
		_ = c.CloseWithError(random.Uint64(), "enough")
	default:
		_ = c.Close()
	}
	wg.Wait()
}

// accept uses the streams that the peer opens, until c ends.
func (l *streamLives) accept(wg *sync.WaitGroup, c *Conn, from, to string, seed uint64) {
	for {
		s, err := c.AcceptStream(context.Background())
		if err != nil {
			return
		}
		wg.Go(func() { l.life(from, to, s, seed) })
	}
}

// dial opens n streams, if c does not end before, and uses them.
func (l *streamLives) dial(wg *sync.WaitGroup, c *Conn, from, to string, n int, random *rand.Rand, seed uint64) {
	for range n {
		s, err := c.OpenStream(context.Background(), &StreamOptions{
			Unordered: random.IntN(2) == 0, Priority: random.IntN(16) - 8,
		})
		if err != nil {
			return
		}
		wg.Go(func() { l.life(from, to, s, seed) })
		time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
	}
}

// beside uses streams of c beside the session itself, until that ends. Half of the
// sessions have some, as kind says.
func (l *streamLives) beside(wg *sync.WaitGroup, c *Conn, from, to string, kind, seed uint64) {
	if kind%2 == 0 {
		return
	}
	random := rand.New(rand.NewPCG(seed, 78))
	wg.Go(func() { l.accept(wg, c, from, to, seed) })
	wg.Go(func() { l.dial(wg, c, from, to, random.IntN(5), random, seed) })
}

// check checks all logs.
func (l *streamLives) check() {
	for _, key := range slices.Sorted(maps.Keys(l.logs)) {
		l.logs[key].check(false)
	}
}

// lost reports whether an end has sent a message that was lost with the session:
// neither has the peer read it, nor is it known to be delivered. A message that was
// given up, or whose stream was reset, is missing and not lost.
func (l *streamLives) lost(from string) bool {
	for key, log := range l.logs {
		if !strings.HasPrefix(key, from) {
			continue
		}
		for i := range log.sent {
			var reset *StreamError
			if err := log.receipts[i]; err != nil && !slices.Contains(log.got, i) &&
				!errors.Is(err, ErrMessageAbandoned) && !errors.As(err, &reset) {
				return true
			}
		}
	}
	return false
}

// Whatever the network does, and however streams and sessions end: what arrives
// was sent, once and in order if that was asked for; every message that was taken
// has one receipt; none of them says delivered without a trace of the message at
// the peer; and nothing is left of streams or sessions.
func TestStreamLives(t *testing.T) {
	t.Parallel()
	n := fewer(200)
	if repeated() {
		n = 5
	}
	eachLife(t, n, streamLife)
}

func streamLife(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 77))
	link := randomLink(random, 100*time.Millisecond, 0.2)
	a, b := randomConfig(random), randomConfig(random)
	for _, c := range []*Config{&a, &b} {
		c.MaxStreams = 1 + random.IntN(10)
		c.StreamReceiveBuffer = 150000 + random.IntN(1<<20)
		c.StreamWriteBuffer = 4096 + random.IntN(1<<18)
	}
	if random.IntN(3) == 0 {
		a.FEC = FEC{Data: 1 + random.IntN(10), Parity: 1 + random.IntN(4)}
	}
	outage := time.Duration(random.IntN(3000)) * time.Millisecond
	inWorld(t, seed, link, func(t *testing.T, w *world) {
		l := w.listen(&b)
		client, _ := w.endpoint("10.0.0.2:5000", &a)
		c := w.dial(client)
		w.net.At(outage, func() { w.net.Cut("10.0.0.1", "10.0.0.2") })
		w.net.At(outage+outage/2, func() { w.net.Heal("10.0.0.1", "10.0.0.2") })
		lives := &streamLives{t: t, logs: make(map[string]*streamLog)}
		r1, r2 := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))
		var wg sync.WaitGroup
		var sessions [2]*Conn
		sessions[0] = c
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if c, err := l.AcceptKCP(ctx); err == nil {
				sessions[1] = c
				lives.open(c, "b", "a", r2)
			}
		})
		lives.open(c, "a", "b", r1)
		wg.Wait()
		time.Sleep(2 * time.Minute)
		lives.check()
		for _, c := range sessions {
			if c != nil && c.streams != nil {
				require.Empty(t, figuresOf(c).awaited)
			}
		}
		for _, e := range []*Endpoint{client, l.ep} {
			require.Zero(t, e.Stats().Sessions)
		}
	})
}
