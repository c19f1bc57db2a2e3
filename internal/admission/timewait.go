package admission

import (
	"iter"
	"time"
)

// TimeWaits remembers ended sessions for a while, in bounded memory (TIME-WAIT,
// RFC 9293 §3.6.1). V is what there is to know of each. The zero value is empty.
type TimeWaits[V any] struct {
	entries map[Key]waiting[V] // nil: none yet
	order   []Key              // of entries, oldest first
	latest  map[uint32]Key     // latest session of a conversation id that counts as such
	cut     bool               // an entry was removed before its time
	cutTo   time.Duration      // if cut: when the session of the last of those ended
}

// waiting is an ended session.
type waiting[V any] struct {
	until time.Duration
	state V
}

// TimeWait is how long an ended session is remembered. MaxTimeWaits is how many
// are.
const (
	TimeWait     = 60 * time.Second
	MaxTimeWaits = 8192
)

// Add remembers a session from now on. If latest is set, AtAnyAddress returns it.
func (t *TimeWaits[V]) Add(key Key, state V, latest bool, now time.Duration) {
	if t.entries == nil {
		t.entries = make(map[Key]waiting[V])
	}
	t.Expire(now)
	for len(t.order) >= MaxTimeWaits {
		t.cut, t.cutTo = true, t.entries[t.order[0]].until-TimeWait
		t.removeOldest()
	}
	if _, again := t.entries[key]; !again {
		t.order = append(t.order, key)
	}
	t.entries[key] = waiting[V]{now + TimeWait, state}
	if latest {
		if t.latest == nil {
			t.latest = make(map[uint32]Key)
		}
		t.latest[key.Conv] = key
	}
}

// removeOldest forgets the oldest entry.
func (t *TimeWaits[V]) removeOldest() {
	oldest := t.order[0]
	delete(t.entries, oldest)
	if t.latest[oldest.Conv] == oldest {
		delete(t.latest, oldest.Conv)
	}
	t.order = t.order[1:]
}

// Expire forgets the entries whose time has passed. It reports whether none is
// left.
func (t *TimeWaits[V]) Expire(now time.Duration) (empty bool) {
	for len(t.order) > 0 && t.entries[t.order[0]].until <= now {
		t.removeOldest()
	}
	return len(t.order) == 0
}

// All yields the entries, oldest first.
func (t *TimeWaits[V]) All(now time.Duration) iter.Seq2[Key, V] {
	return func(yield func(Key, V) bool) {
		for _, key := range t.order {
			if v, ok := t.At(key, now); ok && !yield(key, v) {
				return
			}
		}
	}
}

// Clear forgets all entries, and releases the memory: a map gives none back.
func (t *TimeWaits[V]) Clear() { t.entries, t.order, t.latest = nil, nil, nil }

// Len returns the number of entries.
func (t *TimeWaits[V]) Len() int { return len(t.order) }

// Holds reports whether key is remembered.
func (t *TimeWaits[V]) Holds(key Key, now time.Duration) bool {
	_, ok := t.At(key, now)
	return ok
}

// At returns what is remembered of key.
func (t *TimeWaits[V]) At(key Key, now time.Duration) (V, bool) {
	e, ok := t.entries[key]
	return e.state, ok && now < e.until
}

// AtAnyAddress returns the latest session of conv that was added as such, at
// whatever address.
func (t *TimeWaits[V]) AtAnyAddress(conv uint32, now time.Duration) (V, bool) {
	key, known := t.latest[conv]
	if !known {
		var none V
		return none, false
	}
	return t.At(key, now)
}

// Forgot reports whether a session was forgotten before its time that has ended
// less than within ago.
func (t *TimeWaits[V]) Forgot(within, now time.Duration) bool {
	return t.cut && now < t.cutTo+within
}

// History remembers the last maxConvs conversation ids, for longer than TIME-WAIT.
// The zero value is empty.
type History struct {
	convs map[uint32]struct{}
	order []uint32 // the same, oldest first; a ring once it is full
	next  int      // in order: the oldest, once it is full
}

// maxConvs is how many ids are remembered, in about 1 MiB.
const maxConvs = 1 << 15

// Add remembers conv.
func (h *History) Add(conv uint32) {
	if h.convs == nil {
		h.convs = make(map[uint32]struct{})
	}
	if _, again := h.convs[conv]; again {
		return
	}
	h.convs[conv] = struct{}{}
	if len(h.order) < maxConvs {
		h.order = append(h.order, conv)
		return
	}
	delete(h.convs, h.order[h.next])
	h.order[h.next] = conv
	h.next = (h.next + 1) % maxConvs
}

// Has reports whether conv is remembered.
func (h *History) Has(conv uint32) bool {
	_, ok := h.convs[conv]
	return ok
}

// All yields the ids, in no order.
func (h *History) All(yield func(conv uint32) bool) {
	for conv := range h.convs {
		if !yield(conv) {
			return
		}
	}
}
