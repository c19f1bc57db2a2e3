package tunnel

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/arqnet/kcp"
)

// protocol is the application protocol of sessions (ALPN).
const protocol = "kcptunnel/1"

// wireVersion is the version of openings and hellos.
const wireVersion = 1

// openDeadline is how long a peer may take for the first message of a stream, and
// for the answer to it if nothing is to be dialled.
const openDeadline = 10 * time.Second

// kind says what a stream is for.
type kind uint8

const (
	kindHello       kind = 1 + iota // the client says who it is; the first stream of a session
	kindTCP                         // a connection to a target
	kindUDP                         // a flow of UDP packets to a target
	kindSocksTCP                    // as kindTCP, asked for by SOCKS5
	kindSocksUDP                    // as kindUDP, asked for by SOCKS5
	kindListenTCP                   // the server is to listen
	kindListenUDP                   // the same for UDP
	kindListenSocks                 // the same for SOCKS5
	kindReverseTCP                  // the server has accepted a connection
	kindReverseUDP                  // the server has a new flow of UDP packets
	kindLeave                       // the server asks the client to begin another session
)

func (k kind) String() string {
	names := [...]string{"", "hello", "tcp", "udp", "socks-tcp", "socks-udp", "listen-tcp", "listen-udp", "listen-socks", "reverse-tcp", "reverse-udp", "leave"}
	if int(k) < len(names) && k != 0 {
		return names[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// packets reports whether a stream carries UDP packets, rather than bytes.
func (k kind) packets() bool {
	return k == kindUDP || k == kindSocksUDP || k == kindReverseUDP
}

// serves reports whether a stream serves the session, and carries nothing.
func (k kind) serves() bool {
	switch k {
	case kindHello, kindListenTCP, kindListenUDP, kindListenSocks, kindLeave:
		return true
	}
	return false
}

// opening is the first message of a stream: 1 byte each of version and kind, 4
// bytes of listener, 2 bytes of length, and the target.
type opening struct {
	kind kind
	// listener is the number of the stream that has asked the server to listen,
	// if this is what it has accepted.
	listener uint32
	// target is what to dial, or where to listen.
	target string
}

// openingSize is the size of an opening without its target.
const openingSize = 8

// append appends the encoding of o.
func (o opening) append(b []byte) []byte {
	b = append(b, wireVersion, byte(o.kind))
	b = binary.BigEndian.AppendUint32(b, o.listener)
	b = binary.BigEndian.AppendUint16(b, uint16(len(o.target)))
	return append(b, o.target...)
}

// readOpening reads an opening. Its errors are of type refusal, or errors of r.
func readOpening(r io.Reader) (opening, error) {
	var head [openingSize]byte
	if _, err := io.ReadFull(r, head[:2]); err != nil {
		return opening{}, err
	}
	if head[0] != wireVersion {
		return opening{}, refusal(codeVersion)
	}
	if _, err := io.ReadFull(r, head[2:]); err != nil {
		return opening{}, err
	}
	size := int(binary.BigEndian.Uint16(head[6:]))
	if size > maxTarget {
		return opening{}, refusal(codeMalformed)
	}
	target := make([]byte, size)
	if _, err := io.ReadFull(r, target); err != nil {
		return opening{}, err
	}
	return opening{kind(head[1]), binary.BigEndian.Uint32(head[2:]), string(target)}, nil
}

// statusOpen is the byte that answers an opening. There is no other status: who
// refuses resets the stream with a refusal.
const statusOpen = 0

// refusal is why a stream was reset: the code of the reset.
type refusal uint64

// Codes of Stream.Reset. They are part of the protocol.
const (
	codeGone         refusal = 1 + iota // the connection itself was reset at the other end
	codeVersion                         // another version of this protocol
	codeMalformed                       // no such opening, or no such target
	codeForbidden                       // the user may not reach it
	codeConnRefused                     // the target refuses connections
	codeTimeout                         // the target does not answer
	codeUnreachable                     // no route to it
	codeUnresolvable                    // the name does not resolve
	codeInUse                           // another program, or client, listens there
	codeFailed                          // anything else; the log of the other end says what
	codeIdle                            // no packets for the time of -udp-timeout
	codeShutdown                        // the other end is shutting down, or the session is lost
	codeTaken                           // a later session of the same user listens there
)

func (c refusal) Error() string {
	texts := [...]string{
		codeGone:         "connection reset at the other end",
		codeVersion:      "the other end has another version of the protocol",
		codeMalformed:    "the other end does not understand the request",
		codeForbidden:    "not allowed by the server",
		codeConnRefused:  "connection refused",
		codeTimeout:      "no answer in time",
		codeUnreachable:  "no route",
		codeUnresolvable: "the name does not resolve",
		codeInUse:        "address already in use",
		codeFailed:       "failed at the other end; its log says why",
		codeIdle:         "idle",
		codeShutdown:     "the other end is shutting down",
		codeTaken:        "a later session of the same user listens there now",
	}
	if c < refusal(len(texts)) && texts[c] != "" {
		return texts[c]
	}
	return fmt.Sprintf("refused with code %d", uint64(c))
}

// refused returns the refusal for which the peer has reset a stream, or err.
func refused(err error) error {
	var reset *kcp.StreamError
	if errors.As(err, &reset) && reset.Remote && reset.Code != 0 && reset.Code < kcp.StreamRefused {
		return refusal(reset.Code)
	}
	return err
}

// codeOf returns the code with which a stream is reset because of err.
func codeOf(err error) refusal {
	var c refusal
	if errors.As(err, &c) {
		return c
	}
	return codeFailed
}

// maxHello is the most bytes of a hello, and of the answer to it.
const maxHello = 64 << 10

// hello is the body of the first stream: who the client is, and what it is going to
// ask for, as rules have it, so that it learns at once what is not allowed.
type hello struct {
	User     string   `json:"user,omitempty"`
	Password string   `json:"password,omitempty"`
	Wants    []string `json:"wants,omitempty"`
}

// welcome is the answer to a hello. Without an error the client may go on.
type welcome struct {
	Code  helloCode `json:"code,omitempty"`
	Value string    `json:"value,omitempty"` // what the code is about
}

// helloCode is why a client is turned away; empty: it is not.
type helloCode string

const (
	helloVersion   helloCode = "version"
	helloMalformed helloCode = "malformed"
	helloNoName    helloCode = "no-identity" // neither password nor certificate
	helloWrong     helloCode = "wrong-identity"
	helloNoRules   helloCode = "unknown-certificate"
	helloForbidden helloCode = "forbidden"
	helloAttempts  helloCode = "attempts"
)

// writeJSON writes v with its length in front, 4 bytes.
func writeJSON(w io.Writer, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(body) > maxHello {
		return fmt.Errorf("%d bytes are more than a hello may have", len(body))
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

// readJSON reads what writeJSON has written.
func readJSON(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > maxHello {
		return refusal(codeMalformed)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return refusal(codeMalformed)
	}
	return nil
}
