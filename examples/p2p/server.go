package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"log"
	"net/netip"
	"sync"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/identity"
)

// The protocol of the rendezvous, in JSON:
//
//	server: greeting
//	client: join
//	server: match, as soon as the peer is there, and the end of the session
type (
	greeting struct {
		Observed netip.AddrPort // where the server sees the client
	}
	join struct {
		Room string
		Role string
		Card *sealed
	}
	match struct {
		Observed netip.AddrPort // where the server sees the peer
		Card     *sealed        // of the peer, as it has sent it
	}
)

// maxJSON is the most that a message has, in bytes.
const maxJSON = 4096

// What a client of the server can cause at most.
const (
	joinTimeout = 10 * time.Second // until it has said which room it wants
	waitTimeout = 15 * time.Minute // for the peer
)

// Codes of the ends of sessions (kcp.PeerCloseError.Code).
const (
	codeRefused = iota + 1 // the same request would be refused again
	codeTooLate            // nobody came
)

// server introduces ends that know the same code to each other. It sees addresses, rooms
// and fingerprints, and nothing that is sent.
type server struct {
	log *log.Logger

	mu      sync.Mutex
	waiting map[string]*guest // by room; at most one for each session
}

// guest is a session that waits for its peer.
type guest struct {
	join
	at  netip.AddrPort
	met chan match // has room for one
}

// serverConfig returns the settings of the server's sessions. Its key is a new one each
// time: what has to be authentic is so under the code.
func serverConfig() (*kcp.Config, error) {
	cert, err := identity.New("p2p")
	if err != nil {
		return nil, err
	}
	return &kcp.Config{
		TLS:         &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{protoMeet}},
		Limits:      kcp.Limits{MaxSessions: 4096, MaxSessionsPerAddress: 64, MaxStreams: -1, MaxBuffered: 64 << 20},
		PeerTimeout: peerTimeout, KeepAlive: keepAlive,
	}, nil
}

// run serves the sessions of l until ctx is done.
func (s *server) run(ctx context.Context, l *kcp.Listener) error {
	defer l.Endpoint().Close() // ends the sessions
	for {
		conn, err := l.AcceptKCP(ctx)
		if ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
		go s.serve(conn)
	}
}

// serve tells the client of a session who its peer is, once that is there.
func (s *server) serve(conn *kcp.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(joinTimeout)) // the next call fails if this does
	g := &guest{at: addrPort(conn.RemoteAddr()), met: make(chan match, 1)}
	if json.NewEncoder(conn).Encode(greeting{g.at}) != nil {
		return
	}
	err := json.NewDecoder(io.LimitReader(conn, maxJSON)).Decode(&g.join)
	if err != nil || g.Room == "" || g.Role != roleSend && g.Role != roleGet {
		_ = conn.CloseWithError(codeRefused, "not a request of this protocol")
		return
	}
	defer s.take(g)()
	timer := time.NewTimer(waitTimeout)
	defer timer.Stop()
	select {
	case m := <-g.met:
		_ = conn.SetDeadline(time.Now().Add(joinTimeout))
		_ = json.NewEncoder(conn).Encode(m)
	case <-timer.C:
		_ = conn.CloseWithError(codeTooLate, "nobody came")
	case <-conn.Done():
	}
}

// take introduces a guest to the one that waits in its room, or lets it wait. One of the
// same role gives up its place: its program runs once more.
func (s *server) take(me *guest) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if peer := s.waiting[me.Room]; peer != nil && peer.Role != me.Role {
		delete(s.waiting, me.Room)
		peer.met <- match{me.at, me.Card}
		me.met <- match{peer.at, peer.Card}
		s.log.Printf("introduced %s and %s", me.at, peer.at)
		return func() {}
	}
	s.waiting[me.Room] = me
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.waiting[me.Room] == me {
			delete(s.waiting, me.Room)
		}
	}
}
