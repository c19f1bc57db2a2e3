package kcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// streamLog is what both applications have seen of one direction of a stream.
type streamLog struct {
	mu       sync.Mutex
	sent     map[uint32]int   // size, by number
	receipts map[uint32]error // as far as they have come
	got      []uint32
	ended    error // of the reader
	ordered  bool
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
		l.logs[key] = &streamLog{sent: make(map[uint32]int), receipts: make(map[uint32]error), ordered: !s.Options().Unordered}
	}
	return l.logs[key]
}

// write sends messages that begin with their number, with receipts, until it has
// sent enough, or cannot.
func (l *streamLives) write(log *streamLog, s *Stream, random *rand.Rand) {
	for i := range uint32(random.IntN(60)) {
		size := 5 + random.IntN(300)
		if random.IntN(10) == 0 {
			size += random.IntN(100000)
		}
		b := make([]byte, size)
		binary.LittleEndian.PutUint32(b, i)
		b[size-1] ^= byte(size)
		o := &MessageOptions{Done: func(err error) {
			log.mu.Lock()
			defer log.mu.Unlock()
			if _, twice := log.receipts[i]; twice {
				l.t.Error("two receipts for one message")
			}
			log.receipts[i] = err
		}}
		if random.IntN(4) == 0 {
			o.Lifetime = time.Duration(1+random.IntN(300)) * time.Millisecond
		}
		if random.IntN(4) == 0 {
			o.MaxRetransmits = random.IntN(5) - 1
		}
		log.mu.Lock()
		log.sent[i] = size
		log.mu.Unlock()
		if err := s.SendMessage(b, o); err != nil {
			log.mu.Lock()
			delete(log.sent, i)
			log.mu.Unlock()
			return
		}
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
			log.mu.Lock()
			log.ended = err
			log.mu.Unlock()
			return
		}
		i := binary.LittleEndian.Uint32(buf)
		log.mu.Lock()
		log.got = append(log.got, i)
		if want := log.sent[i]; want != size && want != 0 {
			l.t.Errorf("message %d has %d bytes, want %d", i, size, want)
		}
		log.mu.Unlock()
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
func (l *streamLives) check(t *testing.T) {
	for _, key := range slices.Sorted(maps.Keys(l.logs)) {
		l.logs[key].check(t, key)
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
	n := fewer(200)
	if repeated() {
		n = 5
	}
	for seed := range n {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { streamLife(t, seed) }) {
			t.Fatalf("repeat with KCP_SEED=%d", seed)
		}
	}
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
	inWorld(t, seed, link, func(w *world) {
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
		lives.check(t)
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

// check holds what has arrived against what was sent.
func (l *streamLog) check(t *testing.T, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	got := make(map[uint32]bool)
	last := int64(-1)
	for _, i := range l.got {
		require.False(t, got[i], "%s: message %d arrived twice", name, i)
		got[i] = true
		require.True(t, !l.ordered || int64(i) > last, "%s: message %d after %d", name, i, last)
		last = int64(i)
	}
	whole := l.ended != nil && errors.Is(l.ended, io.EOF)
	for i := range l.sent {
		err, ok := l.receipts[i]
		require.True(t, ok, "%s: no receipt for message %d of %d", name, i, len(l.sent))
		if err == nil && whole {
			require.True(t, got[i], "%s: message %d of %d bytes has not arrived, though its receipt says so", name, i, l.sent[i])
		}
	}
	require.Len(t, l.receipts, len(l.sent), "%s: receipts of what was not taken", name)
}
