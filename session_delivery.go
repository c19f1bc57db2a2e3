package kcp

import (
	"context"
	"net"
	"slices"

	"github.com/arqnet/kcp/internal/closing"
)

// Flush waits until the peer's endpoint has acknowledged all that was written before the
// call; only a reply of the application shows that it has read it. It does not wait for
// what streams send, and the write deadline does not matter. It must not be called from
// a handler of Group.Handle.
//
// Flush returns nil if the data has arrived, even if the session has ended since.
// Otherwise its errors are
//   - ctx.Err() when ctx is done;
//   - net.ErrClosed after Close or Abort at this end;
//   - ErrPeerClosed if the peer has closed the session without taking the data;
//   - the error with which the session ended; some of the data may have arrived.
func (c *Conn) Flush(ctx context.Context) error {
	var end *seq
	return c.await(blocking{op: "flush", ctx: ctx}, func() (pause, error) {
		if end == nil {
			end = c.measures().beginFlush(c.kcp.position().end)
		}
		// What the peer has not taken before its CLOSE is out of the queue, too.
		discarded := c.closing.Read == closing.ReadClosed && c.closing.Undelivered()
		if !discarded && (!c.kcp.position().acked.Before(*end) || c.kcp.WaitSend() == 0) {
			return pause{}, nil
		}
		if err := c.cannotDeliver(); err != nil {
			return pause{}, err
		}
		if err := ctx.Err(); err != nil {
			return pause{}, err
		}
		c.rare.measure.waitFor(*end)
		return pause{on: &c.io.canWrite}, nil
	}, func() { c.rare.measure.endFlush(end) })
}

// cannotDeliver returns why what is not acknowledged will not be; nil if it may.
func (c *Conn) cannotDeliver() error {
	switch {
	case c.closing.Caller != closing.Uses:
		return net.ErrClosed
	case c.closing.Read == closing.ReadClosed:
		return c.reason(ErrPeerClosed)
	case c.closing.Phase >= closing.Ended:
		c.io.errReported = true
		return c.reason(c.closing.err)
	}
	return nil
}

// beginFlush returns where a call of Flush keeps what snd_una has to reach, until
// endFlush.
func (w *measurement) beginFlush(end seq) *seq {
	w.flushing = append(w.flushing, &end)
	return &end
}

// endFlush records that a call of Flush returns.
func (w *measurement) endFlush(end *seq) {
	w.flushing = slices.DeleteFunc(w.flushing, func(p *seq) bool { return p == end })
}

// overtaken records that a segment of a stream leaves before all that wait, of
// which the first would have been next. w may be nil.
func (w *measurement) overtaken(next seq) {
	if w == nil {
		return
	}
	for _, end := range w.flushing {
		if next.Before(*end) {
			*end++
		}
	}
}

// waitFor records that a call of Flush waits for snd_una to reach end.
func (w *measurement) waitFor(end seq) {
	if !w.flushes || end.Before(w.flushed) {
		w.flushed, w.flushes = end, true
	}
}

// delivers reports whether calls of Flush are to be woken, as snd_una is now
// una. They then ask again. w may be nil.
func (w *measurement) delivers(una seq) bool {
	if w == nil || !w.flushes || una.Before(w.flushed) {
		return false
	}
	w.flushes = false
	return true
}
