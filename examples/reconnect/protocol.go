package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The client begins a session with its id, 16 bytes. The server answers with the number
// of messages that it has of that client, and again after each further one: 8 bytes,
// big-endian like all numbers. The client sends the messages from that number on.
//
// For a file the client opens a stream, and sends the name, as a message is sent, the
// version that it has a part of, and the size of that part. The server answers with the
// version and the size of the file, and where what follows begins: at the end of the
// client's part, or at 0 if that is of another version.

const (
	idSize     = 16
	maxMessage = 64 << 10 // bytes
	maxName    = 255      // bytes
)

// Codes with which the server ends sessions and streams.
const (
	codeTakenOver = 1 // another session has the client's id: do not dial again
	codeBusy      = 2 // try again later
	codeNoFile    = 3 // of streams: there is no such file
)

// errNumbers means that the server does not have the messages that it once had.
var errNumbers = errors.New("the server counts other messages than this client has sent")

// writeMessage writes a message with its length.
func writeMessage(w io.Writer, m []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(m))), m...))
	return err
}

// readMessage reads a message of at most so many bytes.
func readMessage(r io.Reader, most int) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if int64(n) > int64(most) {
		return nil, fmt.Errorf("a message of %d bytes, where %d are allowed", n, most)
	}
	m := make([]byte, n)
	if _, err := io.ReadFull(r, m); err != nil {
		return nil, unexpected(err)
	}
	return m, nil
}

// writeNumbers writes numbers in one write.
func writeNumbers(w io.Writer, numbers ...uint64) error {
	var b []byte
	for _, n := range numbers {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	_, err := w.Write(b)
	return err
}

// readNumbers reads numbers.
func readNumbers(r io.Reader, numbers ...*uint64) error {
	for _, n := range numbers {
		if err := binary.Read(r, binary.BigEndian, n); err != nil {
			return err
		}
	}
	return nil
}

// unexpected returns err, where no end was expected.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
