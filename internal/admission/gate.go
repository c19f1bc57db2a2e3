package admission

import (
	"io"
	"time"

	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/wire"
)

// Rules are an endpoint's rules for senders without a session.
type Rules struct {
	TLS            bool // packets open sessions by a TLS handshake
	Authentic      bool // an opened packet is a peer's
	Migrates       bool // sessions follow their peers to other addresses
	SharedConvs    bool // several peers may have sessions of one conversation id
	RefusesLegacy  bool // only extended peers may open sessions
	AlwaysValidate bool // each HELLO needs a cookie
	MaxSessions    int
	MaxHalfOpen    int

	Protection *protect.Scheme
	Outside    protect.Protection // of packets of no session
	Info       wire.Signal        // this end's
	Random     io.Reader          // it must not fail, and is safe for concurrent use
	Epoch      time.Time          // the origin of all times; stateless resets say when they were made
}

// Hooks are what a Gate asks of its endpoint, while that has locked the gate.
type Hooks[S any] struct {
	// Extended reports whether the peer of a session is known to be an extended one.
	Extended func(*S) bool
	// Keys returns what opens packets under the keys of a session; nil: there are none.
	Keys func(*S) protect.Protection
	// Look reports whether a session may be ended to make room.
	Look func(*S, time.Duration) fair.Look
	// Full reports whether the listener takes no more sessions. privileged says that
	// the session waits for Accept only after its peer has shown its address.
	Full func(privileged bool) bool
}

// State is the state of an endpoint besides its sessions.
type State struct {
	Listening bool // peers may open sessions
	Closed    bool
}

// Gate is the one way by which packets of unknown senders enter an endpoint: Read reads
// one, and Judge decides on it, as often as its verdicts want it asked again. What
// senders can cause is bounded by the sessions whose peers' addresses are not validated
// (RFC 9000 §8), and by the rate and size of answers.
type Gate[S any] struct {
	Rules    // immutable
	Hooks[S] // immutable
	Table[S]
	TimeWaits   TimeWaits[Ended]
	Used        History // of ended sessions with extended peers; kept only with legacy peers and an authenticating cipher
	Cookies     Cookies
	ResetSecret []byte // of stateless resets; nil without TLS; immutable while packets come

	replies Bucket // all answers but cookies and stateless resets
	cookies Bucket
	resets  Bucket // stateless resets
}

// Reason is why a packet was dropped, or what else is counted of it.
type Reason uint8

const (
	NoReason     Reason = iota
	Short               // too short, or not as long as its header says
	Cipher              // it does not open
	Replay              // recorded, or of no session that its peer may have moved from
	Unknown             // of no session, and opens none
	EndedSession        // of a session in TIME-WAIT
	Sessions            // there are as many sessions as there may be
	Backlog             // as many wait for Accept
	HalfOpen            // as many are half open, and none makes room
	Shaking             // it cannot begin a TLS handshake, or move one

	// What else is counted, besides drops.
	Limited    // an answer was dropped, as the limit of their rate was reached
	CookieSent // the answer is a cookie
	ResetSent  // Gate.StatelessReset makes the answer
)

// Action is what an endpoint has to do with a packet.
type Action uint8

const (
	Done   Action = iota // nothing more
	Give                 // it is of Verdict.Session
	Ask                  // ask Verdict.Asked for it, and judge again unless one has moved to its address
	Unseal               // First.Unseal opens it, without a lock; judge again
	Open                 // it opens a session
)

// Question is what sessions of the conversation at other addresses are asked about a
// packet: it may be of their peer, whose address has changed.
type Question uint8

const (
	AskNone      Question = iota
	AskPacket             // whether they take the packet, if it has a number, and then if it has none
	AskWelcome            // whether its HELLO has opened them: then they send WELCOME to this address too
	AskHello              // whether its HELLO has begun their TLS handshake
	AskHandshake          // whether their handshake keys open it
	AskSealed             // whether their application keys open it
)

// Verdict is the decision on a packet. Several parts may be set at a time.
type Verdict[S any] struct {
	Do     Action
	Drop   Reason // to be counted, as is Note; NoReason: nothing
	Note   Reason
	Answer Answer // to the packet's source

	Unsealed bool // the peer is of a version that does not seal its packets: a failed handshake
	Seen     bool // unless a session gets the packet, the replay filter has to know it

	Session   *S              // for Give
	Question  Question        // for Ask
	Asked     [MaxSameConv]*S // the entries after the last are nil
	Shown     bool            // for AskHello: the packet shows the cookie of its address
	Validated bool            // for Open: the packet shows a cookie, which validates the peer's address
	Offers    bool            // for Open: the session goes to Accept at once
	Evicted   *S              // for Open: a session to end first, to make room; nil: none
}
