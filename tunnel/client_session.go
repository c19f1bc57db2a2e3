package tunnel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/tunnel/internal/carrier"
	"github.com/cenkalti/backoff/v5"
)

// maxPrinted is how many bytes of what a peer has said are printed: any remote.
const maxPrinted = 2 * maxTarget

// printable returns what a peer has said so that it prints on one line, and not all of it
// if it is long.
func printable(s string) string {
	if len(s) > maxPrinted {
		s = s[:maxPrinted] + "..."
	}
	if quoted := strconv.Quote(s); quoted != `"`+s+`"` {
		return quoted
	}
	return s
}

// clientSession is a session with a server at the client.
type clientSession struct {
	session
	client  *Client
	way     way
	leaving chan struct{} // closed when the server asks for another session
	left    sync.Once     // that

	reverseMu sync.Mutex        // locked before session.mu
	reverse   map[uint32]Remote // by the number of the stream that asked to listen
}

// keep keeps a session over UDP on a way, until ctx is done, or the server is given up:
// MaxRetries is reached, or a client with stdio is turned away before it was let in.
func (c *Client) keep(ctx context.Context, w way, shared *keepers) error {
	wait := c.backOff()
	log := c.log.With("server", w)
	for failed := 0; ; {
		lost, began := false, time.Now()
		err := c.attempt(ctx, w, "udp", func() {
			shared.known.Store(true)
			lost, failed, began = true, 0, time.Now()
			wait.Reset()
		})
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errLeaving) {
			select {
			case <-ctx.Done():
			case <-time.After(leavePause(time.Since(began), c.config.RetryAfter)):
			}
			continue
		}
		failed++
		shared.answered.Store(answered(err))
		switch {
		case !shared.known.Load() && c.attended() && TurnedAway(err):
			return fmt.Errorf("%v: %w", w, err)
		case c.config.MaxRetries > 0 && failed > c.config.MaxRetries && (answered(err) || shared.noTCP.Load()):
			retries := "1 retry"
			if c.config.MaxRetries != 1 {
				retries = fmt.Sprintf("%d retries", c.config.MaxRetries)
			}
			return fmt.Errorf("%v: given up after %s: %w", w, retries, err)
		}
		pause := max(wait.NextBackOff(), awayPause(err, failed))
		what, level := "no session, trying again", slog.LevelWarn
		switch {
		case lost:
			what = "session lost, reconnecting"
		case TurnedAway(err): // until somebody changes something
			level = slog.LevelError
		}
		if there, _ := c.pool.over(w, "tcp"); there {
			level = slog.LevelDebug
		}
		log.Log(ctx, level, what, "error", err, "retry", pause.Round(time.Millisecond))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// attended reports whether somebody waits for the client: it has stdio.
func (c *Client) attended() bool {
	return slices.ContainsFunc(c.config.Remotes, func(r Remote) bool { return r.Stdio })
}

// connect opens a session on a way, and serves it to its end. It calls welcomed once
// the server has let the client in.
func (c *Client) connect(ctx context.Context, w way, dial func(context.Context, way) (carrier.Conn, error), welcomed func()) error {
	conn, err := dial(ctx, w)
	if err != nil {
		return err
	}
	if err := c.hello(ctx, conn); err != nil {
		var away *HelloError
		if errors.As(err, &away) { // the server has ended the session
			_ = conn.Close()
		} else {
			_ = conn.Abort(0, "")
		}
		return err
	}
	welcomed()
	s := &clientSession{client: c, way: w, leaving: make(chan struct{}), reverse: make(map[uint32]Remote)}
	s.session = session{
		role: s, conn: conn, log: c.log.With("server", w), begun: time.Now(), tally: &c.tally, dials: &c.dials,
		account: c.account, dialTimeout: c.config.DialTimeout, shutdown: c.config.shutdown, connect: c.config.connect, failed: slog.LevelWarn,
	}
	if over, ok := conn.(*carrier.TCP); ok {
		over.CountFor(&c.account.unread)
	}
	s.log.Info("session begun", "address", conn.RemoteAddr(), "transport", s.transport())
	c.pool.add(s)
	ended := make(chan error, 1)
	c.serving.Go(func() { ended <- s.run(ctx) })
	select {
	case err := <-ended:
		return err
	case <-s.leaving:
		if _, direct := c.pool.over(w, "udp"); direct && s.transport() == "tcp" {
			s.log.Info("UDP passes: new connections go over it, and the session over TCP ends with its last connection")
		} else {
			s.log.Info("the server was upgraded: another session begins, and this one ends with its last connection")
		}
		if oldest := c.pool.surplus(s, c.config.maxLeaving); oldest != nil {
			oldest.log.Warn("too many sessions wait for their last connections: the oldest is ended")
			_ = oldest.conn.SetLinger(c.config.shutdown)
			oldest.close(closeLeft, "another session has taken over")
		}
		return errLeaving
	}
}

// errLeaving is why a client begins another session while there is one.
var errLeaving = errors.New("the session leaves")

// run serves the session to its end.
func (s *clientSession) run(ctx context.Context) error {
	if f := s.client.config.Observe; f != nil {
		if conn, ok := s.conn.(carrier.KCP); ok {
			defer f(s.way.String(), conn.Endpoint())()
		}
	}
	return s.serve(ctx, func(ctx context.Context) {
		for _, r := range s.client.config.Remotes {
			if r.Reverse {
				s.serving.Go(func() { s.keepListening(ctx, r) })
			}
		}
		s.serving.Go(func() { s.retire(ctx) })
		if s.transport() == "tcp" {
			s.serving.Go(func() { s.yield(ctx) })
		}
	}, func() { s.client.pool.remove(s) })
}

// leave has another session begin, and this one end with its last connection.
func (s *clientSession) leave() bool {
	s.left.Do(func() { close(s.leaving) })
	return true
}

// listen refuses to listen: a client does for itself alone.
func (s *clientSession) listen(_ context.Context, stream carrier.Stream, o opening) {
	s.refuse(stream, o, refusal(codeForbidden))
}

// isLeaving reports whether the server has asked for another session.
func (s *clientSession) isLeaving() bool {
	select {
	case <-s.leaving:
		return true
	default:
		return false
	}
}

// retire ends the session when the server has asked for another one, that has begun, and
// nothing is left of this one.
func (s *clientSession) retire(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-s.leaving:
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for idle := 0; idle < 2; { // what has just been opened counts a little later
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if idle++; !s.idle() || !s.client.pool.replaced(s) {
			idle = 0
		}
	}
	_ = s.conn.SetLinger(s.shutdown)
	s.close(closeLeft, "another session has taken over")
}

// idle reports whether the session carries nothing.
func (s *clientSession) idle() bool {
	if s.active.Load() != 0 || s.handled.Load() != 0 {
		return false
	}
	s.reverseMu.Lock()
	defer s.reverseMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for stream := range s.carry {
		if _, listens := s.reverse[stream.ID()]; !listens {
			return false
		}
	}
	return len(s.flows) == 0
}

// hello says who the client is, and waits for the answer.
func (c *Client) hello(ctx context.Context, conn carrier.Conn) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.config.OpenTimeout, errNoWelcome)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Abort(0, "") })
	defer stop()
	o := opening{kind: kindHello}
	stream, err := conn.OpenStream(ctx, &kcp.StreamOptions{Priority: o.priority()})
	if err != nil {
		return err
	}
	h := hello{User: c.config.User, Password: c.config.Password}
	for _, r := range c.config.Remotes {
		if r.Reverse || !r.Socks {
			h.Wants = append(h.Wants, r.opening().rule())
		}
	}
	var w welcome
	if _, err = stream.Write(o.append(nil)); err == nil {
		err = writeJSON(stream, h)
	}
	if err == nil {
		err = readJSON(stream, &w)
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	case w.Code != "":
		return &HelloError{string(w.Code), w.Value}
	}
	return stream.Close()
}

