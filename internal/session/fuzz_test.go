package session

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/testenv/life"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/stats"
)

// sessionLink is two sessions and a link between them, which a script drives.
type sessionLink struct {
	*machineWorld
	*life.Session
	parties [2]*life.Party
	luck    *rand.Rand
	wire    [2][]crossing // to ends[i]
	past    [2][]crossing // that have arrived, or were lost

	rests [2]bool
	late  [2]time.Duration // of wake-ups
	slow  [2]bool          // TLS has no time
	seen  [2]closing.Phase

	delay, jitter time.Duration
	loss          float64
	path          int  // largest packet that passes; 0: any
	moved         bool // the first end has, to another address
}

// maxPast is how many packets are kept that may come again.
const maxPast = 64

// crossing is a packet on its way.
type crossing struct {
	data []byte
	from netip.AddrPort
	to   netip.AddrPort
	at   time.Duration
}

// sessionSteps are what a script of sessions is drawn of.
var sessionSteps = life.Weighted(`write 6 open 2 fin 1 stopread 1 stopwrite 1 reset 1 endstream 1 datagram 2
	close 1 background 1 abort 1 rate 1 window 1 mtu 1 wait 10 rest 2 loss 1 delay 1 jitter 1 path 1
	again 2 hold 2 lose 2 damage 1 move 1 rerouted 1 late 1 slow 1 full 1 shed 1 small 1 unread 1 backlog 1`)

// configOf returns the settings of both ends.
func configOf(world uint32) *worldConfig {
	mode, shape := byte(world>>8), byte(world)
	c := defaults()
	choose := func(field *int, of ...int) (chosen bool) {
		n := of[int(shape)&(len(of)-1)]
		if shape >>= 2; n != 0 {
			*field = n
		}
		return n != 0
	}
	choose(&c.SendWindow, 0, 8, 32, 1024)
	choose(&c.ReceiveWindow, 0, 128, 256, 1024)
	if n := machine.NoDelay(shape&3) % (machine.NoDelayTurbo + 1); n != machine.NoDelayDefault {
		c.NoDelay = n
	}
	shape >>= 2
	choose(&c.MTU, 0, 600, 0, 1300)
	shape = mode >> 3
	c.fixedWrite = choose(&c.WriteBuffer, 0, 0, 8192, 65536)
	shape = byte(world)
	c.MessageMode, c.PeerTimeout, c.MaxBuffered = mode&4 > 0, 10*time.Minute, 1<<20
	c.MaxLinger = max(2*time.Minute, time.Duration(c.WriteBuffer)*time.Second/(32<<10))
	c.alwaysValidate = mode&32 > 0
	if mode&64 > 0 {
		c.MaxRate = 50_000
	}
	if c.fixedRead = mode&128 > 0; c.fixedRead {
		c.Redundancy, c.StreamReceiveBuffer = 0.5, 64<<10
	}
	var err error
	switch mode & 3 {
	case 1:
		c.FEC = stats.Ratio{Data: 3, Parity: 1 + int(shape&1)}
	case 2:
		c.cipher, err = crypt.ChaCha20Poly1305(bytes.Repeat([]byte{7}, 32))
	case 3:
		if c.TLS = minTLS(testenv.TLS()); c.MTU == 600 {
			c.MTU = 1250
		}
	}
	if err != nil {
		panic(err)
	}
	return c
}

func newSessionLink(t testing.TB, world uint32) *sessionLink {
	l := &sessionLink{delay: 10 * time.Millisecond, luck: rand.New(rand.NewPCG(uint64(world), 0))}
	config := configOf(world)
	l.machineWorld = newMachineWorld(t, uint64(world), config, config)
	l.send = l.put
	l.Session = &life.Session{
		Fail:  func(text string) { t.Fatal(text) },
		Whole: true, Mode: config.MessageMode, Mixed: true, Codes: []uint64{streams.Refused, streams.TooLarge},
	}
	if config.cipher == nil && config.TLS == nil {
		l.Copies = len(l.past) * maxPast // packets have no numbers
	}
	l.Begin()
	for side, e := range l.ends {
		l.parties[side] = life.NewParty(l.Session, side, e)
		l.parties[side].Most = 1 << 16
	}
	l.dial(7, false)
	return l
}

