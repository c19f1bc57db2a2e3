package session

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/liveness"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/testenv/life"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/internal/wire"
)

var rewriteTraces = flag.Bool("rewrite", false, "write what the traces of testdata come to")

// Traces of sessions: the files of testdata have commands, each with all that
// follows from it. docs/walks.md says how to read them.
func TestSessionTraces(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			got := playTrace(t, string(want))
			if *rewriteTraces {
				require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
				return
			}
			require.Equal(t, strings.Split(string(want), "\n"), strings.Split(got, "\n"), "go test -run TestSessionTraces -rewrite ./internal/session writes what is now")
		})
	}
}

// playTrace carries out the commands of a file, and returns it with what they come to.
func playTrace(t *testing.T, file string) string {
	var out strings.Builder
	s := &sessionTrace{t: t}
	after := false // an effect of the last command
	for _, line := range strings.Split(strings.TrimSuffix(file, "\n"), "\n") {
		switch {
		case strings.HasPrefix(line, "> "):
			after = true
			fmt.Fprintln(&out, line)
			for _, effect := range s.perform(strings.Fields(line[2:])) {
				fmt.Fprintln(&out, "    "+effect)
			}
		case after && strings.HasPrefix(line, "    "):
		default:
			after = false
			fmt.Fprintln(&out, line)
		}
	}
	return out.String()
}

// sessionTrace is two sessions, or one and a legacy peer, that a file drives.
type sessionTrace struct {
	*machineWorld
	t       *testing.T
	begun   time.Duration
	legacy  *machine.KCP // in the place of the server; nil: there is none
	wire    []*tracePacket
	sent    [2]int
	effects []string
	states  [2]string
	wakes   [2]time.Duration
	shows   bool // wake-ups
	path    int  // largest packet that passes; 0: any
}

// tracePacket is a packet on its way.
type tracePacket struct {
	name string
	to   int
	data []byte
	at   time.Duration
}

var traceSides = [2]string{"client", "server"}

// perform carries out a command, and returns what has come of it.
func (s *sessionTrace) perform(words []string) []string {
	s.effects = nil
	word := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	number := func(i int) int {
		n, err := strconv.Atoi(word(i))
		require.NoError(s.t, err, "%v", words)
		return n
	}
	if words[0] == "new" {
		s.begin(words[1:])
		return nil
	}
	switch words[0] {
	case "dial":
		s.dial(7, word(1) == "quietly")
	case "deliver":
		s.deliver(words[1:])
	case "drop":
		for _, name := range words[1:] {
			s.take(name)
		}
	case "wait":
		s.wait(s.duration(word(1)), false)
	case "run":
		s.wait(s.duration(word(1)), true)
	case "path":
		s.path = number(1)
	default:
		side := slices.Index(traceSides[:], words[0])
		require.GreaterOrEqual(s.t, side, 0, "%v", words)
		s.act(s.ends[side], word(1), words[2:])
	}
	s.look()
	return s.effects
}

// say adds an effect.
func (s *sessionTrace) say(format string, args ...any) {
	s.effects = append(s.effects, fmt.Sprintf(format, args...))
}

func (s *sessionTrace) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	require.NoError(s.t, err)
	return d
}

// begin begins anew.
func (s *sessionTrace) begin(options []string) {
	config, keepAlive := defaults(), time.Duration(0)
	*s = sessionTrace{t: s.t}
	legacy := false
	for _, o := range options {
		switch name, value, _ := strings.Cut(o, "="); name {
		case "legacy":
			legacy = true
		case "wakes":
			s.shows = true
		case "keepalive":
			keepAlive = s.duration(value)
		case "timeout":
			config.PeerTimeout = s.duration(value)
		default:
			s.t.Fatalf("unknown option %s", o)
		}
	}
	switch {
	case keepAlive != 0:
		config.KeepAlive = max(keepAlive, 0)
	case config.PeerTimeout < liveness.DefaultPeerTimeout:
		config.KeepAlive = max(config.PeerTimeout/2, 500*time.Millisecond)
	}
	s.machineWorld = newMachineWorld(s.t, 1, config, config)
	s.send = func(from *machineEnd, d *udp.Datagram) { s.put(from.side, d.Buf) }
	if s.begun = s.now; legacy {
		s.legacy = machine.New(7, func(p []byte) { s.put(1, p) })
		s.legacy.SetNoDelay(machine.NoDelayOn)
		s.legacy.SetClock(1000)
	}
}

