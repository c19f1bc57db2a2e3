package schedules

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/schedule"
	"github.com/arqnet/kcp/internal/testenv"
)

// The judge of a run: see TestSchedules for its rules.

// end is one end of a session, as a conversation has it.
type end struct {
	*trial
	conn *kcp.Conn
	of   *process
	who  string
}

// converse dials, and lives the client's life. It reports whether that has come to its
// end. After an event that may end sessions the client tries once more.
func (tr *trial) converse(attempt int) bool {
	tr.mu.Lock()
	tr.dials++
	tr.mu.Unlock()
	if tr.life.peer != nil {
		return tr.life.peer(tr, attempt)
	}
	c, err := tr.client.endpoint.Dial(context.Background(), serverUDP)
	if err != nil {
		return tr.forgiven(&end{tr, nil, tr.client, "client"}, fmt.Errorf("dial: %w", err), attempt)
	}
	e := &end{tr, c, tr.client, "client"}
	if err := tr.life.client(e); err != nil {
		_ = c.Abort()
		return tr.forgiven(e, err, attempt)
	}
	tr.satisfied.Store(true)
	return true
}

// forgiven judges the error of a client. It reports false if the client may try again.
func (tr *trial) forgiven(e *end, err error, attempt int) bool {
	over := tr.life.shuts && tr.broken() // nobody is there for another one
	if attempt > 1 && !over || !tr.broken() || !isDocumented(err) {
		tr.fail("%s: %v", e.who, err)
		return true
	}
	return over
}

// live lives the life of an accepted session, and judges its error.
func (tr *trial) live(e *end, life func(e *end) error) {
	err := life(e)
	if err == nil {
		return
	}
	_ = e.conn.Abort()
	switch {
	case e.of.dead.Load(): // it was killed: what its calls return concerns nobody
	case tr.broken() && isDocumented(err):
	case tr.movedAway() && errors.Is(err, kcp.ErrNotDelivered):
	case tr.broken() && tr.life.shuts && errors.Is(err, net.ErrClosed):
	default:
		tr.fail("%s: %v", e.who, err)
	}
}

// movedAway reports whether the client has closed, and has moved. If its last
// acknowledgements are lost then, the server cannot know (docs/calls.md, Close).
func (tr *trial) movedAway() bool { return tr.satisfied.Load() && tr.plan.Event() == schedule.Move }

// isDocumented reports whether a call may return err when the peer was killed, or its
// address has changed and its packets are not authenticated.
func isDocumented(err error) bool {
	return errors.Is(err, kcp.ErrReset) || errors.Is(err, kcp.ErrNotDelivered) || errors.Is(err, kcp.ErrPeerClosed) ||
		errors.As(err, new(*kcp.PeerLostError)) || errors.As(err, new(*kcp.NoAnswerError))
}

// judgeTime judges how long the conversation took.
func (tr *trial) judgeTime(took time.Duration) {
	limit := runLimit
	if tr.mayBreak() {
		limit = tr.breakLimit()
	}
	if took > limit {
		tr.fail("it took %v", took)
	}
}

// breakLimit is how long it may take until a first session is known to be lost, and a
// second one.
func (tr *trial) breakLimit() time.Duration {
	return tr.rules.KeepAlive*3/2 + tr.rules.PeerTimeout + tr.rules.Linger + runLimit
}

// judgeRest judges how many sessions there were, and what is left of them.
func (tr *trial) judgeRest() {
	time.Sleep(heldFor + 2*pathDelay) // what is held has arrived, a killed server is back
	var ends []*process               // that should have had sessions
	if tr.life.peer == nil {
		ends = append(ends, tr.client)
	}
	if !tr.life.ofLegacy {
		ends = append(ends, tr.server())
	}
	open := func() (n int) {
		for _, p := range ends {
			n += p.endpoint.Stats().Sessions
		}
		return n
	}
	limit := runLimit
	switch {
	case tr.mayBreak():
		limit = tr.breakLimit()
	case tr.plan.Event() == schedule.Move:
		limit = movedLimit
	}
	for waited := time.Duration(0); open() > 0 && waited < limit; waited += time.Second / 4 {
		time.Sleep(time.Second / 4)
	}
	time.Sleep(quietAfter)
	close(tr.rests)
	tr.mu.Lock()
	sent, returned := len(tr.sent), 0
	for _, s := range tr.servers {
		returned += int(s.accepted.Load())
	}
	tr.mu.Unlock()
	time.Sleep(quietFor)
	tr.mu.Lock()
	more := len(tr.sent) - sent
	tr.sent = tr.sent[:sent]
	tr.mu.Unlock()
	if more > 0 {
		tr.fail("%d packets were sent after the end", more)
	}
	if !tr.life.ofLegacy && (returned > tr.dials || returned < tr.dials && !tr.broken()) {
		tr.fail("Accept has returned %d sessions of %d", returned, tr.dials)
	}
	for _, p := range ends {
		s := p.endpoint.Stats()
		if s.Sessions != 0 || s.Backlog != 0 || s.HalfOpen != 0 {
			tr.fail("left: %d sessions, %d in the backlog, %d half-open", s.Sessions, s.Backlog, s.HalfOpen)
		}
		if s.Buffered != 0 || s.WriteBuffered != 0 {
			tr.fail("left: %d bytes held, %d to be written", s.Buffered, s.WriteBuffered)
		}
		if n := s.Dialled + s.Accepted; n != s.Ended.Total() {
			tr.fail("%d sessions, and %d ended", n, s.Ended.Total())
		}
		tr.judgeOpened(p.who, &s)
	}
}

