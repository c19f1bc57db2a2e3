package kcp

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Endpoints of one Repetition do not draw the same numbers.
func TestEndpointsDrawTheirOwn(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		config := Config{Repetition: NewRepetition(1)}
		a, _ := w.endpoint("10.0.0.2:0", &config)
		b, _ := w.endpoint("10.0.0.3:0", &config)
		require.NotEqual(t, a.random32(), b.random32())
	})
}
