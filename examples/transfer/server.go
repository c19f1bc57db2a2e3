package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/arqnet/kcp"
)

// What clients can cause at most, besides the size of a file.
const (
	maxTransfers = 16          // at a time
	maxParts     = 64          // incomplete files
	maxIdle      = time.Minute // between bytes
)

// partsDir has the files that are not complete. No request can name it.
const partsDir = ".parts"

// server receives files into a directory.
type server struct {
	root   *os.Root
	most   int64 // bytes of a file
	owners *owners
	log    *log.Logger
}

func newServer(root *os.Root, most int64, log *log.Logger) *server {
	return &server{root, most, newOwners(maxTransfers), log}
}

// refusal is the reason with which the server ends a session.
type refusal struct {
	code uint64
	text string
}

func (r *refusal) Error() string { return r.text }

// run serves the sessions of l until ctx is done or l is closed. Clients whose transfers
// are not complete dial again.
func (s *server) run(ctx context.Context, l *kcp.Listener) error {
	var sessions sync.WaitGroup
	defer sessions.Wait()
	defer l.Endpoint().Close() // ends the sessions
	for {
		conn, err := l.AcceptKCP(ctx)
		if ctx.Err() != nil {
			return nil
		} else if err != nil {
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
		return
	}
	s.log.Printf("%s: %v", conn.RemoteAddr(), err)
	if errors.As(err, &refused) {
		_ = conn.CloseWithError(refused.code, refused.text)
	} else {
		_ = conn.Abort(0, "")
	}
}

// receive does what a session asks for.
func (s *server) receive(conn *kcp.Conn) error {
	in := bufio.NewReaderSize(impatient{conn}, maxRequest)
	line, err := in.ReadSlice('\n') // which is no longer than that
	if err != nil {
		return err
	}
	var r request
	if json.Unmarshal(line, &r) != nil || len(r.Sum) != sha256.Size || r.Size < 0 || r.Size > s.most || !plainName(r.Name) {
		return &refusal{codeRefused, "the server takes no such file"}
	}
	id := sha256.Sum256(line)
	part := path.Join(partsDir, hex.EncodeToString(id[:]))
	release, err := s.owners.take(part, conn)
	if err != nil {
		return err
	}
	defer release()
	f, at, err := s.open(&r, part)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := binary.Write(conn, binary.BigEndian, at); err != nil {
		return err
	}
	s.log.Printf("%q from %s: goes on at %d of %d bytes", r.Name, conn.RemoteAddr(), at, r.Size)
	if n, err := io.CopyN(f, in, r.Size-at); err != nil {
		return fmt.Errorf("%q stopped at %d bytes: %w", r.Name, at+n, err)
	}
	if err := s.finish(f, &r, part); err != nil {
		return err
	}
	s.log.Printf("%q: complete, SHA-256 %x", r.Name, r.Sum)
	_, err = conn.Write(r.Sum)
	return err
}

// open opens the file of a transfer, and returns how much of it there is.
func (s *server) open(r *request, part string) (f *os.File, at int64, err error) {
	if f, err = s.root.Open(r.Name); errors.Is(err, fs.ErrNotExist) {
		f, err = s.openPart(part)
	}
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && (info.Size() > r.Size || !info.Mode().IsRegular()) {
		err = &refusal{codeRefused, "the server has another file of that name"}
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// openPart opens an incomplete file, and has all of it on the disk: what a process has
// written before it was killed may be in memory alone. Somebody has to delete those that
// nobody continues.
func (s *server) openPart(part string) (*os.File, error) {
	if err := s.root.Mkdir(partsDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	parts, err := fs.ReadDir(s.root.FS(), partsDir)
	if err != nil {
		return nil, err
	}
	if _, err := s.root.Stat(part); err != nil && len(parts) >= maxParts {
		return nil, &refusal{codeBusy, "too many incomplete files"}
	}
	f, err := s.root.OpenFile(part, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err == nil {
		err = f.Sync()
	}
	return f, err
}

// finish compares what is on the disk with what the client has announced, and gives the
// file its name. It reads all of it, as most may come from earlier sessions.
func (s *server) finish(f *os.File, r *request, part string) error {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	hash := sha256.New()
	_, err := io.Copy(hash, f)
	_, missing := s.root.Lstat(r.Name)
	if missing != nil && err == nil {
		err = f.Sync()
	}
	// Windows neither renames nor deletes a file that is open.
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	same := bytes.Equal(hash.Sum(nil), r.Sum)
	switch {
	case missing == nil && same:
		return nil
	case missing == nil:
		return &refusal{codeRefused, "the server has another file of that name"}
	case !same:
		return errors.Join(&refusal{codeRefused, "the server's copy differs, and is deleted"}, s.root.Remove(part))
	}
	return s.root.Rename(part, r.Name)
}

// plainName reports whether a server takes a file of that name, on any system. Whoever
// lists the files prints it: what steers terminals is in none.
func plainName(name string) bool {
	return name != "" && len(name) <= 200 && name[0] != '.' && !strings.ContainsAny(name, "/\\:") &&
		filepath.IsLocal(name) && !strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) })
}

// impatient reads from a session that has to send something now and then.
type impatient struct{ *kcp.Conn }

func (r impatient) Read(b []byte) (int, error) {
	if err := r.SetReadDeadline(time.Now().Add(maxIdle)); err != nil {
		return 0, err
	}
	return r.Conn.Read(b)
}
