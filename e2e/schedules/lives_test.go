package schedules

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
)

// life is a conversation: what the two applications do. An error is one that a call of
// the session has returned.
type life struct {
	name           string
	client, server func(e *end) error
	config         func(*kcp.Config)
	peer           func(tr *trial, attempt int) bool // takes the place of Dial and client
	ofLegacy       bool                              // the server knows no signals
	shuts          bool                              // the server is shut down
}

var (
	question = testenv.Content(1, 1500)
	answer   = testenv.Content(2, 3000)
	word     = testenv.Content(3, 10)
)

// All conversations between two ends of ours.
var allLives = []*life{
	{name: "request", client: asks, server: answers},
	{name: "streams", client: opensStreams, server: servesStreams},
	{name: "beside", client: writesBeside, server: writesBackBeside},
	{name: "lifetimes", client: opensMortal, server: servesMortal},
	{name: "datagrams", client: datagramsUp, server: datagramsDown},
	{name: "closes", client: wordThenClose, server: wordBackThenClose},
	{name: "lastwords", client: lastWords, server: closesUnread},
	{name: "shutdown", client: readsToTheEnd, server: shutsDown, shuts: true},
	{name: "pings", client: pings, server: pingsBack},
	{name: "messages", client: sendsMessages, server: takesMessages, config: func(c *kcp.Config) { c.MessageMode = true }},
}

// A request, its end, the answer, and its end.
func asks(e *end) error {
	if err := e.send(e.conn, question); err != nil {
		return err
	}
	if err := e.conn.CloseWrite(); err != nil {
		return named("CloseWrite", err)
	}
	if err := e.receive(e.conn, answer); err != nil {
		return err
	}
	return named("Close", e.conn.Close())
}

func answers(e *end) error {
	if err := e.receive(e.conn, question); err != nil {
		return err
	}
	if err := e.send(e.conn, answer); err != nil {
		return err
	}
	return named("Close", e.conn.Close())
}

// Datagrams beside a request. What no fault has met arrives.
func datagramsUp(e *end) error {
	stop := e.hear(e.conn, "client", "down")
	if err := e.say(e.conn, "up"); err != nil {
		return err
	}
	if err := e.send(e.conn, question); err != nil {
		return err
	}
	if err := e.conn.CloseWrite(); err != nil {
		return named("CloseWrite", err)
	}
	err := e.receive(e.conn, answer)
	time.Sleep(time.Microsecond)
	closed := e.conn.Close()
	stop(err == nil)
	if err != nil {
		return err
	}
	return named("Close", closed)
}

func datagramsDown(e *end) error {
	stop := e.hear(e.conn, "server", "up")
	err := e.receive(e.conn, question)
	if err == nil {
		err = e.say(e.conn, "down")
	}
	if err == nil {
		err = e.send(e.conn, answer)
	}
	if err != nil {
		_ = e.conn.Abort()
		stop(false)
		return err
	}
	closed := e.conn.Close()
	stop(true)
	return named("Close", closed)
}

const datagrams = 3

func datagram(way string, i int) string { return fmt.Sprintf("%s %d", way, i) }

func (e *end) say(c *kcp.Conn, way string) error {
	for i := range datagrams {
		if err := c.SendDatagram([]byte(datagram(way, i))); err != nil {
			return named("SendDatagram", err)
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// hear takes the datagrams of the peer until the session is closed. Then stop judges
// them.
func (e *end) hear(c *kcp.Conn, who, way string) (stop func(whole bool)) {
	heard := make(map[string]int)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for time.Sleep(3 * time.Microsecond); ; {
			b, err := c.ReceiveDatagram(context.Background())
			if err != nil {
				return
			}
			heard[string(b)]++
		}
	}()
	return func(whole bool) {
		<-done
		time.Sleep(time.Microsecond)
		known, most := 0, 1
		if !e.wire.moves { // packets have no numbers that nobody can repeat
			most += e.plan.Faults()
		}
		for i := range datagrams {
			n := heard[datagram(way, i)]
			if n > most {
				e.fail("%s: datagram %d came %d times", who, i, n)
			}
			if n > 0 {
				known++
			} else if whole && e.net != nil && len(e.plan) == 0 {
				e.fail("%s: datagram %d was lost by nobody", who, i)
			}
		}
		if len(heard) != known {
			e.fail("%s: a datagram that nobody has sent: %q", who, heard)
		}
	}
}

// Both ends have read all, and close at one instant.
func wordThenClose(e *end) error {
	if err := e.send(e.conn, word); err != nil {
		return err
	}
	if err := e.receiveSome(e.conn, answer); err != nil {
		return err
	}
	e.meet()
	return named("Close", e.conn.Close())
}

func wordBackThenClose(e *end) error {
	if err := e.receiveSome(e.conn, word); err != nil {
		return err
	}
	if err := e.send(e.conn, answer); err != nil {
		return err
	}
	e.meet()
	return named("Close", e.conn.Close())
}

// The same, and the client writes something that the server does not read.
func lastWords(e *end) error {
	if err := e.send(e.conn, word); err != nil {
		return err
	}
	if err := e.receiveSome(e.conn, answer); err != nil {
		return err
	}
	e.meet()
	if err := e.send(e.conn, word); err != nil {
		return ifNot(err, kcp.ErrPeerClosed)
	}
	return named("Close", ifNot(e.conn.Close(), kcp.ErrNotDelivered))
}

func closesUnread(e *end) error {
	if err := e.receiveSome(e.conn, word); err != nil {
		return err
	}
	if err := e.send(e.conn, answer); err != nil {
		return err
	}
	e.meet()
	return named("Close", e.conn.Close())
}

// ifNot returns err, unless it is the one that may be.
func ifNot(err, may error) error {
	if errors.Is(err, may) {
		return nil
	}
	return err
}

// The server shuts down with the answer on its way.
func readsToTheEnd(e *end) error {
	if err := e.send(e.conn, question); err != nil {
		return err
	}
	if err := e.receive(e.conn, answer); err != nil {
		return err
	}
	return named("Close", e.conn.Close())
}

func shutsDown(e *end) error {
	if err := e.receiveSome(e.conn, question); err != nil {
		return err
	}
	if err := e.send(e.conn, answer); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return named("Shutdown", e.of.endpoint.Shutdown(ctx))
}

// Nothing is written. No answer comes sooner than the path allows.
func pings(e *end) error {
	for range 2 {
		if err := e.ping(); err != nil {
			return err
		}
	}
	return named("Close", e.conn.Close())
}

func pingsBack(e *end) error {
	if err := e.ping(); err != nil {
		return ifNot(err, kcp.ErrPeerClosed) // the client has two answers already
	}
	n, err := e.conn.Read(make([]byte, 1))
	if n > 0 || err != io.EOF {
		return fmt.Errorf("read of a session without data: %w", errOf(err))
	}
	return named("Close", e.conn.Close())
}

func (e *end) ping() error {
	begun := time.Now()
	took, err := e.conn.Ping(context.Background())
	if err != nil {
		return named("Ping", err)
	}
	if took < 2*pathDelay || took > time.Since(begun) {
		e.fail("%s: Ping says %v after %v", e.who, took, time.Since(begun))
	}
	return nil
}
