package admission

import (
	"encoding/binary"
	"io"
	"time"

	"github.com/arqnet/kcp/internal/container"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/wire"
)

// Limits of the answers outside any session, per second. Cookies have a limit of their
// own, so that a flood of other requests does not keep peers from opening sessions, and
// so have stateless resets, so that a flood of packets of no session leaves the other
// answers alone.
const (
	ReplyRate  = 2000  // all but the others
	CookieRate = 10000 // cookies
	ResetRate  = 10000 // stateless resets
)

// helloWindow is what this end advertises where the receiver reads it: the least that a
// peer with signals has.
const helloWindow = 128

// maxSignals is how many signals an answer has at most.
const maxSignals = 3

// maxReason is the most bytes of Ended.Reason: reasonCode of them for a code, and text.
const (
	reasonCode = 8
	maxReason  = reasonCode + 256
)

// amplification is how many times the size of a request the answer to a peer whose
// session has ended may have (RFC 9000 §8.1).
const amplification = 3

// Answer is a packet to the sender of another. The request had at least as many
// segments, so the answer is never larger (anti-amplification limit, RFC 9000 §8.1). Only
// a session in TIME-WAIT that was closed with a reason repeats that.
type Answer struct {
	By      protect.Protection // seals the answer
	Content [2*wire.HeaderSize + maxReason]byte
	Size    int // of Content, in bytes; 0: there is no answer
}

// answer returns an answer of signals, up to the first with code 0. Their other fields
// are head's.
func answer(by protect.Protection, head wire.Header, signals ...wire.Signal) Answer {
	a := Answer{By: by}
	for _, s := range signals {
		if s.Code == 0 {
			break
		}
		a.add(head, s)
	}
	return a
}

// add appends a signal. It asks for no answer, as CLOSE does elsewhere.
func (a *Answer) add(head wire.Header, s wire.Signal) {
	head.Cmd, head.Frg = wire.CmdWins, uint8(s.Code)
	head.SN, head.TS = container.Serial(s.SN), container.Serial(s.TS)
	head.Encode(a.Content[a.Size:])
	a.Size += wire.HeaderSize
}

// abort returns the ABORT of a peer's token, and reset the RESET that answers a request.
func abort(token uint32) wire.Signal {
	return wire.Signal{Code: wire.Abort, SN: token}
}

func reset(request wire.Signal) wire.Signal {
	return wire.Signal{Code: wire.Reset, SN: request.SN, TS: request.TS}
}

// leastSize returns the size of a packet with one segment.
func leastSize(by protect.Protection) int {
	head, tail := by.Overhead()
	return head + wire.HeaderSize + tail
}

// mayReply takes a token for one answer from b. Without one v says that there would have
// been an answer.
func (g *Gate[S]) mayReply(b *Bucket, rate float64, now time.Duration, v *Verdict[S]) bool {
	ok := b.Take(now, rate)
	if !ok {
		v.Note = Limited
	}
	return ok
}

// MayReply takes a token for one answer of a session to an address that is not its
// peer's.
func (g *Gate[S]) MayReply(now time.Duration) bool { return g.replies.Take(now, ReplyRate) }

// reply answers a packet in the clear, or without a session.
func (g *Gate[S]) reply(p *First, now time.Duration, v *Verdict[S], signals ...wire.Signal) {
	if g.mayReply(&g.replies, ReplyRate, now, v) {
		v.Answer = answer(g.Outside, wire.Header{Conv: p.Key.Conv}, signals...)
	}
}

// askCookie answers a HELLO with a token by the cookie of its address.
func (g *Gate[S]) askCookie(p *First, token uint32, now time.Duration, v *Verdict[S]) {
	if g.mayReply(&g.cookies, CookieRate, now, v) { // before the cost of the MAC
		v.Note = CookieSent
		c := g.Cookies.Mint(p.Key, token, now)
		v.Answer = answer(g.Outside, wire.Header{Conv: p.Key.Conv}, wire.Signal{Code: wire.Cookie, SN: c[0], TS: c[1]})
	}
}

// refuseVersion answers the HELLO of a peer that does not seal its packets, by what such
// a peer takes for the alert of a handshake.
func (g *Gate[S]) refuseVersion(p *First, now time.Duration, v *Verdict[S]) {
	v.Unsealed = true
	if p.Size < maxSignals*wire.HeaderSize {
		return
	}
	welcome := wire.Signal{Code: wire.Welcome, SN: g.random32(), TS: p.Hello.TS}
	for welcome.SN == 0 {
		welcome.SN = g.random32()
	}
	if g.mayReply(&g.replies, ReplyRate, now, v) {
		alert := wire.Signal{Code: wire.Alert, SN: handshake.AlertProtocolVersion, TS: p.Hello.TS}
		v.Answer = answer(g.Outside, wire.Header{Conv: p.Key.Conv, Wnd: helloWindow}, welcome, g.Info, alert)
	}
}

// random32 returns an unpredictable number.
func (g *Gate[S]) random32() uint32 {
	var b [4]byte
	_, _ = io.ReadFull(g.Random, b[:]) // cannot fail
	return binary.LittleEndian.Uint32(b[:])
}

// mayReset has a protected packet of a session that is not known answered by a stateless
// reset (RFC 9000 §10.3, WIRE.md §8.6), unless sessions were asked that it may be of. The
// reset is smaller than the packet, and too small to be answered itself (RFC 9000
// §10.3.3).
func (g *Gate[S]) mayReset(p *First, now time.Duration, v *Verdict[S]) {
	if !g.TLS || p.ask != AskNone || p.Size <= protect.MaxReset || p.Kind != Sealed || p.state.Closed {
		return
	}
	if g.mayReply(&g.resets, ResetRate, now, v) {
		v.Note = ResetSent
	}
}

// StatelessReset returns the answer to a packet after a verdict of ResetSent. local is
// the address of the socket. It runs without a lock.
func (g *Gate[S]) StatelessReset(p *First, local string, now time.Duration) Answer {
	a := Answer{By: g.Outside, Size: protect.MinReset + int(g.random32()%(protect.MaxReset-protect.MinReset+1))}
	k := p.Key.ResetKey(g.ResetSecret, local)
	k.Reset(g.Random, a.Content[:a.Size], p.Key.Conv, uint32(g.Epoch.Add(now).Unix()))
	return a
}
