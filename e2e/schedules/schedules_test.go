package schedules

import (
	"bytes"
	"crypto/aes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// wire is how the packets of both ends are protected.
type wire struct {
	name   string
	config kcp.Config
	moves  bool // a session goes on when its client has another address
	faults []testenv.Act
	lives  []*conversation
}

// Nothing in a plain packet shows that it was damaged: that is left to the checksum of
// UDP, for which it is a packet that is lost.
var unchecked, checked = []testenv.Act{testenv.Drop, testenv.Duplicate, testenv.Hold, testenv.Overtake},
	[]testenv.Act{testenv.Drop, testenv.Duplicate, testenv.Hold, testenv.Overtake, testenv.Damage}

func scheduleWires(t *testing.T) []*wire {
	t.Helper()
	key := bytes.Repeat([]byte{5}, 16)
	gcm, err := crypt.AESGCM(key)
	require.NoError(t, err)
	block, err := aes.NewCipher(key)
	require.NoError(t, err)
	short := steadyTLS(t)
	short.CurvePreferences = []tls.CurveID{tls.X25519} // its HELLO is one packet
	reset := bytes.Repeat([]byte{9}, 32)
	return []*wire{
		{"plain", kcp.Config{}, false, unchecked, allLives},
		{"cfb", kcp.Config{Cipher: crypt.CFB(block)}, false, checked, allLives},
		{"aes-gcm", kcp.Config{Cipher: gcm}, true, checked, allLives},
		{"tls", kcp.Config{TLS: steadyTLS(t), StatelessResetKey: reset}, true, checked, allLives},
		{"tls-x25519", kcp.Config{TLS: short, StatelessResetKey: reset}, true, checked, allLives[:4]},
		{"fec", kcp.Config{Cipher: gcm, FEC: kcp.FEC{Data: 2, Parity: 1}}, true, checked, allLives},
		{"legacy", kcp.Config{}, false, unchecked, legacyLives},
	}
}

// steadyTLS is TLS with signatures of one size, so that packets are the same in number
// and size in each run.
func steadyTLS(t *testing.T) *tls.Config {
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     []string{"server"},
		NotBefore:    testenv.BubbleTime().AddDate(-1, 0, 0),
		NotAfter:     testenv.BubbleTime().AddDate(100, 0, 0), // and in real time
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}},
		RootCAs:      roots, ServerName: "server", SessionTicketsDisabled: true,
	}
}

// budget is how many schedules are tried. Of the deepest ones it is one in so many,
// which the seed chooses.
type budget struct {
	depth, one           int // faults
	eventDepth, eventOne int // faults beside an event
	extra, extraOne      int // faults, in the first conversation of a wire
}

func scheduleBudget() budget {
	switch {
	case testenv.Repeated():
		return budget{1, 40, 0, 40, 1, 40}
	case testing.Short():
		return budget{1, 8, 0, 8, 1, 8}
	case !testenv.InFull():
		return budget{1, 1, 0, 1, 2, 100}
	}
	return budget{3, 200, 1, 1, 3, 4}
}

// Schedules: every placement of a few faults on the packets of a short session.
//
// A fault loses a packet, has it arrive twice, holds it for 300 ms, or for 1 ms so that
// the next ones overtake it, or flips one of its bits. Beside the faults there may be an
// event: the client has another address from a packet on, or the server is killed before
// one leaves, and begun anew. Both ends run in virtual time over a path of 20 ms. These
// are the rules for each run:
//
//   - Bytes. What an end reads is what the other has written, from the first byte on.
//     Messages are whole; none comes twice, or out of an order that was promised. A
//     datagram is one that was sent. It comes once, or if the wire has no packet
//     numbers, as often as there were faults besides.
//   - Ends. io.EOF comes after the last byte. Without an event that ends sessions no
//     call fails. Such an event is a killed server, or a move on a wire that does not
//     authenticate packets. Then the errors are those of package kcp for a peer that is
//     gone or has forgotten the session, and a second Dial and conversation succeed. If
//     a client has closed after it has moved, the server need not know (docs/calls.md):
//     its Close may return ErrNotDelivered, Shutdown may count it, and its session may
//     stay for 45 s.
//   - Times. All has been said within 8 s, or after such an event, within the time
//     after which a peer counts as lost more. A message is not read later after its
//     lifetime than the path takes, unless a fault has held it, or it waited for Accept,
//     for one before it or for the validation of an address. A Ping says no less than
//     the path takes.
//   - Receipts. Each message that was taken has exactly one. If it is nil, the message
//     has arrived. That of a message without a lifetime is nil if no call may fail.
//   - Sessions. Each Dial makes one at the server, and Accept returns it once. The first
//     packets of a client that moves may make a half-open one besides.
//   - What is left. Within 8 s no session is there, no byte is held or counted, and
//     nothing is sent any more. When the endpoints are closed no goroutine is left: it
//     would be a deadlock of the bubble.
//
// A run that breaks a rule prints what gives it again: KCP_SCHEDULE with its faults and
// KCP_SEED, together with -run and the name of the subtest.
func TestSchedules(t *testing.T) {
	testenv.Simulated(t)
	x := &explorer{seed: scheduleSeed(t), budget: scheduleBudget(), room: make(chan struct{}, runtime.GOMAXPROCS(0))}
	begun := time.Now()
	t.Cleanup(func() { // when all subtests are over
		t.Logf("seed %d: %d schedules, %d failing, %v", x.seed, x.runs.Load(), x.failing.Load(), time.Since(begun).Round(time.Second/10))
	})
	for _, w := range scheduleWires(t) {
		t.Run(w.name, func(t *testing.T) {
			for _, l := range w.lives {
				t.Run(l.name, func(t *testing.T) {
					t.Parallel()
					s := &scene{explorer: x, t: t, wire: w, life: l}
					if one, ok := os.LookupEnv("KCP_SCHEDULE"); ok {
						s.alone(one)
						return
					}
					s.explore()
				})
			}
		})
	}
}

