package takeover

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// strangers are sockets that send the server what no honest peer does.
type strangers struct {
	rng   *rand.Rand
	convs []uint32 // of honest sessions
}

// Commands of segments.
const (
	cmdWask = 83
	cmdWins = 84
)

// packet returns the next packet of a stranger.
func (s *strangers) packet() []byte {
	conv := s.rng.Uint32N(200)
	if s.rng.IntN(2) == 0 {
		conv = s.convs[s.rng.IntN(len(s.convs))]
	}
	random := make([]byte, s.rng.IntN(1400))
	for i := range random {
		random[i] = byte(s.rng.Uint32())
	}
	switch s.rng.IntN(6) {
	case 0:
		return random
	case 1: // HELLO, and INFO: a half-open session
		return testenv.PacketOf(s.rng.Uint32(), testenv.Segment(cmdWask, 1, s.rng.Uint32(), 0, 0, ""), testenv.Segment(cmdWins, 2, 0, 2, 0, ""))
	case 2: // a signal of any kind
		return testenv.PacketOf(conv, testenv.Segment(cmdWins, uint8(s.rng.Uint32()), s.rng.Uint32(), s.rng.Uint32(), s.rng.Uint32(), ""))
	case 3:
		return testenv.PacketOf(conv, testenv.Push(s.rng.Uint32N(100), 0, string(random)))
	case 4:
		return testenv.PacketOf(conv, testenv.Ack(s.rng.Uint32N(100), 0, s.rng.Uint32N(100)))
	}
	return binary.LittleEndian.AppendUint32(random[:len(random):len(random)], conv)
}

// attack sends from some sockets until the test ends. It returns when the first packets
// have left.
func attack(t *testing.T, addr net.Addr, seed uint64, convs ...uint32) {
	s := &strangers{rng: rand.New(rand.NewPCG(seed, 0)), convs: convs}
	var socks []net.Conn
	for range 32 {
		c, err := net.Dial("udp4", addr.String())
		require.NoError(t, err)
		socks = append(socks, c)
	}
	begun, end := make(chan struct{}), make(chan struct{})
	var sending sync.WaitGroup
	sending.Go(func() {
		pace := time.NewTicker(5 * time.Millisecond)
		defer pace.Stop()
		for n := 0; ; n++ {
			for range 10 {
				_, _ = socks[s.rng.IntN(len(socks))].Write(s.packet()) // nobody may listen
			}
			if n == 10 {
				close(begun)
			}
			select {
			case <-pace.C:
			case <-end:
				return
			}
		}
	})
	t.Cleanup(func() {
		close(end)
		sending.Wait()
		for _, c := range socks {
			_ = c.Close()
		}
	})
	<-begun
}

// traffic is a session that echoes until it is told to stop.
type traffic struct {
	*client
	stop   chan struct{}
	failed chan error
}

// busy opens a session with the process of that name, and keeps it busy.
func busy(t *testing.T, addr net.Addr, kind, name string) *traffic {
	s := &traffic{dial(t, addr, kind, name), make(chan struct{}), make(chan error, 1)}
	go func() {
		for seed := uint64(1); ; seed++ {
			select {
			case <-s.stop:
				s.failed <- nil
				return
			default:
			}
			want := testenv.Content(seed, 3000)
			got := make([]byte, len(want))
			_, err := s.Write(want)
			for n := 0; err == nil && n < len(got); {
				var m int
				m, err = s.Read(got[n:])
				n += m
			}
			if err == nil && !slices.Equal(want, got) {
				err = fmt.Errorf("wrong bytes, seed %d", seed)
			}
			if err != nil {
				s.failed <- err
				return
			}
		}
	}()
	return s
}

// goesOn checks that the session has lost nothing, and still echoes.
func (s *traffic) goesOn() {
	s.t.Helper()
	close(s.stop)
	require.NoError(s.t, <-s.failed)
	s.echoes(10_000)
}

// signal sends the process a signal.
func (p *process) signal(s syscall.Signal) { require.NoError(p.t, p.cmd.Process.Signal(s)) }

// peak returns the most memory that the process has had, in bytes.
func (p *process) peak() int {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	require.NoError(p.t, err)
	m := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	require.NotNil(p.t, m)
	kb, err := strconv.Atoi(string(m[1]))
	require.NoError(p.t, err)
	return kb << 10
}

// peakMemory is what a process may take at most, in bytes: that of a Go program, of the
// half-open sessions that strangers make, and of the race detector.
const peakMemory = 400 << 20

// serves checks that one process serves all that come, and returns its name.
func serves(t *testing.T, addr net.Addr, kind string) (name string) {
	t.Helper()
	for range 8 {
		config := configOf(kind)
		config.Shards = 0
		c, err := kcp.Dial("udp4", addr.String(), config)
		require.NoError(t, err)
		got, err := greet(c, wantsEcho)
		require.NoError(t, err)
		if name != "" {
			require.Equal(t, name, got, "two processes read the socket")
		}
		name = got
		(&client{c, t, 1}).echoes(3000)
		require.NoError(t, c.Close())
	}
	return name
}

