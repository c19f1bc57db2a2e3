package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/arqnet/kcp"
)

// idle is how long a peer may send nothing that the other waits for.
const idle = time.Minute

var errDamaged = errors.New("the copy differs from the file, and was deleted")

// describeFile returns the offer for a file, which it reads.
func describeFile(f *os.File) (*offer, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", f.Name())
	}
	name := filepath.Base(f.Name())
	if !plainName(name) {
		return nil, fmt.Errorf("no receiver takes a file named %q", name)
	}
	hash := sha256.New()
	size, err := io.Copy(hash, f)
	return &offer{name, size, hash.Sum(nil)}, err
}

// sendFile sends what the peer does not have yet of the file in an offer. It returns nil
// when the peer has compared the SHA-256.
func sendFile(ctx context.Context, conn *kcp.Conn, f *os.File, o *offer, bar *progress) (err error) {
	defer func() { err = cause(ctx, err); end(conn, err) }()
	defer context.AfterFunc(ctx, func() { _ = conn.AbortWithError(codeInterrupted, "interrupted") })()
	if err := writeJSON(conn, o); err != nil {
		return err
	}
	var a answer
	if err := readSoon(conn, &a); err != nil {
		return err
	}
	if a.Have < 0 || a.Have > o.Size {
		return fmt.Errorf("the peer says that it has %d bytes", a.Have)
	}
	if _, err := f.Seek(a.Have, io.SeekStart); err != nil {
		return err
	}
	before := conn.Stats().BytesAcked // what Write has taken may wait here for long
	stop := bar.show("sent", o.Size, func() int64 { return a.Have + int64(conn.Stats().BytesAcked-before) })
	defer stop()
	if n, err := io.CopyN(conn, f, o.Size-a.Have); err == io.EOF {
		return fmt.Errorf("%s has become shorter: %d bytes", o.Name, a.Have+n)
	} else if err != nil {
		return err
	}
	if err := readJSON(conn, &a); err != nil { // the peer reads the whole file first
		return err
	}
	if a.Have != o.Size {
		return fmt.Errorf("the peer says that it has %d bytes of %d", a.Have, o.Size)
	}
	return nil
}

// readSoon reads a message that the peer sends at once.
func readSoon(conn *kcp.Conn, v any) error {
	if err := conn.SetReadDeadline(time.Now().Add(idle)); err != nil {
		return err
	}
	if err := readJSON(conn, v); err != nil {
		return err
	}
	return conn.SetReadDeadline(time.Time{})
}

// store is the directory of a receiver.
type store struct {
	root *os.Root
	most int64 // bytes of a file
}

// check refuses an offer that has no plain file name, or is too large.
func (s *store) check(o *offer) error {
	switch {
	case len(o.Sum) != sha256.Size:
		return &refusal{codeRefused, "not an offer of this protocol"}
	case o.Size < 0 || o.Size > s.most:
		return &refusal{codeRefused, fmt.Sprintf("the file has %d bytes, and the receiver takes %d", o.Size, s.most)}
	case !plainName(o.Name):
		return &refusal{codeRefused, fmt.Sprintf("the receiver takes no file named %q", o.Name)}
	}
	return nil
}

// plainName reports whether a file may have the name at a receiver. It is printed: what
// steers terminals, or turns the direction of writing, is in none.
func plainName(name string) bool {
	return name != "" && len(name) <= 200 && name[0] != '.' && !strings.ContainsAny(name, "/\\:") &&
		utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) }) &&
		filepath.IsLocal(name)
}

// partName returns the name of the incomplete file. It depends on the content, so that
// another version of the file does not go on with it.
func partName(o *offer) string {
	return "." + o.Name + "." + hex.EncodeToString(o.Sum[:8]) + ".part"
}

// receive gets a file over a session, and goes on where an earlier session has ended. It
// returns the offer, which is nil if none came.
func (s *store) receive(ctx context.Context, conn *kcp.Conn, bar *progress) (o *offer, err error) {
	defer func() { err = cause(ctx, err); end(conn, err) }()
	defer context.AfterFunc(ctx, func() { _ = conn.AbortWithError(codeInterrupted, "interrupted") })()
	o = new(offer)
	if err := readSoon(conn, o); err != nil {
		return nil, err
	}
	if err := s.check(o); err != nil {
		return o, err
	}
	if _, err := s.root.Lstat(o.Name); err == nil {
		return o, s.had(conn, o)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return o, err
	}
	f, err := s.root.OpenFile(partName(o), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return o, err
	}
	defer f.Close() // Close is called before, too, where its error counts
	if err := s.fill(conn, f, o, bar); err != nil {
		return o, err
	}
	if err := s.verify(f, o); err != nil {
		return o, err
	}
	return o, writeJSON(conn, answer{o.Size})
}

// had answers an offer of a file whose name is taken: by the same file, or by another.
func (s *store) had(conn *kcp.Conn, o *offer) error {
	f, err := s.root.Open(o.Name)
	if err != nil {
		return err
	}
	defer f.Close()
	if same, err := hasSum(f, o); err != nil {
		return err
	} else if !same {
		return &refusal{codeRefused, fmt.Sprintf("the receiver has another file named %q", o.Name)}
	}
	return errors.Join(writeJSON(conn, answer{o.Size}), writeJSON(conn, answer{o.Size}))
}

// fill reads the rest of the file from a session.
func (s *store) fill(conn *kcp.Conn, f *os.File, o *offer, bar *progress) error {
	at, err := f.Seek(0, io.SeekEnd)
	if err == nil && at > o.Size { // it is not of this program
		err = f.Truncate(0)
		at = 0
	}
	if err != nil {
		return err
	}
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		return err
	}
	if err := writeJSON(conn, answer{at}); err != nil {
		return err
	}
	count := &counter{conn: conn}
	count.n.Store(at)
	stop := bar.show("received", o.Size, count.n.Load)
	defer stop()
	_, err = io.CopyN(f, count, o.Size-at)
	return err
}

// verify compares the complete file with the offer, and gives it its name.
func (s *store) verify(f *os.File, o *offer) error {
	same, err := hasSum(f, o)
	if err == nil && same {
		err = f.Sync()
	}
	// Windows neither renames nor deletes a file that is open.
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if !same {
		return errors.Join(&refusal{codeDamaged, errDamaged.Error()}, s.root.Remove(partName(o)))
	}
	if _, err := s.root.Lstat(o.Name); err == nil {
		return &refusal{codeRefused, fmt.Sprintf("the receiver has got another file named %q", o.Name)}
	}
	return s.root.Rename(partName(o), o.Name)
}

// hasSum reports whether a file has the size and the SHA-256 of an offer.
func hasSum(f *os.File, o *offer) (bool, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	hash := sha256.New()
	n, err := io.Copy(hash, f)
	return n == o.Size && string(hash.Sum(nil)) == string(o.Sum), err
}
