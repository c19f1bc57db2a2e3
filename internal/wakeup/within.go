package wakeup

import (
	"reflect"
	"runtime"
	"slices"
)

// Within reports whether one of these functions, or methods as method expressions, has
// called the caller, by however many others. Functions that are called on the reader's
// goroutine must not wait for what it reads.
func Within(functions ...any) bool {
	names := make([]string, len(functions))
	for i, f := range functions {
		names[i] = runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name()
	}
	var pcs [64]uintptr
	for skip := 2; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs[:])
		if n == 0 {
			return false
		}
		frames := runtime.CallersFrames(pcs[:n])
		for more := true; more; {
			var frame runtime.Frame
			if frame, more = frames.Next(); slices.Contains(names, frame.Function) {
				return true
			}
		}
	}
}
