package handshake

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/stretchr/testify/require"
)

const (
	testConv = 0x04030201
	tokenA   = 0x11
	tokenB   = 0x22
)

// open is the peer of a server whose client's address is validated.
var open = Peer{Waiting: true}

// party is an Exchange with what surrounds it.
type party struct {
	t        *testing.T
	x        *Exchange
	app      *protect.TLS
	r        Result // all so far
	inFlight int    // times that TLS has worked
}

// newParty returns an end that has not begun.
func newParty(t *testing.T, config *tls.Config) *party {
	scheme := protect.NewScheme(nil, true, nil)
	_, app, keys := scheme.Session(testConv)
	return &party{t: t, app: app, x: NewExchange(testConv, config, app, keys)}
}

// dialler returns the dialling end, which has begun.
func dialler(t *testing.T, config *tls.Config, info wire.Signal) *party {
	p := newParty(t, config)
	p.x.Dial(config, tokenA, info)
	p.work()
	return p
}

// work has TLS do what there is.
func (p *party) work() {
	for {
		w, ok := p.x.Next(&p.r)
		if !ok {
			return
		}
		p.inFlight++
		p.x.Worked(w.Run(), &p.r)
	}
}

// packets returns what p sends.
func (p *party) packets() (out [][]byte) {
	for n := p.x.Pending(); n > 0; n = p.x.Pending() {
		packet := make([]byte, n)
		require.True(p.t, p.x.Put(packet))
		require.LessOrEqual(p.t, n, PacketSize)
		out = append(out, packet)
	}
	return out
}

// input has p take a packet, whatever its level, and returns what came of it.
func (p *party) input(packet []byte) (r Result) {
	in := protect.Packet{Data: bytes.Clone(packet)}
	switch protect.LevelOf(packet) {
	case protect.Clear:
		if p.x.initial == nil {
			m, ok := Parse(packet, testConv)
			if !ok || m.Hello.Code == 0 {
				return r
			}
			k := protect.NewInitial(testConv, m.Hello.TS, false)
			if _, err := OpenInitial(k, bytes.Clone(packet)); err != nil {
				return r
			}
			p.x.Accept(k, tokenB, m.Hello.TS, serverInfo)
		}
		p.x.Input(InClear, &in, open, &r)
	case protect.Handshake:
		p.x.Input(Protected, &in, open, &r)
	default:
		if p.app.Open(&in) != nil {
			return r
		}
		p.x.Prove()
		require.True(p.t, wire.IsCrypto(in.Data))
		p.x.Ticket(in.Data, &r)
	}
	p.work()
	if r.Failed != nil {
		p.r.Failed, p.r.Remote = r.Failed, r.Remote
	}
	return r
}

var (
	clientInfo = wire.Signal{Code: wire.Info, SN: Version, TS: CapTLS | 4}
	serverInfo = wire.Signal{Code: wire.Info, SN: Version, TS: CapTLS | 8}
)

// exchange exchanges packets over a path that damages, loses, repeats and reorders
// them, until nothing more happens.
func exchange(t *testing.T, a, b *party, random *rand.Rand) {
	for round := range 200 {
		for _, ends := range [][2]*party{{a, b}, {b, a}} {
			packets := ends[0].packets()
			if random != nil {
				random.Shuffle(len(packets), func(i, j int) { packets[i], packets[j] = packets[j], packets[i] })
			}
			for _, p := range packets {
				if random == nil {
					ends[1].input(p)
					continue
				}
				for range random.IntN(3) {
					q := bytes.Clone(p)
					if random.IntN(4) == 0 {
						q[random.IntN(len(q))] ^= 1 << random.IntN(8)
					}
					ends[1].input(q)
				}
			}
			for _, early := range ends[1].x.Early() {
				ends[1].input(early)
			}
		}
		if _, over := b.x.Settle(true); over {
			if _, over := a.x.Settle(false); over {
				return
			}
		}
		if round%2 == 1 {
			for _, p := range []*party{a, b} {
				if p.x.initial != nil {
					p.x.Repeat(round / 50)
				}
			}
		}
	}
}

