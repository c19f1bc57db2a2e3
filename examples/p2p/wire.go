package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
)

// Messages of both protocols are JSON behind their length in two bytes.

// maxText is the longest message, in bytes.
const maxText = 4096

// The protocol of the rendezvous:
//
//	server: greeting
//	client: join
//	server: match, as soon as the peer is there, and the end of the session
type (
	greeting struct {
		Observed netip.AddrPort // where the server sees the client
		STUN     []uint16       // further ports of the server that answer STUN
	}
	join struct {
		Room string
		Role string
		Card []string
	}
	match struct {
		Observed netip.AddrPort // where the server sees the peer
		Card     []string       // of the peer, as it has sent it
	}
)

// The protocol of the file:
//
//	sender:   offer
//	receiver: answer
//	sender:   the rest of the file
//	receiver: answer, with all there is, and the end of the session
type (
	offer struct {
		Name string
		Size int64
		Sum  []byte // SHA-256
	}
	answer struct {
		Have int64 // bytes that the receiver has
	}
)

// Codes of the ends of sessions (kcp.PeerCloseError.Code).
const (
	codeRefused     = iota + 1 // the same request would be refused again
	codeBusy                   // it may be accepted later
	codeReplaced               // the same end has joined once more
	codeTooLate                // nobody came for as long as the server waits
	codeInterrupted            // the user has interrupted the program
	codeDamaged                // the SHA-256 differs; the receiver has deleted the file
)

func writeJSON(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > maxText {
		return fmt.Errorf("a message of %d bytes", len(b))
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...))
	return err
}

func readJSON(r io.Reader, v any) error {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint16(head[:])
	if n > maxText {
		return fmt.Errorf("a message of %d bytes", n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}
