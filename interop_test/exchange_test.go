package interop

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// maxChunk is the largest single write, and the size of the reads.
const maxChunk = 64 << 10

// digest is what contents are compared by.
type digest [sha256.Size]byte

// generator returns the source of the contents that belong to a seed.
func generator(seed uint64) *rand.ChaCha8 {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	return rand.NewChaCha8(key)
}

// send writes size bytes in chunks of random sizes, and returns their digest.
func send(c net.Conn, seed uint64, size int64) (sum digest, err error) {
	content := generator(seed)
	sizes := rand.New(rand.NewPCG(seed, 0))
	hash := sha256.New()
	chunk := make([]byte, maxChunk)
	for sent := int64(0); sent < size; {
		b := chunk[:min(size-sent, 1+sizes.Int64N(maxChunk))]
		_, _ = content.Read(b) // cannot fail
		hash.Write(b)
		n, err := c.Write(b)
		sent += int64(n)
		if err != nil {
			return sum, fmt.Errorf("write after %d of %d bytes: %w", sent, size, err)
		}
		if n != len(b) {
			return sum, fmt.Errorf("write of %d bytes took %d", len(b), n)
		}
	}
	hash.Sum(sum[:0])
	return sum, nil
}

// receive reads size bytes and returns their digest.
func receive(c net.Conn, size int64) (sum digest, err error) {
	hash := sha256.New()
	b := make([]byte, maxChunk)
	for got := int64(0); got < size; {
		n, err := c.Read(b)
		hash.Write(b[:n])
		got += int64(n)
		if err != nil {
			return sum, fmt.Errorf("read after %d of %d bytes: %w", got, size, err)
		}
		if got > size {
			return sum, fmt.Errorf("read %d bytes, but %d were sent", got, size)
		}
	}
	hash.Sum(sum[:0])
	return sum, nil
}

// side tells the two ends of a session apart.
type side int

const (
	dialling side = iota
	listening
)

func (s side) String() string { return [...]string{"dialler", "listener"}[s] }

func (s side) other() side { return 1 - s }

// exchange moves size bytes each way between two ends, both at once.
type exchange struct {
	seed uint64 // and seed+1
	size int64

	running   sync.WaitGroup
	sent, got [2]digest // by the side that has sent

	mu   sync.Mutex
	errs []error
}

func newExchange(seed uint64, size int64) *exchange { return &exchange{seed: seed, size: size} }

// join lets one end send its half and receive that of the other.
func (x *exchange) join(c net.Conn, s side) {
	x.running.Go(func() {
		var err error
		x.sent[s], err = send(c, x.seed+uint64(s), x.size)
		x.note(s, err)
	})
	x.running.Go(func() {
		var err error
		x.got[s.other()], err = receive(c, x.size)
		x.note(s, err)
	})
}

func (x *exchange) note(s side, err error) {
	if err == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.errs = append(x.errs, fmt.Errorf("%v: %w", s, err))
}

// wait waits for both ends, and compares what has arrived with what was sent.
func (x *exchange) wait() error {
	x.running.Wait()
	if len(x.errs) > 0 {
		return errors.Join(x.errs...)
	}
	for _, s := range []side{dialling, listening} {
		if x.got[s] != x.sent[s] {
			x.errs = append(x.errs, fmt.Errorf("what the %v sent has changed: SHA-256 %x, want %x", s, x.got[s], x.sent[s]))
		}
	}
	return errors.Join(x.errs...)
}

func digestOf(b []byte) digest { return sha256.Sum256(b) }
