package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/tunnel/internal/carrier"
)

// clientIdentity is who a client has shown to be.
type clientIdentity struct {
	name        string
	password    digest
	hash        string // of bcrypt, that the password has; empty: the user has none
	certificate bool   // instead of the password
}

// among returns the user of the identity; nil: there is none, or none any more.
func (i *clientIdentity) among(users *Users) *user {
	switch {
	case i.certificate:
		return users.withCertificate(i.name)
	case i.hash != "":
		return users.withHash(i.name, i.hash)
	}
	return users.withPassword(i.name, i.password)
}

// turnedAway is why a client is not let in.
type turnedAway struct {
	welcome
	user string // that the client has named, for the log
}

// loggedSize is how many bytes of what a stranger has said are logged.
const loggedSize = 128

// shortened returns the beginning of s.
func shortened(s string) string {
	if len(s) > loggedSize {
		return s[:loggedSize] + "..."
	}
	return s
}

func (t *turnedAway) Error() string {
	text := (&HelloError{Code: string(t.Code), Value: shortened(t.Value)}).Error()
	if t.Code == helloVersion {
		text = "the client speaks another version of the protocol than " + t.Value
	}
	if t.user != "" {
		text = fmt.Sprintf("user %q: %s", shortened(t.user), text)
	}
	return text
}

// welcome takes the hello of a client, and answers it. If there is an error, the
// session has ended.
func (s *Server) welcome(ctx context.Context, conn carrier.Conn) (*clientIdentity, error) {
	limited, cancel := context.WithTimeout(ctx, openDeadline)
	defer cancel()
	stop := context.AfterFunc(limited, func() { _ = conn.Abort(0, "") })
	defer stop()
	stream, err := conn.AcceptStream(limited)
	if err != nil {
		_ = conn.Abort(0, "")
		return nil, fmt.Errorf("no hello: %w", err)
	}
	expected := expectNothing(limited, conn)
	who, err := s.examine(limited, conn, stream)
	var away *turnedAway
	if errors.As(err, &away) {
		defer expected()
	} else {
		expected()
	}
	switch {
	case err == nil:
		err = writeJSON(stream, welcome{})
	case away != nil:
		s.turnAway(limited, conn, stream, away)
		return nil, err
	}
	if err != nil {
		_ = conn.Abort(0, "")
		return nil, fmt.Errorf("no hello: %w", err)
	}
	if !stop() {
		return nil, errors.New("no hello in time")
	}
	_ = stream.Close()
	return who, nil
}

// readHello reads the first stream of a client. Its errors are of type refusal, or errors
// of r.
func readHello(r io.Reader) (h hello, err error) {
	o, err := readOpening(r)
	switch {
	case err != nil:
		return h, err
	case o.kind != kindHello:
		return h, refusal(codeMalformed)
	}
	return h, readJSON(r, &h)
}

// examine reads a hello and says whose it is.
func (s *Server) examine(ctx context.Context, conn carrier.Conn, stream carrier.Stream) (*clientIdentity, error) {
	away := func(code helloCode, user, value string) error {
		return &turnedAway{welcome{code, value}, user}
	}
	_ = stream.SetReadDeadline(time.Now().Add(openDeadline))
	h, err := readHello(stream)
	if errors.Is(err, refusal(codeVersion)) {
		return nil, away(helloVersion, "", fmt.Sprint(wireVersion))
	}
	if errors.Is(err, refusal(codeMalformed)) {
		return nil, away(helloMalformed, "", "")
	}
	if err != nil {
		return nil, err
	}
	who := &clientIdentity{name: h.User, password: digestOf(h.Password)}
	if h.User == "" && h.Password == "" {
		state := conn.TLS()
		if state == nil || len(state.VerifiedChains) == 0 {
			return nil, away(helloNoName, "", "")
		}
		who = &clientIdentity{name: state.PeerCertificates[0].Subject.CommonName, certificate: true}
	}
	if !s.guard.begin(conn.RemoteAddr(), who.name) {
		return nil, away(helloAttempts, who.name, guardWindow.String())
	}
	users := s.users.Load()
	if !who.certificate {
		if who.hash, err = s.verifier.prove(ctx, fair.BlockOfAddr(conn.RemoteAddr()), users, h.User, h.Password); err != nil {
			return nil, fmt.Errorf("the password was not verified in time: %w", err)
		}
	}
	user := who.among(users)
	switch {
	case user == nil && who.certificate:
		return nil, away(helloNoRules, who.name, who.name)
	case user == nil:
		return nil, away(helloWrong, who.name, "")
	}
	s.guard.succeed(conn.RemoteAddr(), who.name)
	for _, want := range h.Wants {
		if !user.matches(wantHere(want)) {
			return nil, away(helloForbidden, who.name, want)
		}
	}
	return who, nil
}

// turnAway tells a client why it is not let in. What was a guess is answered late. The
// log has it before the client does.
func (s *Server) turnAway(ctx context.Context, conn carrier.Conn, stream carrier.Stream, away *turnedAway) {
	if away.Code == helloWrong || away.Code == helloNoRules {
		select {
		case <-time.After(s.config.failureDelay):
		case <-ctx.Done():
		}
	}
	s.recordAway(conn.RemoteAddr(), away)
	_ = writeJSON(stream, away.welcome)
	_ = conn.SetLinger(s.config.shutdown)
	_ = conn.CloseWithError(closeRefused, string(away.Code))
}

// recordAway counts and logs that the client at addr is not let in.
func (s *Server) recordAway(addr net.Addr, err error) {
	name, left := s.tallies.away(err)
	if !left {
		s.warn("client turned away", "client", addr, text("user", shortened(name)), "error", err)
	}
}
