package dialling

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestInterleave(t *testing.T) {
	parse := func(all ...string) (addrs []netip.Addr) {
		for _, a := range all {
			addrs = append(addrs, netip.MustParseAddr(a))
		}
		return addrs
	}
	require.Empty(t, Interleave(nil))
	require.Equal(t, parse("::1", "10.0.0.1", "::2", "10.0.0.2", "::3"), Interleave(parse("::1", "::2", "::3", "10.0.0.1", "10.0.0.2")))
	require.Equal(t, parse("10.0.0.1", "::1", "10.0.0.2"), Interleave(parse("10.0.0.1", "10.0.0.2", "::1")))
}

// attempt is how an attempt ends: after some time, or when its context is done.
type attempt struct {
	after time.Duration
	err   error
	deaf  bool // does not mind its context
}

// The first attempt that succeeds wins. The next begins after a delay, or at once
// when one has failed. The others are cancelled, and what they have is discarded.
func TestRace(t *testing.T) {
	bad, worse, never := errors.New("bad"), errors.New("worse"), time.Hour
	for _, c := range []struct {
		name     string
		attempts []attempt
		serial   bool
		limit    time.Duration // of the context
		won      int           // -1: none
		err      error
		took     time.Duration
		begun    int
		discard  int
	}{
		{name: "first", attempts: []attempt{{after: 100}, {after: 1}}, won: 0, took: 100, begun: 1},
		{name: "silent first", attempts: []attempt{{after: never}, {after: 100}}, won: 1, took: AttemptDelay + 100, begun: 2},
		{name: "refused first", attempts: []attempt{{after: 50, err: bad}, {after: 100}}, won: 1, took: 150, begun: 2},
		{name: "slow first", attempts: []attempt{{after: AttemptDelay + 5}, {after: never}}, won: 0, took: AttemptDelay + 5, begun: 2},
		{name: "all refuse", attempts: []attempt{{after: 50, err: bad}, {after: 10, err: worse}}, won: -1, err: bad, took: 60, begun: 2},
		{name: "last error first", attempts: []attempt{{after: 2 * AttemptDelay, err: bad}, {after: 10, err: worse}}, won: -1, err: bad, took: 2 * AttemptDelay, begun: 2},
		{name: "both succeed", attempts: []attempt{{after: AttemptDelay + 20, deaf: true}, {after: 10}}, won: 1, took: AttemptDelay + 20, begun: 2, discard: 1},
		{name: "serial", attempts: []attempt{{after: 5 * AttemptDelay, err: bad}, {after: 10}}, serial: true, won: 1, took: 5*AttemptDelay + 10, begun: 2},
		{name: "out of time", attempts: []attempt{{after: never}, {after: never}, {after: 1}}, limit: AttemptDelay + 10, won: -1, err: context.DeadlineExceeded, took: AttemptDelay + 10, begun: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, delay, start := context.Background(), AttemptDelay, time.Now()
				if c.serial {
					delay = 0
				}
				if c.limit > 0 {
					var cancel func()
					ctx, cancel = context.WithTimeout(ctx, c.limit)
					defer cancel()
				}
				var begun atomic.Int32
				discarded := 0
				won, err := Race(ctx, len(c.attempts), delay, func(ctx context.Context, i int) (int, error) {
					begun.Add(1)
					a := c.attempts[i]
					if a.deaf {
						ctx = context.Background()
					}
					select {
					case <-time.After(a.after):
						return i, a.err
					case <-ctx.Done():
						return -1, ctx.Err()
					}
				}, func(int) { discarded++ })
				require.ErrorIs(t, err, c.err)
				if c.won >= 0 {
					require.Equal(t, c.won, won)
				}
				require.Equal(t, []any{c.took, c.begun, c.discard}, []any{time.Since(start), int(begun.Load()), discarded})
			})
		})
	}
}
