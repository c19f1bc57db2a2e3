package tunnel

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/neterr"
	"github.com/arqnet/kcp/tunnel/internal/carrier"
	"github.com/arqnet/kcp/tunnel/internal/tcp"
)

// role is what a client and a server do each in their own way.
type role interface {
	// admit says what to dial for an opening of the peer, or refuses it.
	admit(o opening) (target string, err error)
	// remote returns what an opening of the peer counts for.
	remote(o opening) string
	// listen carries out an opening that asks to listen, or refuses it.
	listen(ctx context.Context, stream carrier.Stream, o opening)
	// leave begins another session, as the peer has asked. It reports whether this end
	// does that.
	leave() bool
}

// session is what both ends do with a session, once the client is known. Who has dialled
// the session, a client, says nothing about its streams: for each remote one of the two
// ends listens, and the other dials.
type session struct {
	role        role
	conn        carrier.Conn
	log         *slog.Logger
	begun       time.Time
	tally       *tally     // counts what is carried, by the user
	dials       *dialTally // counts what is dialled, for all sessions
	dialTimeout time.Duration
	shutdown    time.Duration // how long the end may take
	// connect dials targets; nil: net.Dialer does.
	connect func(ctx context.Context, network, address string) (net.Conn, error)
	// failed is the level of log records of targets that cannot be dialled.
	failed  slog.Level
	account *account // of the user; at a client, of the client

	active  atomic.Int64 // connections and flows
	opened  atomic.Int64 // those there have been
	evicted atomic.Int64 // flows that were ended to make room
	handled atomic.Int64 // streams of the peer that are being handled
	serving sync.WaitGroup
	closed  atomic.Pointer[string] // why this end has closed the session; nil: it has not

	beginning chan struct{} // has an element for each stream that begins; serve has it

	mu    sync.Mutex
	over  bool                         // resetAll was called
	carry map[carrier.Stream]io.Closer // connections, by their streams; nil: there is none yet, or a flow
	flows map[uint32]*flow             // by the number of the stream
	all   map[*carried]struct{}        // connections and flows

	outgoing *packetQueue // of flows; set with the first one
}

// serve takes the streams of the peer until the session ends, and waits until
// everything has ended that it has begun. It calls begun with a context that ends
// with the session, and ended as soon as it has. It returns why the session has
// ended.
func (s *session) serve(ctx context.Context, begun func(context.Context), ended func()) error {
	parent := ctx
	ctx, cancel := context.WithCancel(ctx)
	if d, ok := s.conn.(carrier.Datagrams); ok {
		s.serving.Go(func() { s.receiveDatagrams(ctx, d) })
	}
	begun(ctx)
	for {
		stream, err := s.conn.AcceptStream(ctx)
		if err != nil {
			cancel()
			ended()
			if parent.Err() != nil {
				err = errShutdown
				_ = s.conn.SetLinger(s.shutdown)
				s.close(closeShutdown, "its program ends")
			}
			s.resetAll()
			_ = s.conn.Close()
			s.serving.Wait()
			if cause := s.conn.Err(); cause != nil && !errors.Is(cause, net.ErrClosed) {
				return cause
			}
			if why := s.closed.Load(); why != nil {
				return errors.New(*why)
			}
			return err
		}
		s.begin(ctx, stream)
	}
}

// errShutdown is why a session has ended here, for the log.
var errShutdown = errors.New("this end is shutting down")

// maxBeginning is how many streams of the peer may be on their way to what they ask for:
// the opening is read, or the target dialled. Further ones wait to be accepted.
const maxBeginning = 512

// begin carries out what a stream of the peer asks for, when its turn comes.
func (s *session) begin(ctx context.Context, stream carrier.Stream) {
	if s.beginning == nil {
		s.beginning = make(chan struct{}, maxBeginning)
	}
	select {
	case s.beginning <- struct{}{}:
		s.serving.Go(func() {
			begun := sync.OnceFunc(func() { <-s.beginning })
			defer begun()
			s.handled.Add(1)
			defer s.handled.Add(-1)
			s.handle(ctx, stream, begun)
		})
	case <-ctx.Done():
		_ = stream.Reset(uint64(codeShutdown))
	case <-s.conn.Done():
	}
}

// close ends the session, and what it carries with resets.
func (s *session) close(code uint64, text string) {
	s.closed.CompareAndSwap(nil, &text)
	s.resetAll()
	_ = s.conn.CloseWithError(code, text)
}

// resetAll resets what is carried, and what would be carried from now on. To close
// the session would not do: it ends its streams in order, and what is cut off would
// look complete.
func (s *session) resetAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	for stream, local := range s.carry {
		cut(stream, local)
	}
	for _, f := range s.flows {
		f.end(codeShutdown)
	}
}

// cut resets a stream, and the connection that it carries, if there is one.
func cut(stream carrier.Stream, local io.Closer) {
	_ = stream.Reset(uint64(codeShutdown))
	if local != nil {
		tcp.Abort(local)
	}
}

// register has resetAll reset the stream, and local if it is not nil, until release is
// called. That has to be before anything is sent on the stream.
func (s *session) register(stream carrier.Stream, local io.Closer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		cut(stream, local)
		return
	}
	if s.carry == nil {
		s.carry = make(map[carrier.Stream]io.Closer)
	}
	s.carry[stream] = local
}

// release takes back register: the stream has ended.
func (s *session) release(stream carrier.Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.carry, stream)
}

// Codes with which this package closes sessions, by kcp.Conn.CloseWithError.
const (
	closeShutdown = 1 // this end is shutting down
	closeRefused  = 2 // the client was turned away, and has been told why
	closeRevoked  = 3 // the identity of the client is no longer valid
	closeRoom     = 4 // it makes room for another client that has not shown an identity yet
	closeReplaced = 5 // the client does not answer, and another session has its remotes
	closeLeft     = 6 // the client has another session, as the server has asked for
)

