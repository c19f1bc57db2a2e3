package schedules

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/arqnet/kcp"
)

// Conversations of streams, and of messages with receipts.

var (
	up   = [][]byte{message(0, 100), message(1, 2500), message(2, 30)}
	down = [][]byte{message(0, 700), message(1, 20)}
)

// Two streams: messages with receipts in any order, and bytes that come back.
func opensStreams(e *end) error {
	ctx := context.Background()
	a, err := e.conn.OpenStream(ctx, &kcp.StreamOptions{Unordered: true})
	if err != nil {
		return named("OpenStream", err)
	}
	b, err := e.conn.OpenStream(ctx, nil)
	if err != nil {
		return named("OpenStream", err)
	}
	sent := e.receipts(e.peerInbox("up", false, up...))
	if err := sent.send(a.SendMessage); err != nil {
		return err
	}
	if err := a.CloseWrite(); err != nil {
		return named("CloseWrite", err)
	}
	if err := e.send(b, question); err != nil {
		return err
	}
	if err := b.CloseWrite(); err != nil {
		return named("CloseWrite", err)
	}
	if err := e.receive(b, answer); err != nil {
		return err
	}
	if err := e.readMessages(a, e.peerInbox("down", false, down...)); err != nil {
		return err
	}
	sent.wait()
	if err := errors.Join(named("Close", a.Close()), named("Close", b.Close())); err != nil {
		return err
	}
	return named("Close", e.conn.Close())
}

func servesStreams(e *end) error {
	ended := make(chan error, 2)
	for i := range 2 {
		s, err := e.conn.AcceptStream(context.Background())
		if err != nil {
			for range i { // the other one fails as well
				<-ended
			}
			return named("AcceptStream", err)
		}
		go func() {
			time.Sleep(time.Duration(3+2*i) * time.Microsecond)
			if s.Options().Unordered {
				ended <- e.servesMessages(s)
			} else {
				ended <- e.servesBytes(s)
			}
		}()
	}
	err := errors.Join(<-ended, <-ended)
	time.Sleep(time.Microsecond)
	if err != nil {
		return err
	}
	return e.untilClosed()
}

// The session itself writes before there is a stream, and beside it, both ways.
func writesBeside(e *end) error {
	if err := e.send(e.conn, question[:700]); err != nil {
		return err
	}
	s, err := e.conn.OpenStream(context.Background(), nil)
	if err != nil {
		return named("OpenStream", err)
	}
	if err := e.send(s, answer); err != nil {
		return err
	}
	if err := e.send(e.conn, question[700:]); err != nil {
		return err
	}
	if err := errors.Join(named("CloseWrite", s.CloseWrite()), named("CloseWrite", e.conn.CloseWrite())); err != nil {
		return err
	}
	if err := e.receive(e.conn, answer); err != nil {
		return err
	}
	if err := e.receive(s, question); err != nil {
		return err
	}
	if err := named("Close", s.Close()); err != nil {
		return err
	}
	return named("Close", e.conn.Close())
}

func writesBackBeside(e *end) error {
	if err := e.send(e.conn, answer[:10]); err != nil {
		return err
	}
	s, err := e.conn.AcceptStream(context.Background())
	if err != nil {
		return named("AcceptStream", err)
	}
	if err := e.send(e.conn, answer[10:]); err != nil {
		return err
	}
	if err := e.send(s, question); err != nil {
		return err
	}
	if err := errors.Join(named("CloseWrite", s.CloseWrite()), named("CloseWrite", e.conn.CloseWrite())); err != nil {
		return err
	}
	if err := e.receive(s, answer); err != nil {
		return err
	}
	if err := e.receive(e.conn, question); err != nil {
		return err
	}
	return e.untilClosed()
}

// untilClosed waits until the peer closes the session, and closes it.
func (e *end) untilClosed() error {
	if _, err := e.conn.AcceptStream(context.Background()); !errors.Is(err, kcp.ErrPeerClosed) {
		return fmt.Errorf("AcceptStream after the end: %w", errOf(err))
	}
	return named("Close", e.conn.Close())
}

