package paths

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
)

// sizes of messages.
var sizes = []int{0, 1, 1000, 20_000, 100}

func sendsMessages(w *world) {
	receipts := make(chan error, len(sizes))
	w.pathChanges()
	w.also(func() (err error) {
		for i, n := range sizes {
			err = errors.Join(err, w.client.WriteMessage(testenv.Content(uint64(i), n), &kcp.MessageOptions{Done: func(err error) { receipts <- err }}))
		}
		return err
	})
	w.call("ReadMessage", 22_000, func() error { return getMessages(w.server, 0, 1, 2, 3, 4) })
	w.call("Done", 22_000, func() (err error) {
		for range sizes {
			err = errors.Join(err, <-receipts)
		}
		return err
	})
	w.call("WriteMessage", 0, func() error { return w.server.WriteMessage(testenv.Content(2, sizes[2]), nil) })
	w.call("ReadMessage back", 1000, func() error { return getMessages(w.client, 2) })
}

// getMessages requires that the messages of these numbers follow.
func getMessages(c *kcp.Conn, numbers ...int) error {
	b := make([]byte, 20_000)
	for _, i := range numbers {
		n, err := c.ReadMessage(b)
		if err != nil {
			return err
		}
		if want := testenv.Content(uint64(i), sizes[i]); !bytes.Equal(b[:n], want) {
			return fmt.Errorf("message %d of %d bytes has %d, or others", i, len(want), n)
		}
	}
	return nil
}

// sendsMessagesOfStreams sends messages on streams of three kinds. Those that are
// reliable all arrive, and of the others those that are acknowledged.
func sendsMessagesOfStreams(w *world) {
	w.pathChanges()
	for _, o := range []kcp.StreamOptions{{Unordered: true}, {Unordered: true, MaxRetransmits: -1}, {MaxLifetime: time.Second}} {
		s, err := w.client.OpenStream(context.Background(), &o)
		require.NoError(w.t, err)
		var acked, arrived []int
		w.also(func() (err error) {
			acked, err = sendNumbered(s, o.MaxRetransmits == 0 && o.MaxLifetime == 0)
			return err
		})
		w.also(func() error {
			r, err := w.server.AcceptStream(context.Background())
			if err != nil {
				return err
			}
			if arrived, err = receiveNumbered(r); err == io.EOF {
				err = r.Close()
			}
			return err
		})
		w.call("messages", 15_000, func() error {
			w.join()
			return s.Close()
		})
		require.Subset(w.t, arrived, acked)
		require.Len(w.t, slices.Compact(slices.Sorted(slices.Values(arrived))), len(arrived), "none twice")
	}
}

// sendNumbered sends 20 messages, and returns which the peer has acknowledged.
func sendNumbered(s *kcp.Stream, reliable bool) (acked []int, err error) {
	type receipt struct {
		number int
		err    error
	}
	receipts := make(chan receipt, 20)
	for i := range cap(receipts) {
		done := func(err error) { receipts <- receipt{i, err} }
		err = errors.Join(err, s.WriteMessage(numbered(700, i), &kcp.MessageOptions{Done: done}))
	}
	for range cap(receipts) {
		switch r := <-receipts; {
		case r.err == nil:
			acked = append(acked, r.number)
		case reliable || !errors.Is(r.err, kcp.ErrMessageAbandoned):
			err = errors.Join(err, r.err)
		}
	}
	return acked, errors.Join(err, s.CloseWrite())
}

// receiveNumbered returns the numbers of the messages that arrive until an error.
func receiveNumbered(r *kcp.Stream) (arrived []int, err error) {
	for b := make([]byte, 1000); ; {
		n, err := r.ReadMessage(b)
		if err != nil {
			return arrived, err
		}
		number := int(binary.BigEndian.Uint64(b))
		if !bytes.Equal(numbered(700, number), b[:n]) {
			return arrived, errors.New("another message than was sent")
		}
		arrived = append(arrived, number)
	}
}
