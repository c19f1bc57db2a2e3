package admission

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/container"
	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/stretchr/testify/require"
)

// gate is a gate of the tests, with the state of its endpoint.
type gate struct {
	Gate[session]
	state   State
	full    bool // the backlog takes nothing, or nothing unprivileged
	half    bool
	dials   bool // it expects HELLOs with TIEBREAKER (simultaneous open)
	crowded bool // and they need a cookie
	now     time.Duration
	scheme  *protect.Scheme
}

// wires are how packets may be protected.
var wires = []string{"plain", "aead", "tls"}

// newGate returns the gate of a listening endpoint. The seed is that of its random
// numbers.
func newGate(setup string, seed uint64) *gate {
	var cipher crypt.Cipher
	if setup == "aead" {
		cipher, _ = crypt.AESGCM(make([]byte, 16))
	}
	g := &gate{state: State{Listening: true}, now: time.Minute, scheme: protect.NewScheme(cipher, setup == "tls", nil)}
	g.Init((*session).place, 4)
	g.Rules = Rules{
		TLS: setup == "tls", Authentic: g.scheme.Authentic, Migrates: g.scheme.Authentic, RefusesLegacy: g.scheme.Authentic,
		MaxSessions: 8, MaxHalfOpen: 16, Outside: g.scheme.Outside,
		Info: info(setup == "tls"), Random: rand.NewChaCha8([32]byte{byte(seed)}), Epoch: time.Unix(1e9, 0),
	}
	g.Hooks = Hooks[session]{
		Extended: func(s *session) bool { return s.look != Young },
		Look:     func(s *session, _ time.Duration) fair.Look { return s.look },
		Full:     func(privileged bool) bool { return g.full || g.half && !privileged },
	}
	g.ResetSecret, g.Cookies.Random = []byte("secret"), g.Random
	return g
}

// conv and from are those of the packets of the tests.
const conv = 7

var from = netip.MustParseAddrPort("192.0.2.1:1000")

func keyOf(at netip.AddrPort) Key { return MakeKey(at, nil, conv) }

// local is the address of the socket.
const local = "10.0.0.1:1"

// add adds a session of conv at an address.
func (g *gate) add(at netip.AddrPort, look fair.Look) *session {
	s := &session{entry: entryOf(keyOf(at)), look: look}
	g.Add(s)
	return s
}

// elsewhere is the address of a peer before it has moved.
var elsewhere = netip.MustParseAddrPort("198.51.100.1:9")

// others adds n sessions of other conversations at other addresses.
func (g *gate) others(n int) {
	for i := range n {
		s := &session{entry: entryOf(Key{Addr: address(i), Conv: 1000 + uint32(i)})}
		g.Add(s)
	}
}

// halves adds n half-open sessions of one network, which are young.
func (g *gate) halves(n int) {
	for i := range n {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), 9)
		g.Add(&session{entry: entryOf(Key{Addr: at, Conv: 2000 + uint32(i)}), look: Young})
	}
}

// established adds n sessions, as others does, of validated addresses.
func (g *gate) established(n int) {
	g.others(n)
	for _, s := range g.Sessions() {
		g.SetValidated(s)
	}
}

// segment returns a segment of a packet.
func segment(cmd uint8, code wire.Code, sn, ts, una container.Serial, payload int) []byte {
	b := make([]byte, wire.HeaderSize+payload)
	h := wire.Header{Conv: conv, Cmd: cmd, Frg: uint8(code), SN: sn, TS: ts, Una: una, Len: uint32(payload)}
	h.Encode(b)
	return b
}

func signal(code wire.Code, sn, ts uint32) []byte {
	return put(wire.Signal{Code: code, SN: sn, TS: ts})
}

func info(tls bool) wire.Signal {
	s := wire.Signal{Code: wire.Info, SN: handshake.Version, TS: 1}
	if tls {
		s.TS |= handshake.CapTLS
	}
	return s
}

func put(s wire.Signal) []byte {
	b := make([]byte, wire.HeaderSize)
	s.Encode(wire.Header{Conv: conv}, b)
	return b
}

func packetOf(segments ...[]byte) []byte { return slices.Concat(segments...) }

// token is that of the peer that opens a session.
const token = 99

var (
	hello = signal(wire.Hello, 0, token)
	first = segment(wire.CmdPush, 0, 0, 5, 0, 10)
	later = segment(wire.CmdPush, 0, 3, 5, 0, 10)
	ping  = signal(wire.Ping, 11, 12)
)