// put lets a packet begin its way.
func (s *sessionTrace) put(side int, data []byte) {
	s.sent[side]++
	p := &tracePacket{fmt.Sprintf("%c%d", traceSides[side][0], s.sent[side]), 1 - side, slices.Clone(data), s.now + 10*time.Millisecond}
	size := ""
	if len(data) > 1200 {
		size = fmt.Sprintf(" (%d bytes)", len(data))
	}
	if s.path > 0 && len(data) > s.path {
		size = fmt.Sprintf(" (%d bytes: lost on the path)", len(data))
	} else {
		s.wire = append(s.wire, p)
	}
	s.say("%s sends %s: %s%s", traceSides[side], p.name, strings.Join(traceSegments(s.t, data), "; "), size)
}

// traceSegments returns the segments of a packet as text.
func traceSegments(t *testing.T, packet []byte) (texts []string) {
	for len(packet) > 0 {
		h := wire.DecodeHeader(packet)
		payload, ok := h.Payload(packet[wire.HeaderSize:])
		require.True(t, ok)
		packet = packet[wire.HeaderSize+len(payload):]
		text := ""
		if sig, is := h.Signal(); is {
			text = sig.Code.String()
			if code := sig.Code &^ wire.Answer; code == wire.Fin || code == wire.Close {
				text += fmt.Sprintf(" sn=%d", sig.SN)
			} else if code == wire.Probe {
				text += fmt.Sprintf(" size=%d", sig.TS)
			}
			if len(payload) > 0 && sig.Code == wire.Probe {
				text += " padding"
			}
			texts = append(texts, text)
			continue
		}
		switch h.Cmd {
		case wire.CmdPush:
			text = fmt.Sprintf("push sn=%d una=%d len=%d", h.SN, h.Una, len(payload))
		case wire.CmdAck:
			text = fmt.Sprintf("ack sn=%d una=%d", h.SN, h.Una)
		case wire.CmdWask:
			text = "wask"
		case wire.CmdWins:
			text = fmt.Sprintf("wins una=%d wnd=%d", h.Una, h.Wnd)
		case wire.CmdPiece:
			text = fmt.Sprintf("piece sn=%d una=%d len=%d", h.SN, h.Una, len(payload))
		}
		if wire.IsStream(h.Cmd) {
			text = traceStream(&h, payload)
		}
		texts = append(texts, text)
	}
	return texts
}

// traceStream returns a segment of a stream as text. Stream 0 is the session itself.
func traceStream(h *wire.Header, payload []byte) string {
	what := ""
	if h.Cmd == wire.CmdStreamPiece {
		what, payload = "piece of ", payload[recovery.PieceHeader:]
	}
	n := len(payload) - streams.OwnHeader
	if s, data, ok := streams.Decode(payload); ok {
		n = len(data)
		what += [...]string{"data", "abandon", "fin", "reset", "stop", "credit", "open"}[s.Kind]
	} else {
		what += "data"
	}
	return fmt.Sprintf("%s of stream %d sn=%d una=%d len=%d", what, streams.ID(payload), h.SN, h.Una, n)
}

// take takes a packet off the wire.
func (s *sessionTrace) take(name string) *tracePacket {
	i := slices.IndexFunc(s.wire, func(p *tracePacket) bool { return p.name == name })
	if name == "last" {
		i = len(s.wire) - 1
	}
	require.GreaterOrEqual(s.t, i, 0, "packet %s is not on its way", name)
	p := s.wire[i]
	s.wire = slices.Delete(s.wire, i, i+1)
	return p
}

// deliver lets packets arrive; without names all that are on their way now.
func (s *sessionTrace) deliver(names []string) {
	if len(names) == 0 {
		for _, p := range s.wire {
			names = append(names, p.name)
		}
	}
	var arrived [2]bool
	for _, name := range names {
		p := s.take(name)
		if s.arrive(p); s.legacy == nil || p.to == 0 {
			arrived[p.to] = true
		}
	}
	for side, is := range arrived {
		if is {
			s.ends[side].respond()
		}
	}
}

// arrive lets a packet arrive.
func (s *sessionTrace) arrive(p *tracePacket) {
	if s.legacy == nil || p.to == 0 {
		s.ends[p.to].receive(p.data, s.ends[1-p.to].addr)
		return
	}
	s.legacy.SetClock(uint32(s.now.Milliseconds()))
	require.NoError(s.t, s.legacy.Input(p.data))
	s.legacy.Flush()
}

