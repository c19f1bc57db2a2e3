package soak

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/arqnet/kcp"
)

// Streams of a session: the client opens some, sends messages on each and reads
// their echo. Each message says which it is, so both ends can make it again.

// streamPlan is what a client does on one stream.
type streamPlan struct {
	Options  kcp.StreamOptions
	Messages []int // sizes
	Reset    int   // after how many messages the client resets it; -1: it does not
	Code     uint64
}

// unreliable reports whether messages may be given up.
func (s streamPlan) unreliable() bool {
	return s.Options.MaxLifetime > 0 || s.Options.MaxRetransmits != 0
}

// streamPlans returns the streams of a session, of n bytes in all.
func (p *plan) streamPlans(session, n int) (all []streamPlan) {
	r := rand.New(rand.NewPCG(p.Seed, uint64(session)+1000))
	count := 1 + r.IntN(6)
	for range count {
		s := streamPlan{Reset: -1}
		s.Options.Unordered, s.Options.Priority = chance(r, 40), r.IntN(16)-8
		if chance(r, 20) {
			s.Options.MaxLifetime = millis(r, 5, 300)
		} else if chance(r, 10) {
			s.Options.MaxRetransmits = 1 + r.IntN(3)
		}
		messages := 1 + r.IntN(10)
		most := max(n/count/messages, messageHeader+1)
		for range messages {
			s.Messages = append(s.Messages, messageHeader+r.IntN(most-messageHeader+1))
		}
		if chance(r, 15) {
			s.Reset, s.Code = r.IntN(messages), uint64(r.IntN(1<<20))
		}
		all = append(all, s)
	}
	return all
}

// messageHeader is the size of what a message says of itself: stream, number and
// size.
const messageHeader = 12

// streamMessage returns a message of the stream with this place in the plan.
func (p *plan) streamMessage(session, stream, number, size int) []byte {
	b := make([]byte, size)
	binary.LittleEndian.PutUint32(b, uint32(stream))
	binary.LittleEndian.PutUint32(b[4:], uint32(number))
	binary.LittleEndian.PutUint32(b[8:], uint32(size))
	var key [32]byte
	copy(key[:], fmt.Sprintf("%d %d %d %d", p.Seed, session, stream, number))
	_, _ = rand.NewChaCha8(key).Read(b[messageHeader:]) // cannot fail
	return b
}

// streamSeen is what one end has seen of a stream.
type streamSeen struct {
	Sent, Nil, Failed int    // messages, and their receipts without and with an error
	Read              []int  // numbers of the messages, in order
	Err               string // why reading ended
	Code              uint64 // of a *kcp.StreamError
	SendErr           string // why sending ended
	Wrong             string // what can be no end's fault but the package's
}

// streams are the streams of an application.
type streams struct {
	app  *app
	mu   sync.Mutex
	seen map[int]*streamSeen // by place in the plan
}

// change changes what is known of a stream.
func (s *streams) change(stream int, f func(*streamSeen)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen[stream] == nil {
		s.seen[stream] = new(streamSeen)
	}
	f(s.seen[stream])
}

// result returns what is known so far.
func (s *streams) result() map[int]streamSeen {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[int]streamSeen)
	for i, of := range s.seen {
		all[i] = *of
		c := all[i]
		c.Read = slices.Clone(of.Read)
		all[i] = c
	}
	return all
}

// open runs the client's streams to their end.
func (s *streams) open(plans []streamPlan) {
	var running sync.WaitGroup
	for i, p := range plans {
		running.Go(func() { s.client(i, p) })
	}
	running.Wait()
}

func (s *streams) client(i int, p streamPlan) {
	var c *kcp.Stream
	err := s.app.call(op(fmt.Sprint("OpenStream ", i)), func() (err error) {
		c, err = s.app.conn.OpenStream(context.Background(), &p.Options)
		return err
	})
	if err != nil {
		s.change(i, func(f *streamSeen) { f.SendErr = class(err) })
		return
	}
	var reading sync.WaitGroup
	reading.Go(func() { s.receive(c, i, false) })
	for n, size := range p.Messages {
		if n == p.Reset {
			_ = c.Reset(p.Code) // fails if the session has ended
			break
		}
		if !s.send(c, i, n, size) {
			break
		}
	}
	_ = c.CloseWrite() // fails if the stream was reset, or the session has ended
	reading.Wait()
	_ = c.Close()
}