// put lets a packet begin its way.
func (l *sessionLink) put(from *machineEnd, d *udp.Datagram) {
	to := 1 - from.side
	p := crossing{bytes.Clone(d.Buf), from.addr, d.Addr, l.now + l.delay}
	if l.jitter > 0 {
		p.at += time.Duration(l.luck.Int64N(int64(l.jitter)))
	}
	if lost := l.luck.Float64() < l.loss; lost || l.path > 0 && len(p.data) > l.path && !d.Cut {
		l.remember(to, p)
	} else if len(l.wire[to]) < 4096 {
		l.wire[to] = append(l.wire[to], p)
	}
}

// remember keeps a packet that may come again.
func (l *sessionLink) remember(to int, p crossing) {
	if len(l.past[to]) >= maxPast {
		l.past[to] = l.past[to][1:]
	}
	l.past[to] = append(l.past[to], p)
}

// run lets time pass.
func (l *sessionLink) run(d time.Duration) {
	for until := l.now + d; ; {
		at := l.next()
		if at == 0 || at > until {
			l.now = until
			return
		}
		l.now = max(l.now, at)
		l.step()
	}
}

// next returns when something happens next; 0: never.
func (l *sessionLink) next() (next time.Duration) {
	sooner := func(at time.Duration) {
		if next == 0 || at < next {
			next = at
		}
	}
	for i, e := range l.ends {
		if e.wakeAt > 0 {
			sooner(e.wakeAt + l.late[i])
		}
		for _, p := range l.wire[i] {
			sooner(p.at)
		}
	}
	return next
}

// step lets happen what is due.
func (l *sessionLink) step() {
	for i, e := range l.ends {
		var due []crossing
		l.wire[i] = slices.DeleteFunc(l.wire[i], func(p crossing) bool {
			if p.at <= l.now {
				due = append(due, p)
			}
			return p.at <= l.now
		})
		for _, p := range due {
			if l.remember(i, p); p.to == e.addr {
				e.receive(p.data, p.from)
			}
		}
		e.respond()
		if !l.slow[i] {
			e.works()
		}
		for n := 0; e.wakeAt > 0 && e.wakeAt+l.late[i] <= l.now; n++ {
			if e.wakes(); n > 20 {
				l.t.Fatalf("end %d asks to be woken at once after 20 wake-ups", i)
			}
		}
		l.receive(i)
		l.check(e)
	}
}

// receive reads what end i has, if its application reads.
func (l *sessionLink) receive(i int) {
	e, p := l.ends[i], l.parties[i]
	if e.conn == nil {
		return
	}
	p.Drain(life.Datagrams)
	if e.acceptStreams(p); l.rests[i] {
		return
	}
	p.Drain(0)
	for _, id := range p.Streams() {
		p.Drain(id)
	}
}

// perform carries out one step of the script.
func (l *sessionLink) perform(s life.Step) {
	e := l.ends[s.End]
	switch s.Op {
	case life.Wait:
		l.run(time.Duration(s.N) * time.Millisecond)
	case life.Loss:
		l.loss = float64(s.N) / 100
	case life.Delay:
		l.delay = time.Duration(s.N) * time.Millisecond
	case life.Jitter:
		l.jitter = time.Duration(s.N) * 8 * time.Millisecond
	case life.Path:
		l.path = s.N
	case life.Again, life.Hold, life.Lose, life.Damage:
		l.disturb(s)
	default:
		// Before its session is offered to the application, that has not got it.
		if e.conn != nil && e.conn.hs.Role != opening.Accepted && !l.strain(e, s) {
			l.parties[s.End].Do(s)
		}
	}
	for _, e := range l.ends {
		l.check(e)
	}
}