// Both ends agree whatever the path does to packets, and each has the other's INFO
// and token.
func TestExchange(t *testing.T) {
	for seed := range uint64(40) {
		client, server := configs(t)
		client.ClientSessionCache = tls.NewLRUClientSessionCache(1)
		a, b := dialler(t, client, clientInfo), newParty(t, server)
		defer a.x.Close()
		defer b.x.Close()
		var random *rand.Rand
		if seed > 0 {
			random = rand.New(rand.NewPCG(seed, 1))
		}
		exchange(t, a, b, random)
		require.True(t, a.r.Completed != nil && b.r.Completed != nil, "seed %d: %v %v", seed, a.r.Failed, b.r.Failed)
		require.Equal(t, serverInfo, a.r.Completed.Info)
		require.Equal(t, clientInfo, b.r.Completed.Info)
		require.EqualValues(t, tokenB, a.x.peerToken)
		require.Len(t, a.r.Completed.State.PeerCertificates, 1)
		packet := make([]byte, AckSize(a.app))
		require.True(t, PutAck(packet, a.app, testConv, 7))
		in := protect.Packet{Data: packet}
		require.NoError(t, b.app.Open(&in))
		m, ok := Parse(in.Data, testConv)
		require.True(t, ok && wire.IsCrypto(in.Data))
		require.EqualValues(t, 7, m.Una)
		_, again := TicketEnd(in.Data, testConv)
		require.False(t, again)
	}
}

// What is changed of the signals in the clear, by somebody who seals the packet
// again, has the handshake fail at one end or the other.
func TestExchangeIsBound(t *testing.T) {
	for _, ofClient := range []bool{true, false} {
		client, server := configs(t)
		a, b := dialler(t, client, clientInfo), newParty(t, server)
		defer a.x.Close()
		defer b.x.Close()
		change := func(p []byte) []byte {
			if protect.LevelOf(p) != protect.Clear {
				return p
			}
			p, err := OpenInitial(protect.NewInitial(testConv, tokenA, !ofClient), p)
			require.NoError(t, err)
			p[wire.HeaderSize+8] ^= 64 // capabilities
			at, _ := InitialAt(p)
			p = append(p, make([]byte, protect.InitialOverhead)...)
			binary.LittleEndian.PutUint32(p[at-4:], uint32(len(p)-at))
			protect.NewInitial(testConv, tokenA, ofClient).Seal(p, at)
			return p
		}
		for range 10 {
			for _, p := range a.packets() {
				if ofClient {
					p = change(p)
				}
				b.input(p)
			}
			for _, p := range b.packets() {
				if !ofClient {
					p = change(p)
				}
				a.input(p)
			}
		}
		local, remote := a, b
		if ofClient {
			local, remote = b, a
		}
		require.ErrorIs(t, local.r.Failed, ErrChanged)
		require.False(t, local.r.Remote)
		require.ErrorIs(t, remote.r.Failed, ErrChanged, "the alert says so")
		require.True(t, remote.r.Remote)
		require.True(t, a.x.Failed && b.x.Failed)
		require.Zero(t, a.x.Received()+b.x.Received())
	}
}

// A handshake that fails while TLS is at work holds nothing once that returns.
func TestExchangeFailsMeanwhile(t *testing.T) {
	client, server := configs(t)
	a, b := dialler(t, client, clientInfo), newParty(t, server)
	defer a.x.Close()
	for _, p := range a.packets() {
		b.input(p)
	}
	for _, p := range b.packets() {
		in := protect.Packet{Data: p}
		kind := InClear
		if protect.LevelOf(p) == protect.Handshake {
			kind = Protected
		}
		a.x.Input(kind, &in, open, &a.r)
	}
	w, ok := a.x.Next(&a.r)
	require.True(t, ok)
	_, again := a.x.Next(&a.r)
	require.False(t, again, "one at a time")
	a.x.fail(&a.r, tls.AlertError(alertInternalError), false)
	require.False(t, a.x.Worked(w.Run(), &a.r))
	require.Zero(t, a.x.Held())
	alert := a.packets()
	require.Len(t, alert, 1)
	m, ok := Parse(alert[0], testConv)
	require.True(t, ok)
	require.Equal(t, wire.Signal{Code: wire.Alert, SN: alertInternalError, TS: tokenB}, m.Alert, "in the clear: it has no keys")
	defer b.x.Close()
	require.NoError(t, b.input(alert[0]).Failed, "it has keys, and nothing in the clear counts")
}

