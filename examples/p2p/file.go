package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/arqnet/kcp"
)

// offer is what a sender says before the file, as JSON on a line. The receiver closes the
// session when the file is on its disk. TLS has authenticated all of it.
type offer struct {
	Name string
	Size int64
}

// idle is how long a peer may send nothing that this end waits for.
const idle = time.Minute

// send sends a file, and waits until the peer has it.
func send(ctx context.Context, conn *kcp.Conn, f *os.File) (*offer, error) {
	defer conn.Abort(0, "") // after Close it does nothing
	defer context.AfterFunc(ctx, func() { _ = conn.Abort(0, "") })()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	o := &offer{filepath.Base(f.Name()), info.Size()}
	if err := json.NewEncoder(conn).Encode(o); err != nil {
		return o, err
	}
	if _, err := io.CopyN(conn, f, o.Size); err != nil {
		return o, err
	}
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
		return o, cmp.Or(err, errors.New("the peer does not speak this protocol"))
	}
	return o, conn.Close()
}

// receive gets a file of at most so many bytes into a directory.
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
	if err := check(o, most); err != nil {
		_ = conn.CloseWithError(codeRefused, err.Error())
		return o, err
	}
	f, err := dir.OpenFile(o.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		_ = conn.CloseWithError(codeRefused, fmt.Sprintf("the receiver has a file named %q, or cannot write it", o.Name))
		return o, err
	}
	_, err = io.CopyN(f, in, o.Size)
	if err := errors.Join(err, f.Close()); err != nil {
		return o, errors.Join(err, dir.Remove(o.Name))
	}
	return o, conn.Close()
}

// check refuses an offer that has no plain file name, or is too large.
func check(o *offer, most int64) error {
	switch {
	case o == nil || o.Size < 0:
		return errors.New("not an offer of this protocol")
	case o.Size > most:
		return fmt.Errorf("the file has %d bytes, and the receiver takes %d", o.Size, most)
	case !plainName(o.Name):
		return fmt.Errorf("the receiver takes no file named %q", o.Name)
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
