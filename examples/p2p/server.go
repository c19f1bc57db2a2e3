package main

import (
	"context"
	"encoding/base64"
	"errors"
	"log"
	"net/netip"
	"sync"
	"time"

	"github.com/arqnet/kcp"
)

// limits are what clients of the rendezvous server can cause at most.
type limits struct {
	sessions   int           // at a time
	perAddress int           // sessions of one address
	join       time.Duration // until a session has said which room it wants
	wait       time.Duration // for the peer
}

func defaultLimits() limits {
	return limits{sessions: 4096, perAddress: 64, join: 10 * time.Second, wait: 15 * time.Minute}
}

// config returns the settings of the server's sessions.
func (l limits) config() *kcp.Config {
	return &kcp.Config{
		MaxSessions: l.sessions, MaxSessionsPerAddress: l.perAddress, PeerTimeout: peerTimeout, KeepAlive: keepAlive,
		MaxStreams: -1, ReceiveWindow: 128, WriteBuffer: 1 << 16, MaxBuffered: 64 << 20,
		LegacyPeers: kcp.LegacyRefuse,
	}
}

// server introduces ends that know the same code to each other. It sees addresses, rooms
// and fingerprints, and no file.
type server struct {
	limits limits
	stun   []uint16 // ports that answer STUN besides
	log    *log.Logger

	mu      sync.Mutex
	waiting map[seat]*guest // at most one for each session
}

// seat is a place in a room.
type seat struct{ room, role string }

// guest is a session that waits for its peer.
type guest struct {
	conn     *kcp.Conn
	card     []string
	met      chan match    // has room for one
	replaced chan struct{} // closed when the same end has joined once more
}

// newServer returns a server, which logs whom it has introduced. It logs no errors, as
// anybody could fill the log with them.
func newServer(l limits, stun []uint16, log *log.Logger) *server {
	return &server{limits: l, stun: stun, log: log, waiting: make(map[seat]*guest)}
}

// run serves the sessions of l until ctx is done or l is closed.
func (s *server) run(ctx context.Context, l *kcp.Listener) error {
	var sessions sync.WaitGroup
	for {
		conn, err := l.AcceptKCP(ctx)
		if err != nil {
			_ = l.Endpoint().Close() // ends the sessions; it fails only if it was closed
			sessions.Wait()
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		sessions.Go(func() { s.serve(conn) })
	}
}

// refusal is the reason with which an end closes a session.
type refusal struct {
	code uint64
	text string
}

func (r *refusal) Error() string { return r.text }

// end closes a session, with a reason if err is a refusal.
func end(conn *kcp.Conn, err error) {
	var refused *refusal
	switch {
	case err == nil:
		_ = conn.Close() // if the peer is gone, there is nobody to tell
	case errors.As(err, &refused):
		_ = conn.CloseWithError(refused.code, refused.text)
	default:
		_ = conn.Abort()
	}
}

// serve serves a session.
func (s *server) serve(conn *kcp.Conn) {
	end(conn, s.introduce(conn))
}

// introduce tells the client of a session who its peer is, once that is there.
func (s *server) introduce(conn *kcp.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(s.limits.join)); err != nil {
		return err
	}
	if err := writeJSON(conn, greeting{addrPort(conn.RemoteAddr()), s.stun}); err != nil {
		return err
	}
	var j join
	if err := readJSON(conn, &j); err != nil {
		return err
	}
	room, err := base64.RawURLEncoding.DecodeString(j.Room)
	if err != nil || len(room) != roomSize || j.Role != roleSend && j.Role != roleGet {
		return &refusal{codeRefused, "not a request of this protocol"}
	}
	me := &guest{conn: conn, card: j.Card, met: make(chan match, 1), replaced: make(chan struct{})}
	leave := s.take(seat{j.Room, j.Role}, me)
	defer leave()
	timer := time.NewTimer(s.limits.wait)
	defer timer.Stop()
	select {
	case m := <-me.met:
		_ = conn.SetDeadline(time.Now().Add(s.limits.join)) // Write fails if this does
		return writeJSON(conn, m)
	case <-me.replaced:
		return &refusal{codeReplaced, "the same end has joined once more"}
	case <-timer.C:
		return &refusal{codeTooLate, "nobody came"}
	case <-conn.Done():
		return conn.Err()
	}
}

// take gives a guest its seat, and introduces it to the guest on the other seat of the
// room if there is one. Both leave the room then. The guest that had the seat is gone:
// its program runs once more.
func (s *server) take(at seat, me *guest) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if before := s.waiting[at]; before != nil {
		close(before.replaced)
		delete(s.waiting, at)
	}
	opposite := seat{at.room, other(at.role)}
	if peer := s.waiting[opposite]; peer != nil {
		delete(s.waiting, opposite)
		peer.met <- match{addrPort(me.conn.RemoteAddr()), me.card}
		me.met <- match{addrPort(peer.conn.RemoteAddr()), peer.card}
		s.log.Printf("introduced %s and %s", me.conn.RemoteAddr(), peer.conn.RemoteAddr())
		return func() {}
	}
	s.waiting[at] = me
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.waiting[at] == me {
			delete(s.waiting, at)
		}
	}
}

// here returns where clients that see the server at an address find its further ports.
func here(server netip.AddrPort, ports []uint16) []netip.AddrPort {
	at := []netip.AddrPort{server}
	for _, p := range ports[:min(len(ports), maxPorts)] {
		at = append(at, netip.AddrPortFrom(server.Addr(), p))
	}
	return at
}

// maxPorts is the most further ports of a server that a client asks.
const maxPorts = 4