// disturb repeats, delays, loses or damages a packet on its way, or one that has come
// before.
func (l *sessionLink) disturb(s life.Step) {
	wire, past := &l.wire[s.End], l.past[s.End]
	if s.Op == life.Again && s.How&1 > 0 && len(past) > 0 {
		p := past[s.N%len(past)]
		p.at = l.now
		*wire = append(*wire, p)
		return
	}
	if len(*wire) == 0 {
		return
	}
	k := s.N % len(*wire)
	p := (*wire)[k]
	switch s.Op {
	case life.Again:
		p.at += time.Duration(s.How) * time.Millisecond
		*wire = append(*wire, p)
	case life.Hold:
		(*wire)[k].at += time.Duration(s.How) * time.Millisecond
	case life.Lose:
		*wire = slices.Delete(*wire, k, k+1)
	case life.Damage:
		if !l.ends[0].shared.Protection.None { // else it counts
			p.data = bytes.Clone(p.data)
			p.data[s.N*7%len(p.data)] ^= 1 << (s.How & 7)
			(*wire)[k] = p
		}
	}
}

// strain makes time or memory short, has the interface refuse packets, or moves an end.
// It reports false if a step is none of that.
func (l *sessionLink) strain(e *machineEnd, s life.Step) bool {
	load := &e.shared.Load
	switch s.Op {
	case life.Rest:
		l.rests[e.side] = s.How&3 > 0
		l.receive(e.side)
	case life.Full:
		load.Buffered.Add(-e.others)
		e.others = int64(s.N/8) * int64(e.shared.Config.MaxBuffered) * 9 / 8
		load.Buffered.Add(e.others)
		load.Share.Store(int64(s.N/8) * LeastShare)
	case life.Shed:
		l.Broken = e.conn.ShedMemory() || l.Broken
		e.carryOut()
	case life.Small:
		e.limit = s.N
	case life.Unread:
		e.delayed = !e.delayed
	case life.Backlog:
		e.backlog = !e.backlog
	case life.Move:
		if a := &l.ends[0].addr; l.ends[0].shared.Migrates {
			l.moved, *a = true, netip.AddrPortFrom(a.Addr(), a.Port()+1)
		}
	case life.Rerouted:
		e.conn.Rerouted(s.N&1 > 0)
		e.carryOut()
	case life.Late:
		l.late[e.side] = time.Duration(s.N) * time.Millisecond
	case life.Slow:
		l.slow[e.side] = s.N&1 > 0
	default:
		return false
	}
	return true
}

// playSessions plays a script.
func playSessions(t testing.TB, script life.Script) {
	defer func() {
		if t.Failed() {
			t.Logf("repeat with KCP_SCRIPT=%q go test -run 'TestSessionMachines$' .", script)
		}
	}()
	l := newSessionLink(t, script.World)
	for _, s := range script.Steps {
		l.perform(s)
	}
	l.finish()
}

// Two sessions on one bad link, with their streams, messages and datagrams, settings,
// ends, short memory and late wake-ups. What is read is what was written. What a session
// counts is what it has. It is woken when something is due, sends nothing after its end,
// and holds nothing then. On a good link all arrives, unless an error says why not.
func FuzzSessions(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(sessionScript(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) { playSessions(t, sessionSteps.Of(b)) })
}

// sessionScript returns a random script as bytes.
func sessionScript(seed uint64) []byte {
	random := rand.New(rand.NewPCG(seed, 6))
	b := sessionSteps.Random(random, 5+random.IntN(100))
	b[2] = b[2]&^3 | byte(seed)&3
	return b
}

// mendedSessions are scripts that have once broken a rule.
var mendedSessions = []string{
	"0645a843 b:wait:0,60 a:write:0,12600,4 b:wait:0,60 a:shed", // an account of memory
}

// Random scripts; see FuzzSessions. KCP_SCRIPT is one alone.
func TestSessionMachines(t *testing.T) {
	t.Parallel()
	testenv.Sequential(t)
	if text := os.Getenv("KCP_SCRIPT"); text != "" {
		playSessions(t, life.MustParse(text))
		return
	}
	for _, text := range mendedSessions {
		playSessions(t, life.MustParse(text))
	}
	for seed := range testenv.Fewer(4000) {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { playSessions(t, sessionSteps.Of(sessionScript(seed))) }) {
			t.Fatal("the number of the subtest is the seed")
		}
	}
}

// minTLS returns config as endpoints have it.
func minTLS(config *tls.Config) *tls.Config {
	config = config.Clone()
	config.MinVersion = tls.VersionTLS13
	return config
}
