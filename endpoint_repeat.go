package kcp

import (
	"crypto/rand"
	"encoding/binary"
	"io"
	"math"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/inturn"
)

// Repetition makes runs of a test repeat: see Config.Repetition. All endpoints of a run
// share one, which puts what they do at the same instant in order. All methods are safe
// for concurrent use.
type Repetition struct {
	order inturn.Order

	mu     sync.Mutex // guards the fields below
	random mathrand.ChaCha8
	made   uint32 // endpoints
}

// NewRepetition returns a Repetition with a seed of which all that is random
// depends. It serves one run: the next one has its own.
func NewRepetition(seed uint64) *Repetition {
	r := new(Repetition)
	var long [32]byte
	binary.LittleEndian.PutUint64(long[:], seed)
	r.random.Seed(long)
	return r
}

// isSpent reports whether r has served another run: virtual time begins anew with each.
func (r *Repetition) isSpent() bool { return r.order.Ahead(time.Now()) > time.Millisecond }

// repetition is the part of an endpoint in a Repetition. A nil one is that of an
// endpoint without: it draws from crypto/rand, and waits for no turn.
type repetition struct {
	order   *inturn.Order
	index   uint64       // of the endpoint, from 0
	waiting atomic.Int32 // goroutines in wait

	mu     sync.Mutex // guards what follows
	random mathrand.ChaCha8
}

// endpoint returns the part of the next endpoint; nil if r is.
func (r *Repetition) endpoint() *repetition {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var seed [32]byte
	_, _ = r.random.Read(seed[:]) // cannot fail
	e := &repetition{order: &r.order, index: uint64(r.made)}
	r.made++
	e.random.Seed(seed)
	return e
}

// Read fills b with random bytes. It cannot fail.
func (r *repetition) Read(b []byte) (int, error) {
	if r == nil {
		return rand.Read(b)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.random.Read(b)
}

// What waits for its turn. Within one session, or one socket, all differ.
const (
	rankReader = iota
	rankWakeUp
	rankTLS
	rankIncast
	rankGroup // from here on calls of the application
	rankAccept
	rankRead
	rankWrite
	rankAcceptStream
	rankStream // of the first stream; each has two
)

// wait waits for the turn of what has a rank and belongs to a conversation, or to
// a socket. It returns at once if r is nil. The caller holds no lock.
func (r *repetition) wait(of uint32, rank uint64) {
	if r != nil {
		r.waiting.Add(1)
		r.order.Wait(inturn.Rank{Calls: rank >= rankGroup, Group: r.index<<32 | uint64(of), Member: rank})
		r.waiting.Add(-1)
	}
}

// wakeTurn returns what makes the wake-ups of sessions wait for their turn; nil: they do
// not.
func (r *repetition) wakeTurn() func() {
	if r == nil {
		return nil
	}
	return func() { r.wait(0, rankWakeUp) }
}

// settle returns once nothing of the endpoint waits for a turn any more: a bubble ends
// with the function of its test, and whatever still waits then is a deadlock. It returns
// at once if r is nil. The endpoint is closed, and the caller holds no lock.
func (r *repetition) settle() {
	if r == nil {
		return
	}
	last := inturn.Rank{Calls: true, Group: math.MaxUint64, Member: r.index}
	for r.order.Wait(last); r.waiting.Load() > 0; {
		r.order.Wait(last)
	}
}

// waitUnlocked is wait for a caller that holds l, which it releases meanwhile.
func (r *repetition) waitUnlocked(l sync.Locker, of uint32, rank uint64) {
	if r != nil {
		l.Unlock()
		r.wait(of, rank)
		l.Lock()
	}
}

// nonces returns what makes the nonces of packets without a number; nil: that is
// left to the cipher.
func (r *repetition) nonces() io.Reader {
	if r == nil {
		return nil
	}
	return r
}

// random32 returns a number that is unpredictable to anyone else, such as a
// conversation id.
func (e *Endpoint) random32() uint32 {
	var b [4]byte
	_, _ = e.repeat.Read(b[:]) // cannot fail
	return binary.LittleEndian.Uint32(b[:])
}

// randomToken returns an unpredictable number other than 0.
func (e *Endpoint) randomToken() uint32 {
	for {
		if t := e.random32(); t != 0 {
			return t
		}
	}
}