// admit says what to dial for what the server has accepted: the target of the
// remote for which it listens, and nothing else.
func (s *clientSession) admit(o opening) (string, error) {
	s.reverseMu.Lock()
	r, ok := s.reverse[o.listener]
	s.reverseMu.Unlock()
	switch {
	case !ok:
		return "", refusal(codeForbidden)
	case r.Socks && (o.kind == kindReverseTCP || o.kind == kindReverseUDP):
		target, err := canonicalTarget(o.target)
		if err != nil {
			return "", refusal(codeMalformed)
		}
		return targetHere(target)
	case o.kind == kindReverseTCP && !r.UDP, o.kind == kindReverseUDP && r.UDP:
		return targetHere(r.Target)
	}
	return "", refusal(codeForbidden)
}

// remote returns the remote for which the server has accepted something.
func (s *clientSession) remote(o opening) string {
	s.reverseMu.Lock()
	defer s.reverseMu.Unlock()
	if r, ok := s.reverse[o.listener]; ok {
		return r.name()
	}
	return otherRemote
}

// targetHere is zoneHere with an error for the peer.
func targetHere(target string) (string, error) {
	here, err := zoneHere(target)
	if err != nil {
		return "", &dialError{codeUnreachable, err}
	}
	return here, nil
}

// maxListenWait is the longest wait before a client asks again for an address at which
// another one listens: that may have gone.
const maxListenWait = 2 * time.Second