// What answers HELLO without a seal counts if it echoes the token.
func TestExchangeUnsealed(t *testing.T) {
	plain := func(signals ...wire.Signal) []byte {
		b := make([]byte, len(signals)*wire.HeaderSize)
		for i, s := range signals {
			s.Encode(wire.Header{Conv: testConv, Wnd: window}, b[i*wire.HeaderSize:])
		}
		return b
	}
	welcome, noTLS := wire.Signal{Code: wire.Welcome, SN: 9, TS: tokenA}, wire.Signal{Code: wire.Info, SN: Version, TS: 1}
	for name, v := range map[string]struct {
		answer []byte
		times  int
		end    End
		failed error
		sends  int // packets besides HELLO
	}{
		"reset":        {plain(wire.Signal{Code: wire.Reset, TS: tokenA}), 1, Refused, nil, 0},
		"no TLS":       {plain(noTLS, wire.Signal{Code: wire.Reset, TS: tokenA}), 1, NoTLS, nil, 0},
		"abort":        {plain(wire.Signal{Code: wire.Abort, SN: tokenA}), 1, Reset, nil, 0},
		"other token":  {plain(wire.Signal{Code: wire.Abort, SN: tokenA + 1}), 5, GoesOn, nil, 0},
		"once":         {plain(welcome, noTLS), 1, GoesOn, nil, 0},
		"twice":        {plain(welcome, noTLS), 2, GoesOn, ErrNoTLS, 1},
		"legacy":       {plain(wire.Signal{}), 2, GoesOn, ErrNoTLS, 0},
		"version 1":    {plain(welcome, wire.Signal{Code: wire.Info, SN: VersionUnsealed, TS: CapTLS}), 1, GoesOn, tls.AlertError(AlertProtocolVersion), 1},
		"wrong length": {append(plain(wire.Signal{Code: wire.Abort, SN: tokenA}), plain(wire.Signal{Code: wire.Hello, SN: 1, TS: 1})[:20]...), 1, Reset, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			client, _ := configs(t)
			a := dialler(t, client, clientInfo)
			defer a.x.Close()
			hello := a.packets()
			require.Len(t, hello, 2, "a ClientHello with the post-quantum share")
			require.Len(t, hello[0], PacketSize)
			var r Result
			for range v.times {
				r = a.input(v.answer)
			}
			require.Equal(t, v.end, r.End)
			require.ErrorIs(t, r.Failed, v.failed)
			require.Len(t, a.packets(), v.sends)
			a.input(plain(wire.Signal{Code: wire.Cookie, SN: 5, TS: 6}))
		})
	}
	client, _ := configs(t)
	a := dialler(t, client, clientInfo)
	defer a.x.Close()
	cookie := wire.Signal{Code: wire.Cookie, SN: 5, TS: 6}
	require.Equal(t, cookie, a.input(plain(cookie)).Cookie)
	a.x.Cookie = cookie
	m, ok := Parse(a.packets()[0], testConv)
	require.True(t, ok)
	require.Equal(t, []wire.Signal{cookie, {Code: wire.Hello, TS: tokenA}, clientInfo}, []wire.Signal{m.Cookie, m.Hello, m.Info})
}

// The parameters travel as they are, may be longer, and not shorter.
func TestParams(t *testing.T) {
	p := Params{1, 2, 3, 4, 5, 6}
	b := p.Encode()
	require.Equal(t, []byte{1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0}, b)
	got, ok := DecodeParams(append(b, 1))
	require.True(t, ok)
	require.Equal(t, p, got)
	_, ok = DecodeParams(b[:23])
	require.False(t, ok)
}

func TestWholeClientHello(t *testing.T) {
	for _, v := range []struct {
		b         []byte
		whole, ok bool
	}{
		{nil, false, true},
		{[]byte{1}, false, true},
		{[]byte{2}, false, false},
		{[]byte{1, 0, 0, 2, 5}, false, true},
		{[]byte{1, 0, 0, 2, 5, 5}, true, true},
		{[]byte{1, 0, 0x40, 0}, false, false},
		{[]byte{1, 0, 0x3f, 0xfc}, false, true},
	} {
		whole, ok := wholeClientHello(v.b)
		require.Equal(t, []bool{v.whole, v.ok}, []bool{whole, ok}, "%x", v.b)
	}
}

// FuzzExchange has both ends take any packets at any time. They go on, or fail, and
// hold what they may.
func FuzzExchange(f *testing.F) {
	f.Add(uint64(1), []byte{1, 2, 3, 4, 81})
	f.Add(uint64(2), bytes.Repeat([]byte{1, 2, 3, 4, 84, 12, 0, 0}, 10))
	f.Fuzz(func(t *testing.T, seed uint64, data []byte) {
		client, server := configs(t)
		a, b := dialler(t, client, clientInfo), newParty(t, server)
		defer a.x.Close()
		defer b.x.Close()
		random := rand.New(rand.NewPCG(seed, 2))
		peer := Peer{Waiting: true, Unvalidated: random.IntN(2) == 0, Room: 16 << 10}
		for range 30 {
			for _, ends := range [][2]*party{{a, b}, {b, a}} {
				for _, p := range ends[0].packets() {
					ends[1].input(p)
				}
				p := protect.Packet{Data: bytes.Clone(data)}
				if len(data) >= 4 && random.IntN(2) == 0 {
					binary.LittleEndian.PutUint32(p.Data, testConv)
				}
				if ends[1].x.initial != nil {
					var r Result
					ends[1].x.Input(Kind(random.IntN(4)), &p, peer, &r)
					ends[1].work()
				}
				require.LessOrEqual(t, ends[1].x.Received(), maxEarlyBytes+Levels*maxHeld)
			}
		}
	})
}