// initial returns the first packet of a TLS handshake. una is that of its CRYPTO.
func initial(una container.Serial, head ...[]byte) []byte {
	b := packetOf(append(head, segment(wire.CmdWins, wire.Crypto, 0, 4, una, 100+protect.InitialOverhead))...)
	protect.NewInitial(conv, token, true).Seal(b, len(b)-100-protect.InitialOverhead)
	return b
}

// sealed returns a packet under keys, of a level.
func sealed(by protect.Protection, content []byte) []byte {
	head, tail := by.Overhead()
	b := make([]byte, head+len(content)+tail)
	copy(b[head:], content)
	if err := by.Seal(b, nil); err != nil {
		panic(err)
	}
	return b
}

// pair returns both ends' keys of a session with TLS, at a level.
func (g *gate) pair(level protect.Level) (ours, theirs *protect.TLS) {
	of := func() *protect.TLS {
		_, app, shaking := g.scheme.Session(conv)
		if level == protect.Handshake {
			return shaking
		}
		return app
	}
	ours, theirs = of(), of()
	for i, k := range []*protect.TLS{ours, theirs} {
		secret := sha256.Sum256([]byte{byte(i)})
		other := []*protect.TLS{theirs, ours}[i]
		if k.Keys.SetSealSecret(tls.TLS_AES_128_GCM_SHA256, secret[:]) != nil || other.Keys.SetOpenSecret(tls.TLS_AES_128_GCM_SHA256, secret[:]) != nil {
			panic("no keys")
		}
	}
	return ours, theirs
}

// judged is what an endpoint does with a packet, as text. claims is what the sessions
// that are asked say. rounds is how often the packet was judged.
func (g *gate) judged(t testing.TB, packet []byte, claims bool) (did string, rounds int) {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	p := protect.Packet{Data: bytes.Clone(packet)}
	if err := g.Outside.Open(&p); err != nil {
		return "does not open", 0
	}
	kind, c, ok := Classify(p.Data, g.TLS)
	if !ok {
		return "short", 0
	}
	f := g.Read(MakeKey(from, nil, c), kind, &p, len(packet))
	f.Expected = g.dials && f.Tie.Code != 0 && f.Hello.Code != 0
	f.Crowded = f.Expected && g.crowded
	for rounds = 1; ; rounds++ {
		require.LessOrEqual(t, rounds, 3)
		v := g.Judge(&f, g.state, g.now)
		for _, r := range []Reason{v.Drop, v.Note} {
			if r != NoReason {
				add("%s", reasons[r])
			}
		}
		if v.Unsealed {
			add("version")
		}
		if v.Note == ResetSent {
			require.Zero(t, v.Answer.Size)
			v.Answer = g.StatelessReset(&f, local, g.now)
		}
		if a := v.Answer; a.Size > 0 {
			add("%s", g.answered(t, &v, &f))
		}
		switch v.Do {
		case Ask:
			add("ask %s", questions[v.Question])
			require.NotNil(t, v.Asked[0])
			f.Claimed = claims
			continue
		case Unseal:
			why, ok := f.Unseal()
			if why != NoReason {
				add("%s", reasons[why])
			}
			if ok {
				continue
			}
		case Give:
			require.Equal(t, f.Key, v.Session.entry.Key())
			add("give")
		case Open:
			add("open")
			for _, what := range []struct {
				is   bool
				name string
			}{{v.Validated, "validated"}, {v.Offers, "offered"}, {v.Evicted != nil, "evicts"}, {f.Keys != nil, "keys"}} {
				if what.is {
					add("%s", what.name)
				}
			}
			require.True(t, v.Seen && (f.Keys != nil) == g.TLS)
		case Done:
			if v.Seen {
				add("seen")
			}
		}
		return strings.Join(parts, ", "), rounds
	}
}

var (
	reasons = [...]string{
		Short: "short", Cipher: "cipher", Replay: "replay", Unknown: "unknown", EndedSession: "ended", Sessions: "sessions",
		Backlog: "backlog", HalfOpen: "half open", Shaking: "handshake", Limited: "limited", CookieSent: "a cookie", ResetSent: "a reset",
	}
	questions = [...]string{AskPacket: "packet", AskWelcome: "welcome", AskHello: "hello", AskHandshake: "handshake", AskSealed: "sealed"}
	codes     = map[wire.Code]string{
		wire.Welcome: "WELCOME", wire.Info: "INFO", wire.Cookie: "COOKIE", wire.Reset: "RESET",
		wire.Abort: "ABORT", wire.Alert: "ALERT", wire.Pong: "PONG", wire.Token: "TOKEN",
		wire.Fin | wire.Answer: "FIN'", wire.Confirm | wire.Answer: "CONFIRM'",
		wire.Close: "CLOSE", wire.Close | wire.Answer: "CLOSE'", wire.Probe | wire.Answer: "PROBE'",
	}
)

