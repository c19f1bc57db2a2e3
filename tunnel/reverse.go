package tunnel

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

// claims are the addresses on which a server listens for clients.
type claims struct {
	mu     sync.Mutex
	all    map[claimKey]*claim
	number uint64 // of the last claim of port 0
}

// claimKey is what one claim at most is for.
type claimKey struct {
	User    string
	Network string
	Address string
	Number  uint64 // of claims of port 0, for which the system chooses another each time
}

// claim is an address on which a server listens for a client. The first fields do not
// change, except for inherited before there is a socket.
type claim struct {
	key    claimKey
	of     *serverSession
	asked  opening
	end    context.CancelCauseFunc // ends it, with the refusal that the client gets
	closed chan struct{}           // closed when nobody listens there any more
	// inherited is a copy of the socket of the claim before, or nil. So what waits in it
	// is not lost, and nobody else comes in between.
	inherited *os.File

	socket socket // that listens; nil: not yet; guarded by claims.mu
}

// listens says which socket belongs to the claim.
func (s *claims) listens(one *claim, with socket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one.socket = with
}

// copyOf returns a copy of the socket of a claim, or nil.
func (s *claims) copyOf(one *claim) *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one.socket == nil {
		return nil
	}
	file, err := one.socket.File()
	if err != nil {
		return nil // Windows has none; another one is opened
	}
	return file
}

// listen returns the socket of the claim.
func (c *claim) listen(ctx context.Context) (socket, error) {
	file := c.inherited
	if file == nil {
		return listenOn(ctx, c.key.Network, c.asked.target)
	}
	defer file.Close()
	if c.key.Network == "udp" {
		return socketOf(net.FilePacketConn(file))
	}
	return socketOf(net.FileListener(file))
}

// aliveWait is how long a client may take to answer, while another one of its user waits
// for its address.
const aliveWait = 3 * time.Second

// answers reports whether the client answers.
func (c *serverSession) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, c.server.config.aliveWait)
	defer cancel()
	_, err := c.conn.Ping(ctx)
	return err == nil
}

// claim returns the claim of what the client asks for. A session of the same user that
// has begun earlier loses it, as does a later one that does not answer: the client was
// begun again, or has another way to this server. claim waits until that has stopped
// listening. end ends the claim; the caller has to call release. A session over another
// transport, whose client may be this one, goes on without the claim.
func (c *serverSession) claim(ctx context.Context, asked opening, end context.CancelCauseFunc) (*claim, error) {
	s := &c.server.claims
	network := "tcp"
	if asked.kind == kindListenUDP {
		network = "udp"
	}
	mine := &claim{
		key: claimKey{User: c.identity.name, Network: network, Address: asked.target},
		of:  c, asked: asked, end: end, closed: make(chan struct{}),
	}
	for {
		before := s.take(mine)
		if before == nil {
			if mine.key.Number == 0 {
				mine.inherit(c.server.before.ask(request{What: wantRelease, Key: mine.key}))
			}
			return mine, nil
		}
		if before.of == c || before.of.number > c.number && before.of.answers(ctx) {
			mine.disown()
			return nil, refusal(codeInUse)
		}
		c.log.Info("takes over", "kind", asked.kind, "address", asked.target, "from", before.of.conn.RemoteAddr())
		mine.inherit(s.copyOf(before))
		before.end(codeTaken)
		if before.of.conn.Transport() == c.conn.Transport() { // else UDP may pass again
			c.serving.Go(func() { before.of.endIfDead(ctx) })
		}
		select {
		case <-before.closed:
		case <-ctx.Done():
			mine.disown()
			return nil, refusal(codeShutdown)
		}
	}
}

// inherit has the claim use a socket, unless it is nil.
func (c *claim) inherit(socket *os.File) {
	if socket != nil {
		c.disown()
		c.inherited = socket
	}
}

// disown closes the inherited socket, if there is one.
func (c *claim) disown() {
	if c.inherited != nil {
		_ = c.inherited.Close()
		c.inherited = nil
	}
}

// endIfDead ends the session if the client does not answer, so that its connections do
// not wait for it.
func (c *serverSession) endIfDead(ctx context.Context) {
	if !c.answers(ctx) && ctx.Err() == nil {
		_ = c.conn.SetLinger(c.shutdown)
		c.close(closeReplaced, "another session has taken over")
	}
}

// take adds a claim, or returns the one that is in its place.
func (s *claims) take(mine *claim) (before *claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if strings.HasSuffix(mine.key.Address, ":0") {
		s.number++
		mine.key.Number = s.number
	}
	if before = s.all[mine.key]; before != nil {
		return before
	}
	if s.all == nil {
		s.all = make(map[claimKey]*claim)
	}
	s.all[mine.key] = mine
	return nil
}

// release forgets a claim: nobody listens there any more.
func (s *claims) release(mine *claim) {
	s.mu.Lock()
	delete(s.all, mine.key)
	s.mu.Unlock()
	close(mine.closed)
}

// revoke ends the claims that the users may no longer have.
func (s *claims) revoke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.all {
		if !one.allowed() {
			one.end(codeForbidden)
		}
	}
}

// allowed reports whether the user may have what it asks for.
func (c *claim) allowed() bool {
	user := c.of.user()
	return user != nil && user.allows(c.asked)
}

// endOf returns the refusal with which a claim has ended; its context is done.
func endOf(ctx context.Context) refusal {
	var why refusal
	if errors.As(context.Cause(ctx), &why) {
		return why
	}
	return codeShutdown
}