// A dialling end that has sent nothing takes nothing. A ticket that is not
// acknowledged is sent again 6 times.
func TestExchangeBeforeAndAfter(t *testing.T) {
	client, server := configs(t)
	var r Result
	none := newParty(t, client)
	hello := dialler(t, client, clientInfo).packets()[0]
	damaged := bytes.Clone(hello)
	damaged[len(damaged)-1]++
	require.False(t, none.x.Input(InClear, &protect.Packet{Data: damaged}, open, &r))
	require.Equal(t, Result{Dropped: 1}, r)
	require.True(t, none.x.Input(InClear, &protect.Packet{Data: hello}, open, &r))
	require.Equal(t, BothDial, r.End, "the peer dials too")
	r = Result{}
	own := dialler(t, client, clientInfo)
	require.False(t, own.x.Input(InClear, &protect.Packet{Data: own.packets()[0]}, open, &r))
	require.Equal(t, Result{Damaged: 1}, r, "it was sent back")
	r = Result{Dropped: 1}
	client.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	a, b := dialler(t, client, clientInfo), newParty(t, server)
	for range 5 {
		for _, p := range a.packets() {
			b.input(p)
		}
		for _, p := range b.packets() {
			if !b.x.Done {
				a.input(p)
			}
		}
	}
	require.True(t, b.x.Done)
	require.True(t, b.x.Unacknowledged())
	require.True(t, b.x.Repeat(6))
	require.False(t, b.x.Repeat(7))
}

// What carries no bytes of the handshake brings none, nor does what comes when the
// handshake is done, or has failed.
func TestNothingIsTakenAfterwards(t *testing.T) {
	client, _ := configs(t)
	for name, test := range map[string]struct {
		done, failed, crypto bool
		level                Level
		want                 uint32
	}{
		"in time":                    {crypto: true, level: Handshake, want: 3},
		"no CRYPTO":                  {level: Handshake},
		"done":                       {done: true, crypto: true, level: Handshake},
		"done, the application keys": {done: true, crypto: true, level: Application, want: 3},
		"failed":                     {failed: true, crypto: true, level: Handshake},
	} {
		var r Result
		p := dialler(t, client, clientInfo)
		if p.x.Done = test.done; test.failed {
			p.x.fail(&r, ErrChanged, false)
		}
		p.x.take(test.level, &Message{Crypto: test.crypto, Data: []byte("abc")}, open, &r)
		require.Equal(t, test.want, p.x.streams[test.level].Received(), name)
	}
}

// The accepting end repeats its alert when something comes that shows that it was lost.
func TestAlertIsRepeated(t *testing.T) {
	_, server := configs(t)
	for _, test := range []struct{ dialled, remote, again bool }{{false, false, true}, {true, false, false}, {false, true, false}} {
		var r Result
		p := newParty(t, server)
		p.x.dialled, p.x.peerToken = test.dialled, tokenB
		p.x.fail(&r, ErrChanged, test.remote)
		p.x.owes = 0
		p.x.take(Handshake, new(Message), open, &r)
		require.Equal(t, test.again, p.x.owes == owesAlert, "%+v", test)
	}
}

// A dialling end answers a challenge under the handshake keys, once. The listening end
// tells the answer from others, and answers none.
func TestExchangeAnswersChallenges(t *testing.T) {
	client, server := configs(t)
	a, b := dialler(t, client, clientInfo), newParty(t, server)
	for _, p := range a.packets() {
		b.input(p)
	}
	for _, p := range b.packets() {
		a.input(p)
	}
	a.packets() // its last flight, which is lost
	challenge := func(from *party) []byte {
		head, tail := from.x.Protection.Overhead()
		p := make([]byte, head+wire.HeaderSize+tail)
		wire.Signal{Code: wire.Ping, SN: 7, TS: 9}.Encode(wire.Header{Conv: testConv, Wnd: window}, p[head:])
		require.NoError(t, from.x.Protection.Seal(p, nil))
		return p
	}
	a.input(challenge(b))
	answers := a.packets()
	require.Len(t, answers, 1)
	require.Empty(t, a.packets())
	require.Len(t, answers[0], len(challenge(b)))
	content, _, err := b.x.Protection.Keys.Open(answers[0])
	require.NoError(t, err)
	pong := wire.Signal{Code: wire.Pong, SN: 7, TS: 9}
	require.True(t, b.x.Answers(content, [2]wire.Signal{{}, pong}))
	require.True(t, b.x.Answers(content, [2]wire.Signal{pong, {}}))
	require.False(t, b.x.Answers(content, [2]wire.Signal{{Code: wire.Pong, SN: 7, TS: 8}, {}}))
	require.False(t, b.x.Answers(content[:wire.HeaderSize-1], [2]wire.Signal{}), "no answer is none")
	b.packets()
	b.input(challenge(a))
	require.Empty(t, b.packets())
}
