package tunnel

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"syscall"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/neterr"
)

// ClientFigures are what a client does, and has done since it began.
type ClientFigures struct {
	Servers []ServerFigures // in the order of their addresses
	Carried
}

// ServerFigures are a client's attempts to have a session with a server.
type ServerFigures struct {
	Server    string `json:"server"`
	Transport string `json:"transport"` // "udp" or "tcp"
	Connected bool   `json:"connected"` // there is a session
	Attempts  uint64 `json:"attempts"`
	// Failed is how many have failed, by cause: "no-answer", "resolve", "unreachable",
	// "certificate", "lost" of sessions that had begun, what HelloError.Code is, and "other".
	Failed map[string]uint64 `json:"failed"`
	// Cause is why the last attempt has failed, or the last session has ended; empty: it
	// has not.
	Cause string `json:"cause,omitempty"`
}

// attemptCauses are the keys of ServerFigures.Failed.
func attemptCauses() []string {
	return []string{
		"no-answer", "resolve", "unreachable", "certificate", string(helloVersion), string(helloMalformed), string(helloNoName),
		string(helloWrong), string(helloNoRules), string(helloForbidden), string(helloAttempts), "lost", "other",
	}
}

// errNoWelcome is why an attempt fails whose hello is not answered.
var errNoWelcome = errors.New("the server does not answer the hello")

// attemptCause returns why an attempt has failed, or a session was lost.
func attemptCause(err error, lost bool) string {
	var hello *HelloError
	var dns *net.DNSError
	var handshake *kcp.HandshakeError
	var unanswered *kcp.NoAnswerError
	switch {
	case lost:
		return "lost"
	case errors.As(err, &hello) && slices.Contains(attemptCauses(), hello.Code):
		return hello.Code
	case errors.As(err, &dns):
		return "resolve"
	case errors.As(err, &handshake):
		return "certificate"
	case errors.Is(err, kcp.ErrRefused), neterr.Is(err, syscall.ECONNREFUSED), neterr.Is(err, syscall.ENETUNREACH), neterr.Is(err, syscall.EHOSTUNREACH):
		return "unreachable"
	case errors.As(err, &unanswered), errors.Is(err, errNoWelcome), errors.Is(err, context.DeadlineExceeded):
		return "no-answer"
	}
	return "other"
}

// attemptTally is ServerFigures while they change.
type attemptTally struct {
	mu sync.Mutex
	f  ServerFigures
}

// attemptsOf is what attempts are counted by.
type attemptsOf struct{ server, transport string }

// transports returns what a client goes over: first what it prefers.
func (c *Client) transports() []string {
	if c.config.TCPPort < 0 {
		return []string{"udp"}
	}
	return []string{"udp", "tcp"}
}

// newAttemptTally returns the tally of a server over a transport.
func newAttemptTally(of attemptsOf) *attemptTally {
	a := &attemptTally{f: ServerFigures{Server: of.server, Transport: of.transport, Failed: make(map[string]uint64)}}
	for _, cause := range attemptCauses() {
		a.f.Failed[cause] = 0
	}
	return a
}

// end notes how an attempt, or a session, has ended; nil: the session has begun.
func (a *attemptTally) end(err error, lost bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.f.Cause = ""; err == nil {
		a.f.Attempts++
		return
	}
	if !lost {
		a.f.Attempts++
	}
	a.f.Cause = err.Error()
	a.f.Failed[attemptCause(err, lost)]++
}

// figures returns the counts.
func (a *attemptTally) figures(connected bool) ServerFigures {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.f
	f.Connected, f.Failed = connected, maps.Clone(f.Failed)
	return f
}

// Figures returns what the client does now and has done.
func (c *Client) Figures() ClientFigures {
	connected := make(map[attemptsOf]bool)
	var sessions []*session
	for _, s := range c.pool.all() {
		of := attemptsOf{s.way.server, s.transport()}
		connected[of] = connected[of] || s.conn.Err() == nil
		sessions = append(sessions, &s.session)
	}
	f := ClientFigures{Carried: c.dials.carriedBy(sessions)}
	f.Remotes = c.tally.appendRemotes(nil, c.config.User)
	for _, server := range slices.Compact(slices.Sorted(slices.Values(c.config.Servers))) {
		for _, transport := range c.transports() {
			of := attemptsOf{server, transport}
			f.Servers = append(f.Servers, c.attempts[of].figures(connected[of]))
		}
	}
	return f
}

// Peers returns the sessions that there are.
func (c *Client) Peers() (all []Peer) {
	for _, s := range c.pool.all() {
		all = append(all, s.peer(s.way.String(), s.isLeaving()))
	}
	return all
}

// attempt is connect over a transport, and counts how it goes.
func (c *Client) attempt(ctx context.Context, w way, transport string, welcomed func()) error {
	lost, of, dial := false, c.attempts[attemptsOf{w.server, transport}], c.dialUDP
	if transport == "tcp" {
		dial = c.dialTCP
	}
	err := explain(w.server, c.connect(ctx, w, dial, func() {
		lost = true
		of.end(nil, false)
		welcomed()
	}))
	if ctx.Err() == nil && !errors.Is(err, errLeaving) {
		of.end(err, lost)
	}
	return err
}
