package kcp

import (
	"crypto/aes"
	"crypto/cipher"
	crand "crypto/rand"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// NewEntropy returns a fast source of random bytes for nonces, the one of
// NewEntropyChacha8. It is safe for concurrent use.
func NewEntropy() io.Reader { return NewEntropyChacha8() }

// NewEntropyAES returns a source of random bytes made by AES, for programs that
// ask for one. Each Read returns at most 16 bytes: use io.ReadFull. It is safe
// for concurrent use.
func NewEntropyAES() io.Reader { return new(aesEntropy) }

// NewEntropyChacha8 returns a source of random bytes made by ChaCha8, with
// seeds from crypto/rand. It is safe for concurrent use.
func NewEntropyChacha8() io.Reader { return new(chachaEntropy) }

// SetEntropy sets the source of the nonces of all sessions of the process; nil
// means the default, NewEntropy. Reads do not overlap, so r need not be safe for
// concurrent use. If r fails, the nonce comes from crypto/rand.
//
// Nonces must not repeat under one key.
func SetEntropy(r io.Reader) {
	if r == nil {
		entropy.Store(nil)
		return
	}
	entropy.Store(&givenEntropy{reader: r})
}

// entropy is the source that SetEntropy has set; nil is the default.
var entropy atomic.Pointer[givenEntropy]

// givenEntropy is a source of the program.
type givenEntropy struct {
	mu     sync.Mutex
	reader io.Reader
}

// fillRand fills p, a nonce, with random bytes.
func fillRand(p []byte) {
	e := entropy.Load()
	if e == nil {
		nonces.fill(p)
		return
	}
	e.mu.Lock()
	_, err := io.ReadFull(e.reader, p)
	e.mu.Unlock()
	if err != nil {
		_, _ = crand.Read(p) // cannot fail
	}
}

// nonces is the default source of all sessions.
var nonces chachaEntropy

// reseedAfter is how many Reads are served from one seed. A new seed costs as
// much as some tens of nonces.
const reseedAfter = 4096

// chachaEntropy is a pool of generators, so that Reads need not wait for each
// other. The zero value is ready. ChaCha8 erases its past, so a state that
// becomes known does not give away earlier nonces.
type chachaEntropy struct {
	pool sync.Pool // of *chachaState
}

type chachaState struct {
	rand.ChaCha8
	left int // Reads until the next seed
}

// Read implements io.Reader. It always fills p.
func (e *chachaEntropy) Read(p []byte) (int, error) {
	e.fill(p)
	return len(p), nil
}

func (e *chachaEntropy) fill(p []byte) {
	s, ok := e.pool.Get().(*chachaState)
	if !ok {
		s = new(chachaState)
	}
	if s.left == 0 {
		var seed [32]byte
		_, _ = crand.Read(seed[:]) // cannot fail
		s.Seed(seed)
		s.left = reseedAfter
	}
	s.left--
	_, _ = s.ChaCha8.Read(p) // cannot fail
	e.pool.Put(s)
}

// aesEntropy encrypts its own output over and over, under a key that changes.
// The zero value is ready.
type aesEntropy struct {
	mu    sync.Mutex
	block cipher.Block
	state [aes.BlockSize]byte
	left  int // Reads until the next key
}

// Read implements io.Reader. It returns at most 16 bytes.
func (e *aesEntropy) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.left == 0 {
		var key [aes.BlockSize]byte
		_, _ = crand.Read(key[:]) // cannot fail
		_, _ = crand.Read(e.state[:])
		block, err := aes.NewCipher(key[:])
		if err != nil {
			return 0, err
		}
		e.block, e.left = block, reseedAfter
	}
	e.left--
	e.block.Encrypt(e.state[:], e.state[:])
	return copy(p, e.state[:]), nil
}
