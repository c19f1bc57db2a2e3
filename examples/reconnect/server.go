package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"strconv"
	"strings"
	"sync"

	"github.com/arqnet/kcp"
)

// Codes with which the server ends sessions.
const (
	codeTakenOver = 1 // another session has the client's id: do not dial again
	codeBusy      = 2 // try again later
)

const (
	maxClients = 1024 // that the server remembers: it forgets none
	maxID      = 64   // bytes
)

// server prints what clients say. A client begins a session with a line that says who it
// is. Then each line is a number, and a text; the server answers with the number.
type server struct {
	log *log.Logger

	mu      sync.Mutex // guards the fields below, and those of the inboxes
	inboxes map[string]*inbox
}

// inbox is what the server knows of a client.
type inbox struct {
	conn *kcp.Conn // its latest session
	last uint64    // number of the latest line
}

// run serves the sessions of l until ctx is done, or l is closed.
func (s *server) run(ctx context.Context, l *kcp.Listener) error {
	defer l.Endpoint().Close() // ends the sessions
	for {
		conn, err := l.AcceptKCP(ctx)
		if err != nil {
			return err
		}
		go s.serve(conn)
	}
}

// serve serves a session.
func (s *server) serve(conn *kcp.Conn) {
	defer conn.Close()
	lines := bufio.NewScanner(conn) // of 64 KiB at most
	if !lines.Scan() || len(lines.Text()) > maxID {
		return
	}
	id := lines.Text()
	in := s.take(id, conn)
	if in == nil {
		_ = conn.CloseWithError(codeBusy, "too many clients")
		return
	}
	for lines.Scan() {
		number, text, _ := strings.Cut(lines.Text(), " ")
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil || !s.store(in, conn, n, fmt.Sprintf("%.20q: %q", id, text)) {
			_ = conn.Abort(0, "")
			return
		}
		if _, err := fmt.Fprintln(conn, n); err != nil {
			return
		}
	}
}

// take makes a session the client's. The one before, which may live on here until its
// PeerTimeout, stores nothing after that: the client sends it again, in this one.
func (s *server) take(id string, conn *kcp.Conn) *inbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.inboxes[id]
	if in == nil {
		if len(s.inboxes) == maxClients {
			return nil
		}
		in = new(inbox)
		s.inboxes[id] = in
	} else if in.conn.Err() == nil {
		_ = in.conn.Abort(codeTakenOver, "the client has another session")
	}
	in.conn = conn
	return in
}

// store stores a line, unless it is there, and reports whether the session still may.
func (s *server) store(in *inbox, conn *kcp.Conn, n uint64, text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in.conn == conn && n > in.last {
		in.last = n
		s.log.Print(text) // a server that must not lose it writes it to a file here
	}
	return in.conn == conn
}
