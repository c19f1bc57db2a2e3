//go:build race

package interop

// The race detector makes everything several times slower.
const (
	slowdown = 3      // multiplies the time limits
	maxSize  = 2 * mB // bounds each transfer
)
