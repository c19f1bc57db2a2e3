package kcp

import (
	"io"
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
			l, err := Listen("udp4", "127.0.0.1:0", config)
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
			require.NoError(t, d.SetReadDeadline(time.Now().Add(20*time.Second)))
			say(20)
			for _, e := range []*Endpoint{l.Endpoint(), d.Endpoint()} {
				e.mu.Lock()
				defer e.mu.Unlock()
			}
			require.NoError(t, d.SetReadDeadline(time.Now().Add(5*time.Second)))
			say(100)
		})
	}
}
