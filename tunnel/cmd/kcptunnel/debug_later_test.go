package main

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// What serves the live page is stopped once, whether it began at once, later, or never.
func TestDebugLaterIsStopped(t *testing.T) {
	for _, tries := range []int{1, 5, 1000} {
		for _, after := range []time.Duration{0, time.Second} {
			synctest.Test(t, func(t *testing.T) {
				n, stopped := 0, 0
				stop := serveDebugLater("localhost:1", slog.New(slog.DiscardHandler), func() (func(), error) {
					if n++; n < tries {
						return nil, errors.New("in use")
					}
					return func() { stopped++ }, nil
				})
				time.Sleep(after)
				synctest.Wait()
				stop()
				want := 0
				if n >= tries {
					want = 1
				}
				require.Equal(t, want, stopped)
			})
		}
	}
}
