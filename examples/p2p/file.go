package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/arqnet/kcp"
)

// offer is what a sender says before the file, as JSON on a line. The receiver answers
// with the SHA-256 of what is on its disk.
type offer struct {
	Name string
	Size int64
	Sum  []byte // SHA-256
}

// idle is how long a peer may send nothing that this end waits for.
const idle = time.Minute

// describe returns the offer for a file, which it reads.
func describe(f *os.File) (*offer, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%q is not a regular file", f.Name())
	}
	hash := sha256.New()
	size, err := io.Copy(hash, f)
	return &offer{filepath.Base(f.Name()), size, hash.Sum(nil)}, err
}

// send sends a file, and waits until the peer has compared the SHA-256.
func send(ctx context.Context, conn *kcp.Conn, f *os.File, o *offer) error {
	defer conn.Abort(0, "") // after Close it does nothing
	defer context.AfterFunc(ctx, func() { _ = conn.Abort(0, "") })()
	if err := json.NewEncoder(conn).Encode(o); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if _, err := io.CopyN(conn, f, o.Size); err != nil {
		return err
	}
	sum := make([]byte, sha256.Size)
	if _, err := io.ReadFull(conn, sum); err != nil { // the peer reads the whole file first
		return err
	}
	if !bytes.Equal(sum, o.Sum) {
		return errors.New("the peer has got another file")
	}
	return conn.Close()
}

// receive gets a file of at most so many bytes into a directory. It gets its name when it
// is complete.
func receive(ctx context.Context, conn *kcp.Conn, dir *os.Root, most int64) (o *offer, err error) {
	defer conn.Abort(0, "") // after Close it does nothing
	defer context.AfterFunc(ctx, func() { _ = conn.Abort(0, "") })()
	in := bufio.NewReaderSize(impatient{conn}, maxJSON)
	line, err := in.ReadSlice('\n') // which is no longer than that
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(line, &o); err != nil {
		return nil, err
	}
	if err := check(o, dir, most); err != nil {
		_ = conn.CloseWithError(codeRefused, err.Error())
		return o, err
	}
	part := "." + o.Name + ".part"
	f, err := dir.Create(part)
	if err != nil {
		return o, err
	}
	defer dir.Remove(part) // fails once it has its name
	hash := sha256.New()
	_, err = io.CopyN(io.MultiWriter(f, hash), in, o.Size)
	if err := errors.Join(err, f.Close()); err != nil {
		return o, err
	}
	if !bytes.Equal(hash.Sum(nil), o.Sum) {
		return o, errors.New("the file differs from what was offered")
	}
	if err := dir.Rename(part, o.Name); err != nil {
		return o, err
	}
	if _, err := conn.Write(o.Sum); err != nil {
		return o, err
	}
	return o, conn.Close()
}

// check refuses an offer that has no plain file name, or is too large.
func check(o *offer, dir *os.Root, most int64) error {
	switch {
	case o == nil || len(o.Sum) != sha256.Size || o.Size < 0:
		return errors.New("not an offer of this protocol")
	case o.Size > most:
		return fmt.Errorf("the file has %d bytes, and the receiver takes %d", o.Size, most)
	case !plainName(o.Name):
		return fmt.Errorf("the receiver takes no file named %q", o.Name)
	}
	if _, err := dir.Lstat(o.Name); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the receiver has a file named %q", o.Name)
	}
	return nil
}

// plainName reports whether a file may have the name at a receiver. It is printed: what
// steers terminals, or turns the direction of writing, is in none.
func plainName(name string) bool {
	return name != "" && len(name) <= 200 && name[0] != '.' && !strings.ContainsAny(name, "/\\:") &&
		filepath.IsLocal(name) && !strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) })
}

// impatient reads from a session that has to send something now and then.
type impatient struct{ *kcp.Conn }

func (r impatient) Read(b []byte) (int, error) {
	if err := r.SetReadDeadline(time.Now().Add(idle)); err != nil {
		return 0, err
	}
	return r.Conn.Read(b)
}
