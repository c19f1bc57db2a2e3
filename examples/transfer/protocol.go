package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode/utf8"
)

// The protocol, on the byte stream of a session, with numbers in big endian:
//
//	client: magic, size of the file (8 bytes), SHA-256 (32 bytes), length of its name
//	        (1 byte), name
//	server: how many bytes of the file it has (8 bytes)
//	client: the rest of the file
//	server: SHA-256 of what is on its disk (32 bytes), and the end of the session
//
// In place of an answer the server may end the session with one of the codes.
const magic = "put1"

// Codes of the ends of sessions (kcp.PeerCloseError.Code).
const (
	codeRefused     = iota + 1 // it is useless to ask again
	codeBusy                   // not now
	codeTakenOver              // another session continues this transfer
	codeDamaged                // the SHA-256 differs; the server has deleted what it had
	codeInterrupted            // of the client: its user has interrupted it
)

// maxName is the length of the longest name, in bytes.
const maxName = 200

// request is what a client asks for. Requests that are equal are the same transfer.
type request struct {
	size int64
	sum  [sha256.Size]byte
	name string
}

// bytes returns the request as it travels.
func (r *request) bytes() []byte {
	b := binary.BigEndian.AppendUint64([]byte(magic), uint64(r.size))
	b = append(b, r.sum[:]...)
	b = append(b, byte(len(r.name)))
	return append(b, r.name...)
}

// id returns the name of the transfer, which is a file's name too.
func (r *request) id() string {
	sum := sha256.Sum256(r.bytes())
	return hex.EncodeToString(sum[:])
}

// readRequest reads what request.bytes has made.
func readRequest(from io.Reader) (*request, error) {
	head := make([]byte, len(magic)+8+sha256.Size+1)
	if _, err := io.ReadFull(from, head); err != nil {
		return nil, err
	}
	rest, ok := strings.CutPrefix(string(head), magic)
	if !ok {
		return nil, &refusal{codeRefused, "not a request of this protocol"}
	}
	r := &request{size: int64(binary.BigEndian.Uint64([]byte(rest)))}
	copy(r.sum[:], rest[8:])
	name := make([]byte, rest[len(rest)-1])
	_, err := io.ReadFull(from, name)
	r.name = string(name)
	return r, err
}

// check returns the refusal of a request that no server of these limits takes.
// A name is valid for a file in the server's directory, on any system, and does not
// begin with a dot, as the names of the server's own files do.
func (r *request) check(l limits) error {
	switch {
	case r.size < 0 || r.size > l.size:
		return &refusal{codeRefused, "the file is too large"}
	case !plainName(r.name):
		return &refusal{codeRefused, "the server does not accept a file of that name"}
	}
	return nil
}

// plainName reports whether a server takes a file of that name. Whoever lists the files
// prints it: what steers terminals is in none.
func plainName(name string) bool {
	return name != "" && len(name) <= maxName && name[0] != '.' && !strings.ContainsAny(name, "/\\:") &&
		utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) }) &&
		filepath.IsLocal(name)
}

// refusal is the reason with which the server ends a session.
type refusal struct {
	code uint64
	text string
}

func (r *refusal) Error() string { return r.text }

// errStopped is returned by sumOf if it was told to stop.
var errStopped = errors.New("stopped")

// sumOf returns the SHA-256 of all that r has, unless stop is closed before. It counts
// in done what it has read, if that is not nil.
func sumOf(r io.Reader, stop <-chan struct{}, done *atomic.Int64) (sum [sha256.Size]byte, err error) {
	hash, b := sha256.New(), make([]byte, 1<<20)
	for {
		select {
		case <-stop:
			return sum, errStopped
		default:
		}
		n, err := r.Read(b)
		hash.Write(b[:n])
		if done != nil {
			done.Add(int64(n))
		}
		if err == io.EOF {
			hash.Sum(sum[:0])
			return sum, nil
		} else if err != nil {
			return sum, err
		}
	}
}