// send sends one message with a receipt, and reports whether that succeeded.
func (s *streams) send(c *kcp.Stream, stream, number, size int) bool {
	var done int // guarded by s.mu
	receipt := func(err error) {
		s.change(stream, func(f *streamSeen) {
			switch done++; {
			case done > 1:
				f.Wrong = fmt.Sprintf("two receipts for message %d", number)
			case err == nil:
				f.Nil++
			default:
				f.Failed++
			}
		})
	}
	b := s.app.plan.streamMessage(s.app.rec.Session, stream, number, size)
	err := s.app.call(op(fmt.Sprintf("SendMessage %d on stream %d", number, stream)), func() error {
		return c.SendMessage(b, &kcp.MessageOptions{Done: receipt})
	})
	s.change(stream, func(f *streamSeen) {
		if err == nil {
			f.Sent++
		} else {
			f.SendErr = class(err)
		}
	})
	return err == nil
}

// receive reads messages until the stream ends, and sends each back if echo is
// set. stream is its place in the plan, -1 if the first message is to tell.
func (s *streams) receive(c *kcp.Stream, stream int, echo bool) {
	buf := make([]byte, 1<<20)
	for {
		var n int
		err := s.app.call(op(fmt.Sprintf("ReadMessage of stream %d, id %d", stream, c.ID())), func() (err error) {
			n, err = c.ReadMessage(buf)
			return err
		})
		if err != nil {
			if stream >= 0 {
				s.ended(stream, err)
			}
			return
		}
		if stream, err = s.check(buf[:n], stream); err != nil {
			s.change(max(stream, 0), func(f *streamSeen) { f.Wrong = err.Error() })
			return
		}
		number := int(binary.LittleEndian.Uint32(buf[4:]))
		s.change(stream, func(f *streamSeen) { f.Read = append(f.Read, number) })
		echo = echo && s.send(c, stream, number, n)
	}
}

// check compares a message with what its peer sends. It returns the place of
// its stream in the plan, which is -1 before the first.
func (s *streams) check(b []byte, stream int) (int, error) {
	if len(b) < messageHeader {
		return stream, fmt.Errorf("a message of %d bytes", len(b))
	}
	in, number, size := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[8:])
	if stream >= 0 && int(in) != stream || int(size) != len(b) {
		return stream, fmt.Errorf("on stream %d message %d of stream %d, of %d bytes instead of %d", stream, number, in, len(b), size)
	}
	if !bytes.Equal(b, s.app.plan.streamMessage(s.app.rec.Session, int(in), int(number), len(b))) {
		return int(in), fmt.Errorf("wrong content in message %d of %d bytes", number, len(b))
	}
	return int(in), nil
}

// streamWasReset is the class of a *kcp.StreamError.
const streamWasReset = "stream reset"

// ended notes why reading has ended.
func (s *streams) ended(stream int, err error) {
	var reset *kcp.StreamError
	s.change(stream, func(f *streamSeen) {
		if errors.As(err, &reset) {
			f.Err, f.Code = streamWasReset, reset.Code
			if !reset.Remote {
				f.Wrong = "reset by this end"
			}
			return
		}
		f.Err = class(err)
	})
}

// accept echoes streams until the session ends or ctx is done.
func (s *streams) accept(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		c, err := s.app.conn.AcceptStream(ctx)
		if err != nil {
			return
		}
		running.Go(func() { s.echo(c) })
	}
}

// echo is the server's end of a stream.
func (s *streams) echo(c *kcp.Stream) {
	s.receive(c, -1, true)
	_ = c.CloseWrite() // fails if the stream was reset, or the session has ended
	_ = c.Close()
}

// awaitReceipts waits until each message has its receipt, up to limit.
func (s *streams) awaitReceipts(limit time.Duration) {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		missing := 0
		for _, f := range s.result() {
			missing += f.Sent - f.Nil - f.Failed
		}
		if missing == 0 {
			return
		}
	}
}