// placement is when what is done to which process.
type placement struct {
	kind, at string
	late     bool
	victim   string
	stops    bool // SIGSTOP, and later SIGCONT, in place of SIGKILL
}

func (p placement) String() string {
	return fmt.Sprint(p.kind, "/", p.victim, map[bool]string{false: " killed", true: " stopped"}[p.stops],
		map[bool]string{false: " in place of ", true: " after "}[p.late], p.at)
}

// placements returns all, or those that go with -short.
func placements() (all []placement) {
	const steps = "OASrNCcF"
	for _, kind := range []string{"plain", "aes-gcm", "tls"} {
		for n := range len(steps) {
			for i := range 8 {
				all = append(all, placement{kind, steps[:n+1], i&1 != 0, []string{"predecessor", "successor"}[i>>1&1], i&4 != 0})
			}
		}
	}
	if !testing.Short() {
		return all
	}
	return []placement{
		{"plain", "OASrNC", true, "predecessor", false},
		{"aes-gcm", "OASrNCc", true, "successor", false},
		{"tls", "OASrNCcF", true, "predecessor", false},
		{"plain", "OASrNCc", false, "predecessor", true},
		{"aes-gcm", "OASrNCcF", true, "predecessor", true},
		{"tls", "OASrNC", true, "successor", true},
	}
}

// Either process is killed, or stopped for a while, at each step of the exchange, while
// strangers send what they like. No session is lost whose process lives, no two processes
// read the socket, and memory is bounded.
func TestKillUnderAttack(t *testing.T) {
	for i, at := range placements() {
		t.Run(at.String(), func(t *testing.T) {
			t.Parallel()
			underAttack(t, at, uint64(i))
		})
	}
}

func underAttack(t *testing.T, at placement, seed uint64) {
	p := launch(t, at.kind, "p", "").ready()
	sessions := []*traffic{busy(t, p.addr, at.kind, "p"), busy(t, p.addr, at.kind, "p"), busy(t, p.addr, at.kind, "p")}
	attack(t, p.addr, seed, sessions[0].Conv(), sessions[1].Conv(), sessions[2].Conv())
	old, new, next := p.meet("next")
	victim, lives := p, next
	if at.victim == "successor" {
		victim, lives = next, p
	}
	act := victim.kill
	if at.stops {
		act = func() { victim.signal(syscall.SIGSTOP) }
	}
	(&exchange{at: at.at, late: at.late, act: act}).relay(old, new)
	if at.stops {
		underStop(t, at, p, next, sessions)
	} else {
		underKill(t, at, lives, sessions)
	}
}

// taken reports whether the successor has got FinalKind, and reads the sockets.
func (p placement) taken() bool { return p.at == "OASrNCcF" && p.late }

// left reports whether the predecessor may have sent FinalKind. Then it serves the
// sessions that it has, but no others.
func (p placement) left() bool { return p.at == "OASrNCcF" || p.at == "OASrNCc" && p.late }

// underStop checks what follows after a process was stopped, which goes on later.
func underStop(t *testing.T, at placement, p, next *process, sessions []*traffic) {
	outcome := map[bool]string{false: "failed", true: "ready"}[at.taken()]
	victim := p
	if at.victim == "predecessor" {
		next.says(outcome) // a process that hangs is not dead: it will read again
	} else {
		victim = next
	}
	victim.signal(syscall.SIGCONT)
	for _, s := range sessions {
		s.goesOn()
	}
	if at.victim == "successor" {
		next.says(outcome)
	}
	if at.taken() {
		require.Equal(t, "next", serves(t, p.addr, at.kind))
		require.Less(t, next.peak(), peakMemory)
	} else {
		carriesOn(t, at, p)
	}
	require.Less(t, p.peak(), peakMemory)
}

// underKill checks what follows the death of a process.
func underKill(t *testing.T, at placement, lives *process, sessions []*traffic) {
	if at.victim == "successor" {
		for _, s := range sessions {
			s.goesOn()
		}
		carriesOn(t, at, lives)
		return
	}
	// The successor has confirmed when it was told to commit, and knows that the other
	// has died.
	if told := at.at == "OASrNC" && at.late || strings.Contains(at.at, "c"); !told {
		require.NotEmpty(t, lives.says("failed"))
		<-lives.ended
		return
	}
	lives.ready()
	require.Equal(t, "next", serves(t, lives.addr, at.kind))
	for _, s := range sessions {
		require.Error(t, <-s.failed, "its process is dead")
	}
	require.Less(t, lives.peak(), peakMemory)
	require.Equal(t, "last", serves(t, lives.handsOver("last").addr, at.kind))
}

// carriesOn checks that the predecessor goes on without its successor, and can hand over
// to another.
func carriesOn(t *testing.T, at placement, p *process) {
	t.Helper()
	if !at.left() {
		require.Equal(t, "p", serves(t, p.addr, at.kind))
	}
	require.Less(t, p.peak(), peakMemory)
	require.Equal(t, "last", serves(t, p.handsOver("last").addr, at.kind))
}