// judgeOpened judges how many sessions there were at one end. The first packets of a
// client that moves could be those of two clients, and its Dial may begin anew.
func (tr *trial) judgeOpened(who string, s *kcp.EndpointStats) {
	opened, half := s.Dialled+s.Accepted, s.Ended.Unaccepted
	good := opened == uint64(tr.dials) && half == 0
	if tr.plan.Event() == schedule.Move {
		good = opened-half >= uint64(tr.dials) && opened <= uint64(tr.dials)+2
	}
	if !good && !tr.broken() {
		tr.fail("%s: %d sessions in %d dials, and %d of them half-open to their end", who, opened, tr.dials, half)
	}
}

// judgeReceipts judges what is known of each message, when all has ended.
func (tr *trial) judgeReceipts() {
	for _, r := range tr.receipts {
		r.settle()
		r.judge()
	}
	for _, b := range tr.inboxes {
		b.judge()
	}
}

// receive reads from r what the peer has written, to its end. An end before all has been
// read is a false one.
func (e *end) receive(r io.Reader, want []byte) error {
	err := e.receiveSome(r, want)
	if err != nil {
		return err
	}
	n, err := r.Read(make([]byte, 1))
	if n > 0 {
		e.fail("%s: more than was written", e.who)
	}
	if err != io.EOF {
		return fmt.Errorf("read after all %d bytes: %w", len(want), errOf(err))
	}
	return nil
}

// receiveSome reads from r as many bytes as want has, and compares them.
func (e *end) receiveSome(r io.Reader, want []byte) error {
	got := make([]byte, len(want))
	for at := 0; at < len(want); {
		n, err := r.Read(got[at:])
		if !bytes.Equal(got[at:at+n], want[at:at+n]) {
			e.fail("%s: wrong bytes after %d", e.who, at)
			return errors.New("wrong bytes")
		}
		at += n
		if at == len(want) {
			break
		}
		if err == io.EOF {
			e.fail("%s: a false end after %d of %d bytes", e.who, at, len(want))
		}
		if err != nil {
			return fmt.Errorf("read after %d of %d bytes: %w", at, len(want), err)
		}
	}
	return nil
}

// errOf returns err, or an error that says that there was none.
func errOf(err error) error {
	if err == nil {
		return errors.New("no error")
	}
	return err
}

// send writes b.
func (e *end) send(w io.Writer, b []byte) error {
	n, err := w.Write(b)
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if n != len(b) {
		e.fail("%s: Write has taken %d of %d bytes, without an error", e.who, n, len(b))
	}
	return nil
}

// named returns err with what has returned it.
func named(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// message is one of several that differ, each of a size.
func message(i, size int) []byte {
	return append([]byte{byte(i)}, testenv.Content(uint64(i), size-1)...)
}

// inbox is the messages that one end gets, of those that the other sends.
type inbox struct {
	tr      *trial
	who     string
	sent    [][]byte
	ordered bool

	mu    sync.Mutex
	times []int       // how often each has arrived
	at    []time.Time // when
	last  int         // the one before, from 1
}

func (e *end) inbox(who string, ordered bool, sent ...[]byte) *inbox {
	b := &inbox{tr: e.trial, who: who, ordered: ordered, sent: sent, times: make([]int, len(sent)), at: make([]time.Time, len(sent))}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.inboxes = append(e.inboxes, b)
	return b
}

// add takes a message.
func (b *inbox) add(m []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(m) == 0 || int(m[0]) >= len(b.sent) || !bytes.Equal(m, b.sent[m[0]]) {
		b.tr.fail("%s: a message of %d bytes that nobody has sent", b.who, len(m))
		return
	}
	i := int(m[0])
	b.times[i]++
	b.at[i] = time.Now()
	if b.ordered && i < b.last {
		b.tr.fail("%s: message %d after a later one", b.who, i)
	}
	b.last = i + 1
}

// has reports whether message i has arrived.
func (b *inbox) has(i int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.times[i] > 0
}

// judge holds that none came twice.
func (b *inbox) judge() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, n := range b.times {
		if n > 1 {
			b.tr.fail("%s: message %d came %d times", b.who, i, n)
		}
	}
}