// answered returns the signals of an answer. It is no larger than the packet.
func (g *gate) answered(t testing.TB, v *Verdict[session], p *First) string {
	a, size := v.Answer, p.Size
	head, tail := a.By.Overhead()
	if v.Note == ResetSent {
		require.Less(t, a.Size, size)
		key := p.Key.ResetKey(g.ResetSecret, local)
		require.True(t, key.Opens(a.Content[:a.Size], uint32(g.Epoch.Add(g.now).Unix())-1))
		return "stateless"
	}
	require.LessOrEqual(t, head+a.Size+tail, size)
	var all []string
	for at := 0; at < a.Size; at += wire.HeaderSize {
		h := wire.DecodeHeader(a.Content[at:])
		require.Equal(t, uint8(wire.CmdWins), h.Cmd, "an answer asks for nothing")
		s, is := h.Signal()
		require.True(t, is && codes[s.Code] != "", s)
		require.Equal(t, p.Key.Conv, h.Conv)
		switch s.Code {
		case wire.Reset, wire.Pong:
			require.Equal(t, [2]uint32{p.Request.SN, p.Request.TS}, [2]uint32{s.SN, s.TS})
		case wire.Close:
			require.Equal(t, [2]uint32{p.ended.End, p.ended.Token}, [2]uint32{s.SN, s.TS})
		}
		name := codes[s.Code]
		if h.Una != 0 {
			name += fmt.Sprintf("@%d", h.Una)
		}
		all = append(all, name)
	}
	return strings.Join(all, "+")
}

// end puts a session of conv at an address into TIME-WAIT.
func (g *gate) end(at netip.AddrPort, e Ended) {
	if e.Protection == nil {
		e.Protection = g.Outside
	}
	g.Remember(keyOf(at), e, e.Token != 0, g.now)
}

