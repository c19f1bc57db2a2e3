// Package takeover carries an endpoint's sockets from one process to another, and the
// packets of the sessions that stay behind (socket takeover).
//
// The process that runs is the predecessor, the one that takes over the successor. They
// exchange messages over a Link, a Unix stream socket. Then they are joined by one Pipe
// for each socket, into which the successor writes datagrams, and one into which the
// predecessor writes Notes.
package takeover

// Where things are:
//
//	takeover.go     the messages of the exchange, and what the ends must have alike
//	handover.go     the exchange in the predecessor
//	arrival.go      the exchange in the successor
//	departure.go    the predecessor: its stages, and how it tells of sessions that end
//	note.go         news of one session
//	outbox.go       forwarded datagrams: collected, written, read
//	owned.go        the sessions of another process
//	endpoint.go     what an endpoint hands over, and takes over
//	forward.go      whose session a packet is of
//	predecessor.go  the processes before, to which packets are forwarded
//	socket.go       a socket that two processes have, and how one leaves it alone
//	link_linux.go   the Unix socket of the exchange
//	pipe_linux.go   packets and notes between processes
//	other.go        systems without a takeover

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Version is the version of the exchange. Both ends must have the same.
const Version = 2

const (
	// Timeout bounds the exchange, until both ends have confirmed.
	Timeout = 4 * time.Second
	// PauseTimeout bounds the time in which no process reads the sockets.
	PauseTimeout = time.Second
)

// factor is the key of what WithFactor sets.
type factor struct{}

// WithFactor returns a context in which the limits of an exchange are n times as long.
// It is for tests, which a busy machine is not to fail.
func WithFactor(ctx context.Context, n int) context.Context {
	return context.WithValue(ctx, factor{}, n)
}

// scaled returns d, or as many times d as WithFactor has set.
func scaled(ctx context.Context, d time.Duration) time.Duration {
	if n, ok := ctx.Value(factor{}).(int); ok {
		return time.Duration(n) * d
	}
	return d
}

// MaxFiles is how many descriptors go with State. Linux takes 253 at a time (SCM_MAX_FD).
const MaxFiles = 250

// Kind is what a message of the exchange is. The predecessor sends the first, then the
// two alternate:
//
//	predecessor            successor
//	OfferKind       ---->
//	                <----  AgreeKind, or RefuseKind
//	StateKind       ---->                            with the descriptors
//	                <----  ReadyKind
//	NotesKind ...   ---->                            the predecessor reads no more
//	CommitKind      ---->
//	                <----  ConfirmKind
//	FinalKind       ---->                            the successor reads
//
// Either end may send RefuseKind in place of its next message. The successor does not
// read before FinalKind, so never do two processes read a socket.
type Kind byte

// known reports whether a message may be of kind k.
func (k Kind) known() bool {
	switch k {
	case OfferKind, AgreeKind, RefuseKind, StateKind, ReadyKind, NotesKind, CommitKind, ConfirmKind, FinalKind:
		return true
	}
	return false
}

const (
	OfferKind   Kind = 'O'
	AgreeKind   Kind = 'A'
	RefuseKind  Kind = 'R'
	StateKind   Kind = 'S'
	ReadyKind   Kind = 'r'
	NotesKind   Kind = 'N'
	CommitKind  Kind = 'C'
	ConfirmKind Kind = 'c'
	FinalKind   Kind = 'F'
)

// Offer says how the predecessor treats packets. What it says decides which process a
// packet belongs to, so the successor must be configured the same.
type Offer struct {
	Version      int
	Sockets      int
	Predecessors int // whose sessions the predecessor passes on
	TLS          bool
	Cipher       bool
	Probe        []byte // a packet with ProbeText that the predecessor's cipher has sealed
	FEC          bool
	SharedConvs  bool
	LegacyPeers  bool // legacy peers may open sessions
	// LegacySetting is the name of the setting that LegacyPeers follows from.
	LegacySetting string
	// Locals says of the predecessor, and then of those whose sessions it passes on,
	// whether they take datagrams with local addresses. nil: none of them does.
	Locals []bool
}

// Files returns how many descriptors go with State: the sockets, and the ends of pipes.
func (o *Offer) Files() int { return o.Sockets + (o.Sockets+1)*(1+o.Predecessors) }

// ProbeText is the content of Offer.Probe.
const ProbeText = "the ciphers of both ends agree.."

// Difference is a setting of the successor that differs from the predecessor's.
type Difference struct {
	Field  string // its name
	Value  any    // the successor's value
	Reason string // what it must be
}

// Differs returns the first difference between the configurations of both ends, or nil.
// opens reports whether the successor's cipher opens a packet with the given content.
func (o *Offer) Differs(own *Offer, opens func(packet []byte, content string) bool) *Difference {
	set := map[bool]string{false: "not set", true: "set"}
	for _, r := range []struct {
		field       string
		theirs, our any
	}{
		{"Shards", o.Sockets, own.Sockets},
		{"TLS", set[o.TLS], set[own.TLS]},
		{"Cipher", set[o.Cipher], set[own.Cipher]},
		{"FEC", set[o.FEC], set[own.FEC]},
		{"SharedConvs", o.SharedConvs, own.SharedConvs},
		{"LegacyPeers", o.LegacyPeers, own.LegacyPeers},
	} {
		if r.theirs != r.our {
			if r.field == "LegacyPeers" {
				r.theirs, r.our = o.LegacySetting, own.LegacySetting
			}
			return &Difference{r.field, r.our, fmt.Sprintf("must be %v, as in the old process", r.theirs)}
		}
		if r.field == "Cipher" && o.Cipher && !opens(o.Probe, ProbeText) {
			return &Difference{r.field, "another", "must have the algorithm and the key of the old process"}
		}
	}
	return nil
}

// State is what the successor needs besides the sessions. The descriptors come with it:
// the sockets, then the successor's ends of the Pipes to each predecessor, the sender of
// the State first. The descriptor of its Notes comes last.
type State struct {
	CookieSecret []byte
	CookieClock  time.Duration // the clock that periods of cookies are counted by, now
	ResetSecret  []byte
}

// Encode returns v, an *Offer, a *State or a *Difference, as the payload of a message.
func Encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // there is nothing in them that it could refuse
	}
	return b
}

// Decode sets v to what Encode was given.
func Decode(b []byte, v any) error {
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("malformed message: %w", err)
	}
	return nil
}

// RefusedError is the reason that the other end gives for ending the exchange.
type RefusedError struct {
	Peer, Reason string
	Differs      *Difference // because of which it does; nil: of none
	Cause        error       // what Unwrap returns; the caller sets it
}

func (e *RefusedError) Error() string { return e.Peer + " refuses: " + e.Reason }
func (e *RefusedError) Unwrap() error { return e.Cause }

// maxReason is how much of a reason is taken, in bytes.
const maxReason = 1000

// refusal returns the payload of a RefuseKind: the text and, after a zero byte, d.
func refusal(why error, d *Difference) []byte {
	payload := []byte(why.Error())
	if d == nil {
		return payload
	}
	return append(append(payload, 0), Encode(d)...)
}

// parseRefusal returns what peer says with the payload of a RefuseKind.
func parseRefusal(peer string, payload []byte) *RefusedError {
	text, details, _ := bytes.Cut(payload, []byte{0})
	e := &RefusedError{Peer: peer, Reason: string(text[:min(len(text), maxReason)])}
	var d Difference
	if len(details) == 0 || Decode(details, &d) != nil {
		return e
	}
	if n, ok := d.Value.(float64); ok { // JSON knows no int
		d.Value = int(n)
	}
	e.Differs = &d
	return e
}