// receipts is what MessageOptions.Done has said of the messages of one end.
type receipts struct {
	e *end
	// to is where they arrive. lifetimes are 0 for messages that must.
	to        *inbox
	lifetimes []time.Duration

	mu     sync.Mutex
	queued []time.Time // when, of each message that was taken
	calls  [][]error
	all    chan struct{} // closed when each has its receipt
}

func (e *end) receipts(to *inbox, lifetimes ...time.Duration) *receipts {
	n := len(to.sent)
	r := &receipts{e: e, to: to, lifetimes: append(lifetimes, make([]time.Duration, n-len(lifetimes))...), queued: make([]time.Time, n), calls: make([][]error, n), all: make(chan struct{})}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.trial.receipts = append(e.trial.receipts, r)
	return r
}

// send sends each message, with a receipt.
func (r *receipts) send(send func(b []byte, o *kcp.MessageOptions) error) error {
	for i, m := range r.to.sent {
		at := time.Now()
		o := &kcp.MessageOptions{Lifetime: r.lifetimes[i], Done: func(err error) { r.done(i, err) }}
		if err := send(m, o); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		r.mu.Lock()
		r.queued[i] = at
		r.mu.Unlock()
	}
	return nil
}

func (r *receipts) done(i int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls[i] = append(r.calls[i], err)
	for _, c := range r.calls {
		if len(c) == 0 {
			return
		}
	}
	select {
	case <-r.all:
	default:
		close(r.all)
	}
}

// wait waits until each message has its receipt, or the session has ended.
func (r *receipts) wait() {
	select {
	case <-r.all:
	case <-r.e.conn.Done():
	}
	time.Sleep(time.Microsecond)
}

// settle waits until each message has its receipt. Once the session has ended those that
// are missing come at once, but on a busy machine.
func (r *receipts) settle() {
	for range 6000 {
		if r.complete() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// complete reports whether each message that was taken has its receipt.
func (r *receipts) complete() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, calls := range r.calls {
		if len(calls) == 0 && !r.queued[i].IsZero() {
			return false
		}
	}
	return true
}

// judge holds each receipt to what has arrived.
func (r *receipts) judge() {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.e
	for i := range r.queued {
		if r.queued[i].IsZero() {
			continue
		}
		if len(r.calls[i]) != 1 {
			e.fail("%s: %d receipts of message %d: %v", e.who, len(r.calls[i]), i, r.calls[i])
			continue
		}
		r.judgeOne(i, r.calls[i][0])
	}
}

func (r *receipts) judgeOne(i int, err error) {
	e, arrived := r.e, r.to.has(i)
	if err == nil && !arrived && !e.broken() {
		e.fail("%s: the receipt of message %d says that it has arrived", e.who, i)
	}
	mortal := r.lifetimes[i] > 0
	switch {
	case err == nil:
	case mortal && errors.Is(err, kcp.ErrMessageAbandoned):
	case e.movedAway() && errors.Is(err, kcp.ErrNotDelivered):
	case e.broken() && (isDocumented(err) || errors.Is(err, net.ErrClosed)):
	default:
		e.fail("%s: the receipt of message %d: %v", e.who, i, err)
	}
	// Packets that were sent in time may be held, and are kept until a new address is
	// validated.
	limit := r.lifetimes[i] + pathDelay + 10*time.Millisecond
	for _, step := range e.plan {
		switch step.Act {
		case schedule.Hold:
			limit += heldFor
		case schedule.Move:
			limit += runLimit
		}
	}
	from := r.queued[i]
	if at := time.Unix(0, e.acceptedAt.Load()); at.After(from) { // read then
		from = at
	}
	if after := r.to.at[i].Sub(from); mortal && arrived && after > limit && !r.waited(i) {
		e.fail("%s: message %d arrived %v after it was written, or the session accepted", e.who, i, after)
	}
}

// waited reports whether message i had to wait for one before it: for the message, or
// for the news that it is given up.
func (r *receipts) waited(i int) bool {
	for j := range i {
		if r.to.ordered && (!r.to.has(j) || r.to.at[i].Sub(r.to.at[j]) < time.Millisecond) {
			return true
		}
	}
	return false
}
