package main

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"log"
	"os"
	"sync"
	"time"

	"github.com/arqnet/kcp"
)

const (
	helloWait  = 10 * time.Second // for the id of a client
	maxClients = 10_000           // whose messages there are
	filesDir   = "files"          // of what clients may fetch
)

// server stores the messages of each client, and has files. What it has told a client
// that it has is in a file, so it knows that after a restart too.
type server struct {
	root *os.Root
	log  *log.Logger

	mu      sync.Mutex
	inboxes map[[idSize]byte]*inbox
}

func newServer(root *os.Root, log *log.Logger) *server {
	return &server{root: root, log: log, inboxes: make(map[[idSize]byte]*inbox)}
}

// run serves clients until the listener is closed. When ctx is done it closes that, and
// all sessions in order.
func (s *server) run(ctx context.Context, l *kcp.Listener) error {
	defer context.AfterFunc(ctx, func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = l.Shutdown(ending)
	})()
	var sessions sync.WaitGroup
	defer sessions.Wait()
	for {
		conn, err := l.AcceptKCP(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
		sessions.Go(func() {
			defer conn.Close()
			if err := s.serve(conn); err != nil && !errors.Is(err, io.EOF) {
				s.log.Printf("%v: %v", conn.RemoteAddr(), err)
			}
		})
	}
}

// serve serves a session.
func (s *server) serve(conn *kcp.Conn) error {
	_ = conn.SetReadDeadline(time.Now().Add(helloWait))
	var id [idSize]byte
	if _, err := io.ReadFull(conn, id[:]); err != nil {
		_ = conn.Abort() // the network may have failed: the client dials again
		return err
	}
	_ = conn.SetReadDeadline(time.Time{})
	in, err := s.inbox(id)
	if err != nil {
		_ = conn.AbortWithError(codeBusy, "too many clients, or no disk")
		return err
	}
	stored, err := in.take(conn)
	if err != nil {
		return err
	}
	var files sync.WaitGroup
	defer files.Wait()
	defer conn.Abort() // ends those, too
	files.Go(func() { s.serveFiles(conn) })
	for {
		if err := writeNumbers(conn, stored); err != nil {
			return err
		}
		m, err := readMessage(conn, maxMessage)
		if err != nil {
			return err
		}
		if stored, err = in.store(conn, m); err != nil {
			return err
		}
	}
}

// inbox returns the inbox of a client.
func (s *server) inbox(id [idSize]byte) (*inbox, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in, ok := s.inboxes[id]
	if ok {
		return in, nil
	}
	if len(s.inboxes) >= maxClients {
		return nil, errors.New("too many clients")
	}
	f, err := s.root.OpenFile(hex.EncodeToString(id[:])+".log", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	in = &inbox{file: f}
	if err := in.count(); err != nil {
		_ = f.Close()
		return nil, err
	}
	s.inboxes[id] = in
	return in, nil
}

// serveFiles answers requests for files until the session ends.
func (s *server) serveFiles(conn *kcp.Conn) {
	for {
		stream, err := conn.AcceptStream(context.Background())
		if err != nil {
			return
		}
		go func() {
			if err := s.serveFile(stream); err != nil {
				_ = stream.Reset(codeNoFile)
			}
		}()
	}
}

// serveFile answers a request.
func (s *server) serveFile(stream *kcp.Stream) error {
	name, err := readMessage(stream, maxName)
	if err != nil {
		return err
	}
	var version, have uint64
	if err := readNumbers(stream, &version, &have); err != nil {
		return err
	}
	files, err := s.root.OpenRoot(filesDir)
	if err != nil {
		return err
	}
	defer files.Close()
	f, err := files.Open(string(name))
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("not a file")
	}
	now, from := uint64(info.ModTime().UnixNano()), uint64(0)
	if now == version && have <= uint64(info.Size()) {
		from = have
	}
	if err := writeNumbers(stream, now, uint64(info.Size()), from); err != nil {
		return err
	}
	if _, err := io.Copy(stream, io.NewSectionReader(f, int64(from), info.Size()-int64(from))); err != nil {
		return err
	}
	return stream.Close()
}

// inbox is the messages of a client.
type inbox struct {
	mu     sync.Mutex
	conn   *kcp.Conn // the latest session of the client
	file   *os.File  // what writeMessage has written, one after the other
	size   int64     // of the messages that are whole
	stored uint64    // how many these are
}

// count finds out what is stored. What is behind the last whole message was being written
// when the process was killed.
func (in *inbox) count() error {
	for {
		m, err := readMessage(in.file, maxMessage)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return in.file.Truncate(in.size)
		}
		if err != nil {
			return err
		}
		in.size += 4 + int64(len(m))
		in.stored++
	}
}

// take makes a session the client's, and returns how many messages there are. The one
// before stores nothing after that: the client sends it again, in this one.
func (in *inbox) take(conn *kcp.Conn) (stored uint64, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.conn != nil && in.conn.Err() == nil {
		_ = in.conn.AbortWithError(codeTakenOver, "the client has another session")
	}
	in.conn = conn
	return in.stored, conn.Err()
}

var errTakenOver = errors.New("the client has another session")

// store stores a message of a session, and returns how many there are. A crash of the
// process loses none, one of the machine may: Sync would not.
func (in *inbox) store(conn *kcp.Conn, m []byte) (stored uint64, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.conn != conn {
		return 0, errTakenOver
	}
	w := io.NewOffsetWriter(in.file, in.size)
	if err := writeMessage(w, m); err != nil {
		return 0, err
	}
	in.size += 4 + int64(len(m))
	in.stored++
	return in.stored, nil
}