// What each kind of packet causes in each state of the endpoint.
func TestVerdicts(t *testing.T) {
	cookie := func(g *gate) []byte {
		c := g.Cookies.Mint(keyOf(from), token, g.now)
		return signal(wire.Cookie, c[0], c[1])
	}
	helloInfo := packetOf(hello, put(info(false)))
	just := func(packet []byte) func(*gate) []byte { return func(*gate) []byte { return packet } }
	for _, test := range []struct {
		name   string
		wires  string // all three if empty
		set    func(g *gate)
		packet func(g *gate) []byte // in the clear
		claims bool
		want   string
	}{
		{"HELLO", "plain", nil, just(helloInfo), false, "open"},
		{"HELLO", "aead", nil, just(helloInfo), false, "open"},
		{"first data", "plain", nil, just(first), false, "open, offered"},
		{"first data", "aead", nil, just(first), false, "unknown, seen"},
		{"first data with FEC", "plain", nil, func(*gate) []byte { return packetOf([]byte{0, 0, 0, 0, 0xf1, 0, 0, 0}, first) }, false, "open, offered"},
		{"parity", "plain", nil, func(*gate) []byte { return packetOf([]byte{0, 0, 0, 0, 0xf2, 0, 0, 0}, first) }, false, "unknown"},
		{"datagram", "plain", nil, just([]byte{0, 0, 0, 0, 0xf3, 0, 6, 0, conv, 0, 0, 0}), false, "unknown"},
		{"later data", "plain", nil, just(later), false, "unknown, seen"},
		{"data that acknowledges", "plain", nil, func(*gate) []byte { return packetOf(first, segment(wire.CmdAck, 0, 0, 0, 0, 0)) }, false, "unknown, seen"},
		{"data with una", "plain", nil, func(*gate) []byte { return segment(wire.CmdPush, 0, 0, 5, 1, 10) }, false, "unknown, seen"},
		{"HELLO that acknowledges", "plain", nil, func(*gate) []byte { return packetOf(hello, segment(wire.CmdAck, 0, 0, 0, 0, 0)) }, false, "unknown, RESET, seen"},
		{"PING", "plain aead", nil, just(ping), false, "unknown, RESET, seen"},
		{"answer", "plain aead", nil, func(*gate) []byte { return signal(wire.Pong, 1, 2) }, false, "unknown, seen"},
		{"damaged", "plain", nil, func(*gate) []byte { return packetOf(hello, segment(200, 0, 0, 0, 0, 0)) }, false, "unknown"},
		{"of two conversations", "plain", nil, func(*gate) []byte {
			b := packetOf(hello, hello)
			b[wire.HeaderSize]++
			return b
		}, false, "unknown"},
		{"too short", "plain", nil, func(*gate) []byte { return hello[:23] }, false, "short"},
		{"piece", "plain", nil, func(*gate) []byte { return segment(wire.CmdPiece, 0, 0, 0, 0, 3) }, false, "unknown, seen"},

		{"HELLO, nothing listens", "plain aead", func(g *gate) { g.state.Listening = false }, just(helloInfo), false, "unknown, RESET, seen"},
		{"first data, nothing listens", "plain", func(g *gate) { g.state.Listening = false }, just(first), false, "unknown, seen"},
		{"HELLO, closed", "plain aead", func(g *gate) { g.state.Closed = true }, just(helloInfo), false, "seen"},
		{"HELLO of a session", "plain", func(g *gate) { g.add(from, Idle) }, just(helloInfo), false, "give"},

		{"validated always", "plain aead", func(g *gate) { g.AlwaysValidate = true }, just(helloInfo), false, "a cookie, COOKIE, seen"},
		{"cookie", "plain", func(g *gate) { g.AlwaysValidate = true }, func(g *gate) []byte { return packetOf(hello, cookie(g)) }, false, "open, validated, offered"},
		{"cookie", "aead", func(g *gate) { g.AlwaysValidate = true }, func(g *gate) []byte { return packetOf(hello, cookie(g)) }, false, "open, validated"},
		{"cookie of before", "plain", func(g *gate) { g.AlwaysValidate = true }, func(g *gate) []byte {
			c := cookie(g)
			g.now += 3 * CookieTime
			return packetOf(hello, c)
		}, false, "a cookie, COOKIE, seen"},
		{"cookie that nobody wants", "plain", nil, func(*gate) []byte { return packetOf(hello, signal(wire.Cookie, 1, 2)) }, false, "open"},
		{"half of the sessions", "plain", func(g *gate) { g.others(4) }, just(helloInfo), false, "a cookie, COOKIE, seen"},
		{"as many of the network, no cookie", "plain", func(g *gate) { g.crowd(4, false); g.MaxSessions = 100 }, just(helloInfo), false, "a cookie, COOKIE, seen"},
		{"half of the half-open", "plain", func(g *gate) { g.halves(8) }, just(helloInfo), false, "a cookie, COOKIE, seen"},
		{"less than half", "plain", func(g *gate) { g.halves(3) }, just(helloInfo), false, "open"},
		{"no more cookies", "plain", func(g *gate) {
			g.AlwaysValidate = true
			for g.cookies.Take(g.now, CookieRate) {
			}
		}, just(helloInfo), false, "limited, seen"},

		{"as many sessions as may be", "plain", func(g *gate) { g.established(8) }, func(g *gate) []byte { return packetOf(hello, cookie(g)) }, false, "sessions, RESET, seen"},
		{"data, as many sessions as may be", "plain", func(g *gate) { g.established(8) }, just(first), false, "sessions, seen"},
		{"as many of the network", "plain", func(g *gate) { g.crowd(4, true) }, func(g *gate) []byte { return packetOf(hello, cookie(g)) }, false, "sessions, RESET, seen"},
		{"as many unvalidated", "plain", func(g *gate) { g.crowd(4, false) }, func(g *gate) []byte { return packetOf(hello, cookie(g)) }, false, "open, validated, offered"},
		{"data, as many unvalidated", "plain", func(g *gate) { g.crowd(4, false) }, just(first), false, "sessions, seen"},
		{"backlog", "plain", func(g *gate) { g.full = true }, just(helloInfo), false, "backlog, seen"},
		{"half of the backlog", "plain", func(g *gate) { g.half = true }, just(first), false, "backlog, seen"},
		{"half of the backlog, HELLO", "plain", func(g *gate) { g.half = true }, just(helloInfo), false, "open"},
		{"half-open", "plain", func(g *gate) { g.MaxHalfOpen = 0 }, just(first), false, "half open, seen"},
		{"half-open, all young", "plain", func(g *gate) { g.MaxHalfOpen = 1; g.add(elsewhere, Young) }, just(first), false, "half open, seen"},
		{"half-open, one idle", "plain", func(g *gate) { g.MaxHalfOpen = 1; g.add(elsewhere, Idle); g.SharedConvs = true }, just(first), false, "open, offered, evicts"},
		{"half-open, two young of a network", "plain", func(g *gate) { g.MaxHalfOpen = 2; g.halves(2) }, just(first), false, "open, offered, evicts"},
		{"sessions, some half-open", "plain", func(g *gate) { g.MaxSessions = 9; g.established(8); g.halves(1) }, func(g *gate) []byte { return packetOf(hello, cookie(g)) }, false, "open, validated, offered, evicts"},
		{"sessions, some half-open, no cookie", "plain", func(g *gate) { g.MaxSessions = 10; g.established(8); g.halves(2) }, just(first), false, "open, offered, evicts"},
		{"data of a peer elsewhere", "plain", func(g *gate) { g.add(elsewhere, Idle) }, just(first), false, "unknown, seen"},
		{"data of a peer elsewhere, shared", "plain", func(g *gate) { g.add(elsewhere, Idle); g.SharedConvs = true }, just(first), false, "open, offered"},
		{"data of an id that was used", "aead", func(g *gate) { g.RefusesLegacy = false; g.Used.Add(conv) }, just(first), false, "unknown, seen"},
		{"data from a new address", "aead", func(g *gate) { g.add(elsewhere, Idle) }, just(later), true, "ask packet"},
		{"data of nobody elsewhere", "aead", func(g *gate) { g.add(elsewhere, Idle) }, just(later), false, "ask packet, replay"},
		{"HELLO from a new address", "aead", func(g *gate) { g.add(elsewhere, Idle) }, just(helloInfo), true, "ask welcome, seen"},
		{"HELLO of nobody elsewhere", "aead", func(g *gate) { g.add(elsewhere, Idle) }, just(helloInfo), false, "ask welcome, open"},
		{"legacy peer elsewhere", "aead", func(g *gate) { g.add(elsewhere, Young) }, just(later), false, "unknown, seen"},

		{"HELLO with TLS where there is none", "plain aead", nil, func(*gate) []byte { return packetOf(hello, put(info(true))) }, false, "handshake, INFO+RESET, seen"},
		{"HELLO without TLS", "tls", nil, just(helloInfo), false, "handshake, INFO+RESET, seen"},
		{"HELLO without INFO", "tls", nil, func(*gate) []byte { return hello }, false, "handshake, RESET, seen"},
		{"damaged INFO", "tls", nil, func(*gate) []byte { return initial(0, hello, put(info(false))) }, false, "handshake, seen"},
		{"handshake", "tls", nil, just(initial(0, hello, put(info(true)))), false, "open, keys"},
		{"damaged handshake", "tls", nil, func(*gate) []byte {
			b := initial(0, hello, put(info(true)))
			b[len(b)-1]++
			return b
		}, false, "cipher"},
		{"handshake without CRYPTO", "tls", nil, func(*gate) []byte { return packetOf(hello, put(info(true))) }, false, "handshake"},
		{"handshake behind a cookie", "tls", func(g *gate) { g.halves(2) }, func(g *gate) []byte { return initial(0, hello, put(info(true))) }, false, "a cookie, COOKIE, seen"},
		{"handshake with a cookie", "tls", func(g *gate) { g.halves(2) }, func(g *gate) []byte { return initial(0, hello, cookie(g), put(info(true))) }, false, "open, validated, keys"},
		{"too many handshakes", "tls", func(g *gate) { g.MaxHalfOpen = 0; g.AlwaysValidate = true }, func(g *gate) []byte { return initial(0, hello, cookie(g), put(info(true))) }, false, "handshake, seen"},
		{"handshake that goes on", "tls", nil, func(*gate) []byte { return initial(3, hello, put(info(true))) }, false, "unknown, ABORT"},
		{"handshake that goes on, closed", "tls", func(g *gate) { g.state.Closed = true }, func(*gate) []byte { return initial(3, hello, put(info(true))) }, false, "unknown"},
		{"CRYPTO without HELLO", "tls", nil, func(*gate) []byte { return initial(0, put(info(true))) }, false, "unknown"},
		{"version 1", "tls", nil, func(*gate) []byte {
			return packetOf(hello, signal(wire.Info, handshake.VersionUnsealed, handshake.CapTLS), first)
		}, false, "version, WELCOME+INFO+ALERT"},
		{"short packet of version 1", "tls", nil, func(*gate) []byte {
			return packetOf(hello, signal(wire.Info, handshake.VersionUnsealed, handshake.CapTLS))
		}, false, "version"},
		{"version 1, nothing listens", "tls", func(g *gate) { g.state.Listening = false }, func(*gate) []byte {
			return packetOf(hello, signal(wire.Info, handshake.VersionUnsealed, handshake.CapTLS))
		}, false, "unknown, RESET, seen"},
		{"handshake from a new address", "tls", func(g *gate) { g.add(elsewhere, Idle) }, just(initial(0, hello, put(info(true)))), true, "ask hello, a cookie, COOKIE"},
		{"handshake with its cookie", "tls", func(g *gate) { g.add(elsewhere, Idle) }, func(g *gate) []byte { return initial(0, hello, cookie(g), put(info(true))) }, true, "ask hello, handshake"},
		{"handshake of nobody elsewhere", "tls", func(g *gate) { g.add(elsewhere, Idle) }, just(initial(0, hello, put(info(true)))), false, "ask hello, open, keys"},
		{"request in the clear", "tls", nil, just(ping), false, "unknown, RESET, seen"},

		{"sealed", "tls", nil, func(g *gate) []byte { _, k := g.pair(protect.Application); return sealed(k, later) }, false, "unknown, a reset, stateless"},
		{"sealed, closed", "tls", func(g *gate) { g.state.Closed = true }, func(g *gate) []byte { _, k := g.pair(protect.Application); return sealed(k, later) }, false, "unknown"},
		{"sealed, small", "tls", nil, func(g *gate) []byte { _, k := g.pair(protect.Application); return sealed(k, make([]byte, 23)) }, false, "unknown"},
		{"sealed, no more resets", "tls", func(g *gate) {
			for g.resets.Take(g.now, ResetRate) {
			}
		}, func(g *gate) []byte { _, k := g.pair(protect.Application); return sealed(k, later) }, false, "unknown, limited"},
		{"sealed handshake", "tls", nil, func(g *gate) []byte { _, k := g.pair(protect.Handshake); return sealed(k, later) }, false, "unknown"},
		{"sealed from a new address", "tls", func(g *gate) { g.add(elsewhere, Idle) }, func(g *gate) []byte { _, k := g.pair(protect.Application); return sealed(k, later) }, true, "ask sealed"},
		{"sealed by nobody elsewhere", "tls", func(g *gate) { g.add(elsewhere, Idle) }, func(g *gate) []byte { _, k := g.pair(protect.Application); return sealed(k, later) }, false, "ask sealed, unknown"},
		{"handshake keys from a new address", "tls", func(g *gate) { g.add(elsewhere, Idle) }, func(g *gate) []byte { _, k := g.pair(protect.Handshake); return sealed(k, later) }, true, "ask handshake"},
	} {
		for _, setup := range wires {
			if test.wires != "" && !strings.Contains(test.wires, setup) {
				continue
			}
			g := newGate(setup, 1)
			if test.set != nil {
				test.set(g)
			}
			packet := test.packet(g)
			if setup == "aead" {
				packet = sealed(g.scheme.Outside, packet)
				g.scheme.Forget() // that this end has sent it
			}
			got, _ := g.judged(t, packet, test.claims)
			require.Equal(t, test.want, got, "%s, %s", test.name, setup)
		}
	}
}

// crowd adds n sessions of the network of from.
func (g *gate) crowd(n int, validated bool) {
	for i := range n {
		s := &session{entry: entryOf(Key{Addr: netip.AddrPortFrom(from.Addr(), uint16(i+1)), Conv: uint32(i + 100)})}
		if validated {
			g.SetValidated(s)
		}
		g.Add(s)
	}
}

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Cookie, valid for", "10 to 20 s", CookieTime},
		{"| Legacy peers with an AEAD", "32768", maxConvs},
		{"| TIME-WAIT", "60 s", TimeWait},
		{"| TIME-WAIT", "8192 entries", MaxTimeWaits},
		{"| Replies outside a session", "2000 a second", ReplyRate},
		{"| Replies outside a session", "10 000 cookies", CookieRate},
		{"| Stateless reset", "10 000 a second", ResetRate},
	})
}
