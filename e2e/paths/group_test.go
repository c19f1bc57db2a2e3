package paths

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
)

// echoer returns what arrives in a group, of sessions and of streams.
type echoer struct {
	group   *kcp.Group
	pending map[any][]byte // what waits for room, of a session or a stream
	eof     map[any]bool
	err     error
	ended   chan struct{}
}

// ender is a session or a stream.
type ender interface{ CloseWrite() error }

// grouped has sessions of a group echo what the client sends.
func grouped(w *world, takes func(w *world, e *echoer)) {
	e := &echoer{group: kcp.NewGroup(), pending: make(map[any][]byte), eof: make(map[any]bool), ended: make(chan struct{})}
	w.t.Cleanup(func() { _ = e.group.Close() })
	e.group.ReportStreams()
	require.NoError(w.t, w.listener.AcceptInto(e.group))
	takes(w, e)
	var err error
	w.client, err = w.dialling.Dial(context.Background(), w.listener.Addr(), nil)
	require.NoError(w.t, err)
	w.pathChanges()
	c, a, b := w.client, testenv.Content(1, some), testenv.Content(2, some)
	w.also(func() error { return writes(c, a) })
	w.also(func() error {
		s, err := c.OpenStream(context.Background(), nil)
		if err != nil {
			return err
		}
		return errors.Join(writes(s, b), getsAll(s, b), s.Close())
	})
	w.also(func() error {
		s, err := c.OpenStream(context.Background(), &kcp.StreamOptions{Unordered: true})
		if err != nil {
			return err
		}
		err = s.WriteMessage(testenv.Content(3, 3000), nil)
		return errors.Join(err, s.CloseWrite(), getsAll(s, testenv.Content(3, 3000)), s.Close())
	})
	w.call("Read", 5*some, func() error { return getsAll(c, a) })
	w.call("streams", 5*some, func() error {
		w.join()
		return nil
	})
	w.call("Close", 0, c.Close)
	w.call("EventEnded", 0, func() error {
		<-e.ended
		return e.err
	})
	require.Zero(w.t, e.group.Len())
	require.NoError(w.t, e.group.Close())
	time.Sleep(time.Millisecond)
}

// take handles an event.
func (e *echoer) take(ev kcp.Event) {
	var of ender = ev.Conn
	if ev.Stream != nil {
		of = ev.Stream
	}
	switch ev.Kind {
	case kcp.EventData, kcp.EventMessage:
		e.pending[of] = append(e.pending[of], ev.Data...)
	case kcp.EventEOF:
		e.eof[of] = true
		if ev.Err != io.EOF {
			e.err = errors.Join(e.err, ev.Err)
		}
	case kcp.EventEnded:
		if ev.Err != io.EOF {
			e.err = errors.Join(e.err, ev.Err)
		}
		_ = ev.Conn.Close()
		close(e.ended)
		return
	}
	e.send(of)
}

// send sends what is pending of a session or stream, and the end behind the last byte.
func (e *echoer) send(of ender) {
	if b := e.pending[of]; len(b) > 0 {
		out := []kcp.Outgoing{{Data: b}}
		if out[0].Conn, _ = of.(*kcp.Conn); out[0].Conn == nil {
			out[0].Stream = of.(*kcp.Stream)
		}
		e.group.Send(out)
		if err := out[0].Err; err != nil && !errors.Is(err, kcp.ErrWouldBlock) {
			e.err = errors.Join(e.err, err)
		}
		e.pending[of] = b[out[0].N:]
	}
	if e.eof[of] && len(e.pending[of]) == 0 {
		delete(e.eof, of)
		e.err = errors.Join(e.err, of.CloseWrite())
	}
}

func waits(w *world, e *echoer) {
	go func() {
		events := make([]kcp.Event, 8)
		for {
			n, err := e.group.Wait(context.Background(), events)
			for _, ev := range events[:n] {
				e.take(ev)
			}
			if err != nil {
				return
			}
		}
	}()
}

func serves(w *world, e *echoer) {
	go func() { _ = e.group.Serve(context.Background(), e.take) }()
}

func handles(w *world, e *echoer) {
	require.NoError(w.t, e.group.Handle(func(events []kcp.Event) {
		for _, ev := range events {
			e.take(ev)
		}
	}))
}
