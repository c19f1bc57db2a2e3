package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"sync"
	"time"

	"github.com/arqnet/kcp"
)

// maxSessions is the most sessions of the server, including those that have not asked
// for anything yet.
const maxSessions = 256

// limits are what clients can cause at most.
type limits struct {
	size      int64         // of a file, in bytes
	transfers int           // at a time
	parts     int           // incomplete files
	keep      time.Duration // of an incomplete file, if there are too many
	request   time.Duration // until a session has asked for something
	idle      time.Duration // between bytes of a file
}

func defaultLimits() limits {
	return limits{
		size: 16 << 30, transfers: 16,
		parts: 64, keep: 7 * 24 * time.Hour,
		request: 10 * time.Second, idle: time.Minute,
	}
}

// server receives files.
type server struct {
	limits limits
	owners *owners
	store  *store
	log    *log.Logger
}

func newServer(root *os.Root, l limits, log *log.Logger) *server {
	return &server{l, newOwners(l.transfers), &store{root: root, parts: l.parts, keep: l.keep}, log}
}

// run serves the sessions of l until ctx is done or l is closed. Clients whose
// transfers are not complete dial again.
func (s *server) run(ctx context.Context, l *kcp.Listener) error {
	defer l.Endpoint().Close()
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

// serve serves a session, and tells the client how it ended.
func (s *server) serve(conn *kcp.Conn) {
	err := s.receive(conn)
	var refused *refusal
	if err == nil {
		_ = conn.Close() // a client that does not get the answer asks again
	} else if errors.As(err, &refused) {
		s.log.Printf("%s: refused: %s", conn.RemoteAddr(), refused)
		_ = conn.CloseWithError(refused.code, refused.text)
	} else {
		s.log.Printf("%s: %s", conn.RemoteAddr(), err)
		_ = conn.Abort() // fails only if it has ended
	}
}

// receive does what a session asks for.
func (s *server) receive(conn *kcp.Conn) error {
	_ = conn.SetReadDeadline(time.Now().Add(s.limits.request)) // Read fails if this does
	r, err := readRequest(conn)
	if err != nil {
		return err
	}
	if err := r.check(s.limits); err != nil {
		return err
	}
	release, err := s.owners.take(r.id(), conn)
	if err != nil {
		return err
	}
	defer release()
	err = s.write(conn, r)
	if failed := (*fs.PathError)(nil); errors.As(err, &failed) {
		s.log.Printf("%q: %s", r.name, err)
		return &refusal{codeBusy, "the server cannot store the file"}
	}
	return err
}

// write writes the rest of a file, and sends the answers. The session owns the
// transfer meanwhile.
func (s *server) write(conn *kcp.Conn, r *request) error {
	part, err := s.store.open(r)
	if err != nil {
		return err
	}
	defer part.Close()
	if _, err := conn.Write(binary.BigEndian.AppendUint64(nil, uint64(part.size))); err != nil {
		return err
	}
	s.log.Printf("%q from %s: goes on at %d of %d bytes", r.name, conn.RemoteAddr(), part.size, r.size)
	n, err := io.CopyN(part, &impatient{conn, s.limits.idle}, r.size-part.size)
	if err != nil {
		return fmt.Errorf("%q stopped at %d bytes: %w", r.name, part.size+n, err)
	}
	if err := s.verify(conn, r, part); err != nil {
		return err
	}
	s.log.Printf("%q from %s: complete, sha256 %x", r.name, conn.RemoteAddr(), r.sum)
	_, err = conn.Write(r.sum[:])
	return err
}

// verify compares what is on the disk with what the client has announced, and gives
// the file its name. It reads all of the file, as most of it may come from earlier
// sessions, or from an earlier process.
func (s *server) verify(conn *kcp.Conn, r *request, p *part) error {
	if _, err := p.Seek(0, io.SeekStart); err != nil {
		return err
	}
	sum, err := sumOf(p, conn.Done(), nil)
	if err != nil {
		return err
	}
	switch {
	case p.named && sum == r.sum:
		return nil
	case p.named:
		return &refusal{codeRefused, "the server has another file of that name"}
	case sum == r.sum:
		err = p.Sync()
	}
	// Windows neither renames nor deletes a file that is open.
	if err := errors.Join(err, p.Close()); err != nil {
		return err
	}
	if sum != r.sum {
		return errors.Join(&refusal{codeDamaged, "the server's copy differs, and is deleted: send it again"}, s.store.discard(r))
	}
	return s.store.finish(r)
}

// impatient reads from a session that has to send something now and then.
type impatient struct {
	conn *kcp.Conn
	idle time.Duration
}

func (r *impatient) Read(b []byte) (int, error) {
	if err := r.conn.SetReadDeadline(time.Now().Add(r.idle)); err != nil {
		return 0, err
	}
	return r.conn.Read(b)
}
