package wakeup

import (
	"crypto/rand"
	"encoding/binary"
	"io"
	"math"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Run is what the endpoints of one run have in common. Seed is called before any other
// method. All methods are safe for concurrent use.
type Run struct {
	order Order

	mu     sync.Mutex // guards the fields below
	random mathrand.ChaCha8
	made   uint32 // environments
}

// Seed sets what all that is random in the run depends on.
func (r *Run) Seed(seed uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var long [32]byte
	binary.LittleEndian.PutUint64(long[:], seed)
	r.random.Seed(long)
}

// IsSpent reports whether r has served another run: virtual time starts over with each.
func (r *Run) IsSpent() bool { return r.order.Ahead(time.Now()) > time.Millisecond }

// Environment returns the environment of the next endpoint of the run.
func (r *Run) Environment() *Environment {
	r.mu.Lock()
	defer r.mu.Unlock()
	var seed [32]byte
	_, _ = r.random.Read(seed[:]) // cannot fail
	e := &Environment{order: &r.order, index: uint64(r.made)}
	r.made++
	e.random.Seed(seed)
	return e
}

// Environment is where an endpoint has its random numbers from, and what its goroutines
// call when they were woken. It is nil for an endpoint in no Run, which draws from
// crypto/rand, and lets goroutines go on at once. All methods are safe for concurrent
// use.
type Environment struct {
	order *Order
	index uint64       // of the endpoint, from 0
	woken atomic.Int32 // goroutines in Woken

	mu     sync.Mutex // guards what follows
	random mathrand.ChaCha8
}

// Read fills b with random bytes. It cannot fail.
func (e *Environment) Read(b []byte) (int, error) {
	if e == nil {
		return rand.Read(b)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.random.Read(b)
}

// Uint32 returns a number that is unpredictable to anyone else, such as a conversation
// id.
func (e *Environment) Uint32() uint32 {
	var b [4]byte
	_, _ = e.Read(b[:]) // cannot fail
	return binary.LittleEndian.Uint32(b[:])
}

// Token returns an unpredictable number other than 0.
func (e *Environment) Token() uint32 {
	for {
		if t := e.Uint32(); t != 0 {
			return t
		}
	}
}

// Nonces returns what makes the nonces of packets without a number; nil: that is left to
// the cipher.
func (e *Environment) Nonces() io.Reader {
	if e == nil {
		return nil
	}
	return e
}

// Place is the place of a goroutine among those that belong to the same session, or to
// the same socket.
type Place uint64

const (
	AtReader Place = iota
	AtWakeUp
	AtTLS
	AtIncast
	AtGroup // from here on calls of the application
	AtAccept
	AtRead
	AtWrite
	AtAcceptStream
	ofStream // of the first stream; each has two
)

// AtStream returns the place of a call that reads from a stream, or writes to it.
func AtStream(id uint64, writes bool) Place {
	p := ofStream + 2*Place(id)
	if writes {
		p++
	}
	return p
}

// Woken is called by a goroutine that was woken, before it does anything. It returns
// when it is that goroutine's turn. The goroutine belongs to a conversation, or to a
// socket. l is the lock that it holds, which is released meanwhile; nil: it holds none.
func (e *Environment) Woken(l sync.Locker, of uint32, p Place) {
	if e == nil {
		return
	}
	if l != nil {
		l.Unlock()
		defer l.Lock()
	}
	e.woken.Add(1)
	defer e.woken.Add(-1)
	e.order.Wait(Rank{Calls: p >= AtGroup, Group: e.index<<32 | uint64(of), Member: uint64(p)})
}

// Settle returns once nothing of the endpoint waits for its turn any more: a bubble ends
// with the function of its test, and whatever still waits then is a deadlock. The
// endpoint is closed, and the caller holds no lock.
func (e *Environment) Settle() {
	if e == nil {
		return
	}
	last := Rank{Calls: true, Group: math.MaxUint64, Member: e.index}
	for e.order.Wait(last); e.woken.Load() > 0; {
		e.order.Wait(last)
	}
}
