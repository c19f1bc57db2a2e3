package admission

import "slices"

// slots holds each session in a slot of its own, so that all of them can be
// copied at the price of a memmove. A map of 100 000 sessions would be locked for
// milliseconds.
type slots[S any] struct {
	all  []*S     // nil entries are free
	free []uint32 // indices of those
}

// slotsKept is how many slots an empty table keeps.
const slotsKept = 64

// add puts s into a slot, which it returns. It is the one that was freed last, if
// any.
func (l *slots[S]) add(s *S) uint32 {
	if last := len(l.free) - 1; last >= 0 {
		slot := l.free[last]
		l.all[slot], l.free = s, l.free[:last]
		return slot
	}
	l.all = append(l.all, s)
	return uint32(len(l.all) - 1)
}

// remove empties a slot. It releases the memory of a table that was large and is
// empty, and reports whether that is so.
func (l *slots[S]) remove(slot uint32) (emptied bool) {
	l.all[slot] = nil
	l.free = append(l.free, slot)
	if len(l.free) == len(l.all) && len(l.all) > slotsKept {
		*l = slots[S]{}
		return true
	}
	return false
}

// Slots returns a copy of the slots of all sessions, some of which are nil. Their
// order depends on nothing but how sessions came and went.
func (t *Table[S]) Slots() []*S { return slices.Clone(t.slots.all) }

// Sessions returns all sessions, in the order of Slots.
func (t *Table[S]) Sessions() []*S {
	return slices.DeleteFunc(t.Slots(), func(s *S) bool { return s == nil })
}

// Part returns at most n slots from index from on, some of which are nil, and
// whether these are the last. The slice is valid until the table changes.
func (t *Table[S]) Part(from, n int) (slots []*S, last bool) {
	all := t.slots.all
	from = min(from, len(all))
	return all[from:min(from+n, len(all))], from+n >= len(all)
}
