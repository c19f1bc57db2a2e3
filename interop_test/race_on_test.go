//go:build race

package interop

// slowdown is what time limits are multiplied by under the race detector.
const slowdown = 3
