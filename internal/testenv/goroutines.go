package testenv

import (
	"bytes"
	"runtime"
	"testing/synctest"
)

// GoroutinesOfBubble returns how many goroutines the bubble of synctest has that the
// caller is in: other tests run beside it. Those that a timer has just started end first.
func GoroutinesOfBubble() int {
	synctest.Wait()
	b := make([]byte, 1<<20)
	head, _, _ := bytes.Cut(b[:runtime.Stack(b, false)], []byte("\n"))
	at := bytes.Index(head, []byte(", synctest bubble "))
	bubble := bytes.Clone(head[at : len(head)-1])
	return bytes.Count(b[:runtime.Stack(b, true)], bubble)
}
