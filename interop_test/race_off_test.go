//go:build !race

package interop

// slowdown is what time limits are multiplied by: nothing.
const slowdown = 1