// Schedules that have once broken a rule. The ACKs that tell the server that the client
// had all of its data came late, and behind a gap that CLOSE passed.
func TestSchedulesMended(t *testing.T) {
	testenv.Simulated(t)
	for text, seed := range map[string]uint64{
		"c7:late s6:drop c16:hold": 9, "c7:drop s6:drop c13:hold": 9, "c3:drop s5:damage c22:damage": 10,
	} {
		plan, err := testenv.ParseSchedule(text)
		require.NoError(t, err)
		for _, w := range scheduleWires(t) {
			for _, l := range w.lives {
				if l.name == "streams" {
					_, failures := runSchedule(t, w, l, plan, seed)
					require.Empty(t, failures, "%s %q", w.name, text)
				}
			}
		}
	}
}

// scheduleSeed is another one each day, unless KCP_SEED has it.
func scheduleSeed(t *testing.T) uint64 {
	if s := os.Getenv("KCP_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
		return seed
	}
	return uint64(time.Now().Unix() / (24 * 60 * 60))
}

// explorer is what all scenes share.
type explorer struct {
	seed   uint64
	budget budget
	room   chan struct{} // for one run each

	runs, failing atomic.Int64
}

// scene is one conversation over one wire.
type scene struct {
	*explorer
	t    *testing.T
	wire *wire
	life *conversation

	failed atomic.Int64
}

// mostFailures is how many schedules of a scene may fail before it ends.
const mostFailures = 20

// try runs one schedule, and returns what was sent.
func (s *scene) try(plan testenv.Schedule) []testenv.Packet {
	s.room <- struct{}{}
	defer func() { <-s.room }()
	sent, failures := runSchedule(s.t, s.wire, s.life, plan, s.seed)
	s.runs.Add(1)
	if len(failures) > 0 {
		s.failing.Add(1)
		s.failed.Add(1)
		s.t.Errorf("KCP_SEED=%d KCP_SCHEDULE=%q go test ./e2e/schedules -run 'TestSchedules$/%s/%s$'", s.seed, plan, s.wire.name, s.life.name)
		for _, f := range failures {
			s.t.Log("  ", f)
		}
	}
	return sent
}

// alone runs the schedule of a text, and shows it.
func (s *scene) alone(text string) {
	plan, err := testenv.ParseSchedule(text)
	require.NoError(s.t, err)
	s.t.Logf("seed %d, %q: sent %v", s.seed, plan, s.try(plan))
}

// explore tries the schedules of the budget.
func (s *scene) explore() {
	first := s.try(nil)
	b := s.budget
	depth, one := b.depth, b.one
	if s.life == s.wire.lives[0] {
		depth, one = b.extra, b.extraOne
	}
	var all sync.WaitGroup
	defer all.Wait()
	grow := func(roots []testenv.Schedule, depth, one int) {
		for part := range cap(s.room) {
			all.Go(func() {
				for i := part; i < len(roots); i += cap(s.room) {
					s.grow(roots[i], depth, one)
				}
			})
		}
	}
	grow(testenv.Schedule(nil).Extend(first, s.wire.faults), depth-1, one)
	if s.wire.name != "legacy" {
		grow(testenv.Schedule(nil).Events(first, testenv.Client, testenv.Move), b.eventDepth, b.eventOne)
		grow(testenv.Schedule(nil).Events(first, testenv.Client, testenv.Kill), b.eventDepth, b.eventOne)
		grow(testenv.Schedule(nil).Events(first, testenv.Server, testenv.Kill), b.eventDepth, b.eventOne)
	}
}

// grow tries a schedule, and all with up to so many faults more.
func (s *scene) grow(plan testenv.Schedule, more, one int) {
	if s.failed.Load() >= mostFailures {
		return
	}
	name := fmt.Sprint(s.wire.name, " ", s.life.name, " ", plan)
	if more == 0 && !testenv.InShare(name, s.seed, uint64(one)) {
		return
	}
	sent := s.try(plan)
	if more > 0 {
		for _, next := range plan.Extend(sent, s.wire.faults) {
			s.grow(next, more-1, one)
		}
	}
}