func (e *end) servesMessages(s *kcp.Stream) error {
	if err := e.readMessages(s, e.peerInbox("up", false, up...)); err != nil {
		return err
	}
	sent := e.receipts(e.peerInbox("down", false, down...))
	if err := sent.send(s.SendMessage); err != nil {
		return err
	}
	return named("CloseWrite", s.CloseWrite())
}

func (e *end) servesBytes(s *kcp.Stream) error {
	if err := e.receive(s, question); err != nil {
		return err
	}
	if err := e.send(s, answer); err != nil {
		return err
	}
	return named("CloseWrite", s.CloseWrite())
}

// messageReader is a session or a stream.
type messageReader interface {
	ReadMessage(b []byte) (int, error)
}

// readMessages takes messages until their end.
func (e *end) readMessages(s messageReader, to *inbox) error {
	for b := make([]byte, 8<<10); ; {
		n, err := s.ReadMessage(b)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return named("ReadMessage", err)
		}
		to.add(b[:n])
	}
}

// peerInbox is the inbox of a name, which both ends of a session share.
func (e *end) peerInbox(name string, ordered bool, sent ...[]byte) *inbox {
	// After a restart a session has inboxes of its own.
	name = fmt.Sprintf("%s of %d", name, e.conn.Conv())
	e.mu.Lock()
	for _, b := range e.inboxes {
		if b.who == name {
			e.mu.Unlock()
			return b
		}
	}
	e.mu.Unlock()
	return e.inbox(name, ordered, sent...)
}

const lifetime = 50 * time.Millisecond // a retransmission may come too late

// Streams whose messages are given up after a time, in order and in any order.
func opensMortal(e *end) error {
	for _, o := range mortalOptions {
		s, err := e.conn.OpenStream(context.Background(), &o)
		if err != nil {
			return named("OpenStream", err)
		}
		sent := e.receipts(e.peerInbox(mortalName(o), !o.Unordered, up...), lifetime, lifetime, lifetime)
		if err := sent.send(s.SendMessage); err != nil {
			return err
		}
		if err := s.CloseWrite(); err != nil {
			return named("CloseWrite", err)
		}
		sent.wait()
		// What was not given up is there, and the end is known.
		if n, err := s.Read(make([]byte, 1)); n > 0 || err != io.EOF {
			return fmt.Errorf("read of a stream: %w", errOf(err))
		}
	}
	return named("Close", e.conn.Close())
}

var mortalOptions = []kcp.StreamOptions{{MaxLifetime: lifetime}, {MaxLifetime: lifetime, Unordered: true}}

func mortalName(o kcp.StreamOptions) string {
	if o.Unordered {
		return "unordered"
	}
	return "ordered"
}

func servesMortal(e *end) error {
	for range mortalOptions {
		s, err := e.conn.AcceptStream(context.Background())
		if err != nil {
			return named("AcceptStream", err)
		}
		o := s.Options()
		if err := e.readMessages(s, e.peerInbox(mortalName(o), !o.Unordered, up...)); err != nil {
			return err
		}
		if err := s.Close(); err != nil {
			return named("Close", err)
		}
	}
	return e.untilClosed()
}

// Messages of the session itself, of which some may be given up.
func sendsMessages(e *end) error {
	sent := e.receipts(e.peerInbox("up", true, up...), 0, lifetime)
	if err := sent.send(e.conn.SendMessage); err != nil {
		return err
	}
	if err := e.conn.CloseWrite(); err != nil {
		return named("CloseWrite", err)
	}
	if err := e.readMessages(e.conn, e.peerInbox("down", true, down...)); err != nil {
		return err
	}
	sent.wait()
	return named("Close", e.conn.Close())
}

func takesMessages(e *end) error {
	if err := e.readMessages(e.conn, e.peerInbox("up", true, up...)); err != nil {
		return err
	}
	sent := e.receipts(e.peerInbox("down", true, down...))
	if err := sent.send(e.conn.SendMessage); err != nil {
		return err
	}
	return named("Close", e.conn.Close())
}
