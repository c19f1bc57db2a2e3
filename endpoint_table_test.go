package kcp

import (
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
				}
			}
			say(20)
			l.ep.mu.Lock()
			d.ep.mu.Lock()
			limit := time.AfterFunc(10*time.Second, func() {
				t.Error("they wait for Endpoint.mu")
				l.ep.mu.Unlock()
				d.ep.mu.Unlock()
			})
			say(100)
			if limit.Stop() {
				l.ep.mu.Unlock()
				d.ep.mu.Unlock()
			}
		})
	}
}