// listenPause returns how long to wait after err before asking again, when it would be
// pause after other errors.
func listenPause(err error, pause time.Duration) time.Duration {
	if errors.Is(err, codeInUse) || errors.Is(err, codeTaken) {
		return min(pause, maxListenWait)
	}
	return pause
}

// backOff returns the waits between attempts, which double.
func (c *Client) backOff() *backoff.ExponentialBackOff {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval, wait.Multiplier = c.config.RetryAfter, c.config.MaxRetryAfter, 2
	return wait
}

// keepListening has the server listen for a remote, until ctx is done. If it cannot, as
// the address is in use, the client tries again.
func (s *clientSession) keepListening(ctx context.Context, r Remote) {
	wait := s.client.backOff()
	for {
		err := s.listenThere(ctx, r, wait.Reset)
		if ctx.Err() != nil || s.isLeaving() || s.conn.Err() != nil { // the next session listens
			return
		}
		pause := listenPause(err, wait.NextBackOff())
		level := slog.LevelWarn
		if s.client.listening[listened{s.way.server, r}].Load() > 0 {
			level = slog.LevelDebug // it does, for another session of this client
		}
		s.log.Log(ctx, level, "the server does not listen", "remote", r, "error", err, "retry", pause.Round(time.Millisecond))
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// listenThere has the server listen for a remote, and returns why it no longer does. It
// calls begun when the server does.
func (s *clientSession) listenThere(ctx context.Context, r Remote, begun func()) error {
	s.reverseMu.Lock() // until admit can know the stream
	stream, err := s.open(ctx, r.opening())
	if err == nil {
		s.reverse[stream.ID()] = r
	}
	s.reverseMu.Unlock()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = stream.Reset(uint64(codeGone)) })
	defer func() {
		stop()
		_ = stream.Reset(uint64(codeGone))
		s.release(stream)
		s.reverseMu.Lock()
		defer s.reverseMu.Unlock()
		if !s.isLeaving() { // what has been accepted there meanwhile is served
			delete(s.reverse, stream.ID())
		}
	}()
	if err := awaitOpen(stream); err != nil {
		return err
	}
	var port [2]byte
	if _, err := io.ReadFull(stream, port[:]); err != nil {
		return refused(err)
	}
	begun()
	count := s.client.listening[listened{s.way.server, r}]
	count.Add(1)
	defer count.Add(-1)
	n := binary.BigEndian.Uint16(port[:])
	s.log.Info("the server listens", "remote", r, "port", n)
	if f := s.client.config.Listening; f != nil {
		f(r, s.listeningAt(r, n))
	}
	if _, err = io.Copy(io.Discard, stream); err == nil {
		err = io.ErrUnexpectedEOF
	}
	return refused(err)
}

// listeningAt returns the address where the server listens for a remote.
func (s *clientSession) listeningAt(r Remote, port uint16) net.Addr {
	host, _, _ := net.SplitHostPort(r.Listen) // ParseRemote has looked at it
	return &remoteAddr{r.network(), net.JoinHostPort(host, strconv.Itoa(int(port)))}
}

// remoteAddr is an address at the server.
type remoteAddr struct{ network, address string }

func (a *remoteAddr) Network() string { return a.network }
func (a *remoteAddr) String() string  { return a.address }
