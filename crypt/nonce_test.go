package crypt

import (
	"bytes"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Nonces do not repeat: not across reseeds, not across goroutines, and not
// across sources.
func TestNoncesDiffer(t *testing.T) {
	const goroutines, each = 4, 2*reseedAfter + 100
	var sources [2]nonceSource
	var drawn [goroutines][each][12]byte
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range drawn[g] {
				sources[g%2].fill(drawn[g][i][:])
			}
		})
	}
	wg.Wait()
	seen := map[[12]byte]bool{}
	for g := range drawn {
		for _, nonce := range drawn[g] {
			require.False(t, seen[nonce])
			seen[nonce] = true
		}
	}
}

// A goroutine that is held up with a shard does not hold up the others.
func TestNonceShards(t *testing.T) {
	var s nonceSource
	for range nonceShards - 1 {
		s.lock()
	}
	s.fill(make([]byte, 12))
	held := s.lock()
	require.Same(t, &s.shards[nonceShards-1], held)

	done := make(chan struct{})
	go func() {
		s.fill(make([]byte, 12))
		close(done)
	}()
	for range 1000 {
		runtime.Gosched()
	}
	select {
	case <-done:
		require.Fail(t, "drew from a shard of another goroutine")
	default:
	}
	s.shards[0].mu.Unlock()
	<-done
}

// Every packet has a nonce of its own, and all of its bytes are drawn.
func TestPacketsHaveNonces(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode, c Cipher) {
		size, _ := c.Overhead()
		if !Authenticated(c) {
			size = nonceSize
		}
		seen := map[string]bool{}
		bits := make([]byte, size)
		for range 100 {
			packet := seal(t, c, []byte("the same content"))
			_, err := c.Open(packet)
			require.NoError(t, err)
			nonce := packet[:size]
			require.False(t, seen[string(nonce)])
			seen[string(nonce)] = true
			for i := range bits {
				bits[i] |= nonce[i]
			}
		}
		require.Equal(t, bytes.Repeat([]byte{0xff}, size), bits)
	})
}