// open opens a stream for o. The caller has to release it.
func (s *session) open(ctx context.Context, o opening) (carrier.Stream, error) {
	stream, err := s.conn.OpenStream(ctx, &kcp.StreamOptions{Unordered: o.kind.packets(), Priority: o.priority()})
	if err != nil {
		return nil, err
	}
	s.register(stream, nil)
	if o.kind.packets() {
		err = stream.WriteMessage(o.append([]byte{messageControl}), nil)
	} else {
		_, err = stream.Write(o.append(nil))
	}
	if err != nil {
		_ = stream.Reset(uint64(codeFailed))
		s.release(stream)
		return nil, err
	}
	if !o.kind.serves() {
		s.opened.Add(1)
	}
	return stream, nil
}

// interactive are the ports of protocols that people wait for: ssh, telnet, names,
// remote desktops.
var interactive = map[uint16]bool{22: true, 23: true, 53: true, 3389: true, 5900: true}

// priority returns the priority of a stream. What is interactive goes before what
// may be bulk.
func (o opening) priority() int {
	switch {
	case o.kind.serves():
		return 7
	case o.kind.packets():
		return 2
	}
	if _, port, err := splitTarget(o.target); err == nil && interactive[port] {
		return 1
	}
	return 0
}

// handle carries out the opening of a stream of the peer. It calls begun when that is
// done, and what the stream asks for goes on.
func (s *session) handle(ctx context.Context, stream carrier.Stream, begun func()) {
	if stream.Options().Unordered {
		s.handleFlow(ctx, stream)
		return
	}
	_ = stream.SetReadDeadline(time.Now().Add(openDeadline))
	o, err := readOpening(stream)
	_ = stream.SetReadDeadline(time.Time{})
	if err == nil && o.kind.packets() {
		err = refusal(codeMalformed)
	}
	if err != nil {
		s.refuse(stream, o, err)
		return
	}
	switch o.kind {
	case kindLeave:
		if !s.role.leave() {
			s.refuse(stream, o, refusal(codeForbidden))
			return
		}
		_ = stream.Close()
		return
	case kindListenTCP, kindListenUDP, kindListenSocks:
		begun()
		s.role.listen(ctx, stream, o)
		return
	}
	if !s.account.addConn() {
		s.refuse(stream, o, &dialError{codeFailed, errTooMany})
		return
	}
	defer s.account.removeConn()
	began := time.Now()
	local, err := s.dial(ctx, stream, "tcp", &o)
	if err != nil {
		s.refuse(stream, o, err)
		return
	}
	s.register(stream, local)
	if _, err := stream.Write([]byte{statusOpen}); err != nil {
		tcp.Abort(local)
		_ = stream.Reset(uint64(codeFailed))
		s.release(stream)
		return
	}
	begun()
	s.opened.Add(1)
	err = s.relay(local.(*net.TCPConn), stream, false, subject{s.role.remote(o), o.target, true})
	s.log.Debug("connection ended", "kind", o.kind, "target", o.target, since(began), cause(err))
}

// refuse resets a stream with the reason in err.
func (s *session) refuse(stream carrier.Stream, o opening, err error) {
	s.tally.refuse(err)
	what, why, level := "refused", "", slog.LevelDebug
	var dialling *dialError
	switch {
	case errors.Is(err, context.Canceled): // the peer does not want it any more
	case errors.Is(err, refusal(codeForbidden)):
		level = slog.LevelInfo
	case errors.As(err, &dialling):
		level = s.failed
		if !o.kind.serves() {
			what, level = "target failed", s.failedLevel()
		}
		if dialling.refusal == codeFailed { // the peer learns no more than that
			level = slog.LevelWarn
		}
	}
	if !o.kind.serves() {
		why = s.dials.fail(err)
	}
	s.log.Log(context.Background(), level, what, "kind", o.kind, text("target", o.target), text("cause", why), "error", err)
	_ = stream.Reset(uint64(codeOf(err)))
}

// failedLevel returns the level of a record of a target that cannot be dialled.
func (s *session) failedLevel() slog.Level {
	if _, say := s.account.saidFailed.Allow(s.account.now(), saidEvery, saidAtOnce); say && s.failed < slog.LevelInfo {
		return slog.LevelInfo
	}
	return s.failed
}

// addresses returns what to dial for a target. The name localhost is the loopback
// address whatever a resolver says (RFC 6761 §6.3); there may be none.
func addresses(target string) []string {
	host, port, err := net.SplitHostPort(target)
	if err != nil || host != "localhost" {
		return []string{target}
	}
	return []string{net.JoinHostPort("127.0.0.1", port), net.JoinHostPort("::1", port)}
}

// dialError is why a target could not be dialled: the code for the peer, and the
// cause for the log.
type dialError struct {
	refusal
	cause error
}

func (e *dialError) Error() string { return hint(e.cause).Error() }

func (e *dialError) Unwrap() error { return e.refusal }

// dialRefusal returns the code for an error of net.Dialer.
func dialRefusal(err error) refusal {
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &dns):
		return codeUnresolvable
	case neterr.Is(err, syscall.ECONNREFUSED):
		return codeConnRefused
	case errors.Is(err, os.ErrDeadlineExceeded), neterr.Is(err, syscall.ETIMEDOUT), errors.As(err, &timeout) && timeout.Timeout():
		return codeTimeout
	case neterr.Is(err, syscall.EHOSTUNREACH), neterr.Is(err, syscall.ENETUNREACH):
		return codeUnreachable
	}
	return codeFailed
}
