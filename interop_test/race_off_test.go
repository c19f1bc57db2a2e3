//go:build !race

package interop

// Nothing is changed without the race detector.
const (
	slowdown = 1       // multiplies the time limits
	maxSize  = 32 * mB // bounds each transfer
)
