package dialling

import (
	"context"
	"net/netip"
	"slices"
	"time"
)

// The first of several addresses that answers is connected to (Happy Eyeballs Version 2,
// RFC 8305).

// AttemptDelay is the Connection Attempt Delay (RFC 8305 §5).
const AttemptDelay = 250 * time.Millisecond

// Interleave returns addrs with the two address families in turn, beginning with
// the first one's (RFC 8305 §4). The order within each stays.
func Interleave(addrs []netip.Addr) []netip.Addr {
	var families [2][]netip.Addr
	for _, a := range addrs {
		other := 0
		if a.Is4() != addrs[0].Is4() {
			other = 1
		}
		families[other] = append(families[other], a)
	}
	mixed := make([]netip.Addr, 0, len(addrs))
	for i := range max(len(families[0]), len(families[1])) {
		for _, f := range families {
			if i < len(f) {
				mixed = append(mixed, f[i])
			}
		}
	}
	return slices.Clip(mixed)
}

// Race calls try for 0 to n-1, each on a goroutine of its own, and returns what
// the first has that succeeds. The next attempt begins when delay has passed, or
// the one before has failed; with a delay of 0 only the latter. Contexts of those
// that are too late are cancelled, and discard is called for what they return
// nevertheless. Race returns when all have returned. If none succeeds, it returns
// the error of the first address. n must not be 0.
func Race[T any](ctx context.Context, n int, delay time.Duration, try func(ctx context.Context, i int) (T, error), discard func(T)) (T, error) {
	type result struct {
		i     int
		value T
		err   error
	}
	results := make(chan result)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var timer <-chan time.Time
	begun := 0
	begin := func() {
		if begun == n || ctx.Err() != nil && begun > 0 {
			timer = nil
			return
		}
		i := begun
		begun++
		go func() {
			value, err := try(ctx, i)
			results <- result{i, value, err}
		}()
		if delay > 0 {
			timer = time.After(delay)
		}
	}
	var winner, first result
	won := false
	begin()
	for ended := 0; ended < begun; {
		select {
		case r := <-results:
			ended++
			switch {
			case r.err == nil && won:
				discard(r.value)
			case r.err == nil:
				won, winner = true, r
				cancel()
			case r.i == 0:
				first = r
			}
			begin()
		case <-timer:
			begin()
		}
	}
	if won {
		return winner.value, nil
	}
	return first.value, first.err
}
