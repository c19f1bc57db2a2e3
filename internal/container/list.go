// Package container has containers that several layers use: rings of what is numbered in
// sequence, lists, sets and maps of numbers that a peer chooses, pools of buffers. The
// owner's lock guards them.
package container

// Doubly linked lists of elements that carry their own links, so that no element costs an
// allocation. The zero value of each type is empty. The
// owner's lock guards a list and the links of what is in it.

// Links are the neighbours of an element in a List.
type Links[E any] struct {
	before, after *E
	in            bool
}

// In reports whether the element is in a list.
func (l *Links[E]) In() bool { return l.in }

// List is a list of elements. Every method takes the function that returns the
// links of an element in this list.
type List[E any] struct{ first, last *E }

// First returns the first element; nil if there is none.
func (l *List[E]) First() *E { return l.first }

// Len returns the number of elements, which it counts.
func (l *List[E]) Len(links func(*E) *Links[E]) (n int) {
	for e := l.first; e != nil; e = links(e).after {
		n++
	}
	return n
}

// Add adds an element at the beginning or at the end, unless it is in the list.
func (l *List[E]) Add(links func(*E) *Links[E], e *E, first bool) {
	at := links(e)
	if at.in {
		return
	}
	if first {
		*at = Links[E]{after: l.first, in: true}
	} else {
		*at = Links[E]{before: l.last, in: true}
	}
	if at.before != nil {
		links(at.before).after = e
	} else {
		l.first = e
	}
	if at.after != nil {
		links(at.after).before = e
	} else {
		l.last = e
	}
}

// Remove removes an element, if it is in the list.
func (l *List[E]) Remove(links func(*E) *Links[E], e *E) {
	at := links(e)
	if !at.in {
		return
	}
	if at.before != nil {
		links(at.before).after = at.after
	} else {
		l.first = at.after
	}
	if at.after != nil {
		links(at.after).before = at.before
	} else {
		l.last = at.before
	}
	*at = Links[E]{}
}