// wait lets time pass, in which packets arrive after 10 ms if they move.
func (s *sessionTrace) wait(d time.Duration, moves bool) {
	for until := s.now + d; ; {
		at := until
		for _, e := range s.ends {
			if e.wakeAt > 0 {
				at = min(at, e.wakeAt)
			}
		}
		for _, p := range s.wire {
			if moves {
				at = min(at, p.at)
			}
		}
		before := len(s.effects)
		passed := at > s.now
		s.now = max(at, s.now)
		var due []string
		for _, p := range s.wire {
			if moves && p.at <= s.now {
				due = append(due, p.name)
			}
		}
		if len(due) > 0 {
			s.deliver(due)
		}
		for _, e := range s.ends {
			e.wakes()
		}
		s.look()
		if len(s.effects) > before && passed {
			s.effects = slices.Insert(s.effects, before, fmt.Sprintf("after %v:", s.now-s.begun))
		}
		if s.now >= until && len(due) == 0 {
			return
		}
	}
}

// act has an end do something.
func (s *sessionTrace) act(e *machineEnd, verb string, args []string) {
	n := 0
	if len(args) > 0 {
		n, _ = strconv.Atoi(args[0])
	}
	name := traceSides[e.side]
	if s.legacy != nil && e.side == 1 {
		_, err := s.legacy.Send(make([]byte, n))
		require.NoError(s.t, err)
		s.legacy.SetClock(uint32(s.now.Milliseconds()))
		s.legacy.Flush()
		return
	}
	id, size := uint32(n), 0
	if len(args) > 1 {
		size, _ = strconv.Atoi(args[1])
	}
	buf, total := make([]byte, 1<<16), 0
	var err error
	switch verb {
	case "write":
		total, err = e.Write(0, make([]byte, n), false)
		require.Equal(s.t, n, total)
	case "read":
		for n := 1; err == nil && n > 0; total += n {
			n, err = e.Read(0, buf, false)
		}
		s.say("%s reads %d bytes%s", name, total, andError(err))
		err = nil
	case "closes-write":
		err = e.EndStream(0, life.Fin, 0)
	case "closes":
		err = e.Close(life.Close)
	case "aborts":
		err = e.Close(life.Abort)
	case "opens":
		id, err = e.OpenStream(life.StreamOptions{}, false)
		s.say("%s has stream %d", name, id)
	case "accepts":
		s.say("%s has stream %d", name, e.addStream(e.conn.streams.Accept()))
	case "writes-stream":
		total, err = e.Write(id, make([]byte, size), false)
		require.Equal(s.t, size, total)
	case "reads-stream":
		total, err = e.Read(id, buf, false)
		s.say("%s reads %d bytes%s", name, total, andError(err))
		err = nil
	case "resets-stream":
		err = e.EndStream(id, life.Reset, 7)
	case "moves":
		e.addr = netip.AddrPortFrom(e.addr.Addr(), e.addr.Port()+1)
	default:
		s.t.Fatalf("unknown command %s %s", name, verb)
	}
	require.NoError(s.t, err)
}

// andError returns what is said of an error behind what was read.
func andError(err error) string {
	if err == nil || err == ErrWouldBlock {
		return ""
	}
	return ", and then: " + err.Error()
}

// look says what has changed of the sessions besides packets.
func (s *sessionTrace) look() {
	for side, e := range s.ends {
		c := e.conn
		if c == nil {
			continue
		}
		kind := [...]string{"a peer of unknown kind", "a legacy peer", "an extended peer", "an extended peer"}[c.hs.Peer]
		if c.hs.unvalidated.Load() {
			kind += ", at an address that is not validated"
		}
		state := [...]string{"open", "closing streams", "lingering", "draining", "ended", "ended"}[c.closing.Phase]
		if c.closing.err != nil {
			state += ": " + c.closing.err.Error()
		}
		if c.closing.Phase == closing.Open {
			state += ", with " + kind
		}
		if state != s.states[side] {
			s.states[side] = state
			s.say("%s is %s", traceSides[side], state)
		}
		if e.ready&Readers != 0 && c.kcp.Receiver().Readable() {
			s.say("%s has something to read", traceSides[side])
		}
		e.ready = 0
		if e.wakeAt != s.wakes[side] {
			if s.wakes[side] = e.wakeAt; e.wakeAt > 0 && s.shows {
				s.say("%s wants to be woken at %v", traceSides[side], (e.wakeAt - s.begun).Round(time.Microsecond))
			}
		}
	}
}
