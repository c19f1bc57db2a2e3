package netsim

// fifo is a queue. Its memory is used again.
type fifo[T any] struct {
	items []T // those before head are gone
	head  int
}

func (q *fifo[T]) len() int { return len(q.items) - q.head }

func (q *fifo[T]) first() *T { return &q.items[q.head] }

func (q *fifo[T]) push(item T) { q.items = append(q.items, item) }

func (q *fifo[T]) pop() T {
	var gone T
	item := q.items[q.head]
	q.items[q.head] = gone
	q.head++
	switch {
	case q.head == len(q.items):
		q.items, q.head = q.items[:0], 0
	case q.head > len(q.items)/2 && q.head > 64:
		// Otherwise a queue that is never quite empty would grow forever.
		kept := copy(q.items, q.items[q.head:])
		clear(q.items[kept:])
		q.items, q.head = q.items[:kept], 0
	}
	return item
}
