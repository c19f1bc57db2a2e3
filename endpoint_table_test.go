package kcp

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// waitsFor reports whether a goroutine waits for m, as the stacks tell it: a lock has
// no way to ask. The calls that wait are given m's address, or that of a field.
func waitsFor(m *sync.RWMutex) bool {
	stacks := make([]byte, 4<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	begin := uintptr(unsafe.Pointer(m))
	for field := begin; field < begin+unsafe.Sizeof(*m); field += 4 {
		if bytes.Contains(stacks, fmt.Appendf(nil, "(%#x", field)) {
			return true
		}
	}
	return false
}

// A packet of an established session takes no lock that all sessions of the endpoint
// share: messages pass while Endpoint.mu is held.
func TestPacketsOfSessionsTakeNoSharedLock(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]*Config{
		"plain":  {},
		"shards": {Shards: 2},
		"FEC":    {FEC: FEC{Data: 3, Parity: 2}},
		"AEAD":   {Cipher: testAEAD(t)},
		"TLS":    secured(Config{}),
	} {
		t.Run(name, func(t *testing.T) {
			// A packet of no session takes the lock, such as one to a test's earlier
			// socket on this port. Linux has another address for each test.
			host := "127.0.0.1"
			if runtime.GOOS == "linux" {
				host = "127.83.0.1"
			}
			l, err := Listen("udp4", host+":0", config)
			require.NoError(t, err)
			defer l.Endpoint().Close()
			go func() {
				c, err := l.AcceptKCP(t.Context())
				if err == nil {
					_, _ = io.Copy(c, c)
				}
			}()
			d, err := Dial("udp4", l.Addr().String(), config)
			require.NoError(t, err)
			defer d.Abort()
			var passed atomic.Int64 // messages
			say := func(messages int) {
				got := make([]byte, 100)
				for i := range messages {
					got[i%len(got)]++
					want := string(got)
					_, err := d.Write(got)
					require.NoError(t, err)
					clear(got)
					_, err = io.ReadFull(d, got)
					require.NoError(t, err, "message %d", i)
					require.Equal(t, want, string(got))
					passed.Add(1)
				}
			}
			say(20)
			l.ep.mu.Lock()
			d.ep.mu.Lock()
			unlock := sync.OnceFunc(func() {
				l.ep.mu.Unlock()
				d.ep.mu.Unlock()
			})
			defer unlock()
			said := make(chan struct{})
			go func() {
				defer unlock()
				// Slowness alone fails nothing: a goroutine has to wait for the lock.
				for last := int64(-1); ; last = passed.Load() {
					select {
					case <-said:
						return
					case <-time.After(5 * time.Second):
					}
					if last == passed.Load() && (waitsFor(&l.ep.mu) || waitsFor(&d.ep.mu)) {
						t.Error("they wait for Endpoint.mu")
						return
					}
				}
			}()
			say(100)
			close(said)
		})
	}
}
