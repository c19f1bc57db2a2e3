package recovery

import (
	"slices"

	"github.com/arqnet/kcp/internal/container"
)

// FlushCalls are the calls of Flush, each of which waits until snd_una reaches a number.
// The zero value has none.
type FlushCalls struct {
	lowest  container.Serial    // that a call waits for
	waits   bool                // lowest is valid
	waiting []*container.Serial // what each call waits for
}

// Begin returns where a call of Flush keeps what snd_una has to reach, until
// end.
func (w *FlushCalls) Begin(end container.Serial) *container.Serial {
	w.waiting = append(w.waiting, &end)
	return &end
}

// End records that a call of Flush returns.
func (w *FlushCalls) End(end *container.Serial) {
	w.waiting = slices.DeleteFunc(w.waiting, func(p *container.Serial) bool { return p == end })
}

// Overtaken records that a segment of a stream leaves before all that wait, of
// which the first would have been next.
func (w *FlushCalls) Overtaken(next container.Serial) {
	for _, end := range w.waiting {
		if next.Before(*end) {
			*end++
		}
	}
}

// WaitFor records that a call of Flush waits for snd_una to reach end.
func (w *FlushCalls) WaitFor(end container.Serial) {
	if !w.waits || end.Before(w.lowest) {
		w.lowest, w.waits = end, true
	}
}

// Delivers reports whether calls of Flush are to be woken, as snd_una is now
// una. They then ask again.
func (w *FlushCalls) Delivers(una container.Serial) bool {
	if !w.waits || una.Before(w.lowest) {
		return false
	}
	w.waits = false
	return true
}
