// Package life is what random tests of whole sessions share: a script of calls, faults
// and time, the application that performs it at one end of a session, and the judge of
// what both ends have seen.
//
// The tests that use it play scripts over sessions without endpoints (package kcp), over
// endpoints in virtual time (e2e/schedules), and over sockets (soak). So
// this package knows no type of package kcp: each of them is an End.
package life

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// Op is what a step of a script does.
type Op string

// Calls of a session, or of its stream Step.ID. An application performs them.
const (
	Write      Op = "write"      // N bytes, or a message of N bytes
	Open       Op = "open"       // a stream
	Fin        Op = "fin"        // CloseWrite
	StopRead   Op = "stopread"   // CancelRead
	StopWrite  Op = "stopwrite"  // CancelWrite
	Reset      Op = "reset"      // of a stream
	EndStream  Op = "endstream"  // Close of a stream
	Datagram   Op = "datagram"   // N bytes
	Read       Op = "read"       // until N bytes or messages have arrived
	ReadAll    Op = "readall"    // until an error
	Close      Op = "close"      //
	Background Op = "background" // Close that does not wait
	Reason     Op = "reason"     // CloseWithError
	Abort      Op = "abort"      //
	Rate       Op = "rate"       // SetMaxRate
	Window     Op = "window"     // SetWindow
	MTU        Op = "mtu"        // SetMTU
	Buffer     Op = "buffer"     // SetWriteBuffer
	Deadline   Op = "deadline"   // SetDeadline, in N ms; 0: none
	Look       Op = "look"       // what changes nothing: Stats, WriteReady and the like
	Ping       Op = "ping"       //
	Flush      Op = "flush"      //
)

// Time, and what the world does. Who plays the script carries them out.
const (
	Wait     Op = "wait"     // N ms pass
	Rest     Op = "rest"     // the end reads nothing for N ms; 0: until it is told to
	Loss     Op = "loss"     // N percent of all packets
	Delay    Op = "delay"    // N ms
	Jitter   Op = "jitter"   // up to N ms
	Path     Op = "path"     // takes packets of N bytes; 0: all
	Cut      Op = "cut"      // takes nothing for N ms
	Again    Op = "again"    // a packet on its way to the end comes twice, or one that has come
	Hold     Op = "hold"     // a packet on its way comes N ms later
	Lose     Op = "lose"     // a packet on its way does not come
	Damage   Op = "damage"   // one of its bits is flipped
	Move     Op = "move"     // the end has another address
	Rerouted Op = "rerouted" // the interface has changed
	Late     Op = "late"     // wake-ups of the end come N ms late
	Slow     Op = "slow"     // TLS has no time, or has again
	Full     Op = "full"     // other sessions hold N eighths of the memory
	Shed     Op = "shed"     // the session is ended for want of memory
	Small    Op = "small"    // the interface takes packets of N bytes; 0: all
	Unread   Op = "unread"   // what has arrived at the socket was not read, or was
	Backlog  Op = "backlog"  // it is full, or is not
	Join     Op = "join"     // a Group
	Leave    Op = "leave"    // the Group
	Batch    Op = "batch"    // Group.Send to many
	Accept   Op = "accept"   // waits for a stream of the peer
	Meet     Op = "meet"     // waits until the other end comes to this
	Shutdown Op = "shutdown" // of the end's endpoint
)

// Step is one step of a script. What N and How mean depends on Op.
type Step struct {
	End int // that does it, or that it happens to: 0 has dialled
	Op  Op
	ID  uint32 // of the stream; 0: the session itself
	N   int
	How int
}

// String returns s as Parse takes it, such as "a:write:1,300".
func (s Step) String() string {
	text := fmt.Sprintf("%c:%s", 'a'+s.End, s.Op)
	switch {
	case s.How != 0:
		text += fmt.Sprintf(":%d,%d,%d", s.ID, s.N, s.How)
	case s.N != 0:
		text += fmt.Sprintf(":%d,%d", s.ID, s.N)
	case s.ID != 0:
		text += fmt.Sprintf(":%d", s.ID)
	}
	return text
}

// How of Write: what becomes of a message, and how the call is made.
const (
	Never   = 1 // it is not repeated
	Short   = 2 // it has a lifetime; with Never it has both limits
	Receipt = 4
	Waits   = 8 // the call may wait
)

// Lifetime returns that of a message of Write; 0: it has none.
func (s Step) Lifetime() time.Duration {
	switch s.How & (Never | Short) {
	case Short:
		return time.Duration(1+s.How>>4) * 25 * time.Millisecond
	case Short | Never:
		return 80 * time.Millisecond
	}
	return 0
}

// Retransmits returns MaxRetransmits of a message of Write.
func (s Step) Retransmits() int {
	switch s.How & (Never | Short) {
	case Never:
		return -1
	case Short | Never:
		return 2
	}
	return 0
}

// How of Open.
const (
	Unordered = 1
	Partial   = 2  // messages are repeated once
	Mortal    = 4  // messages have a lifetime of 60 ms
	Urgent    = 8  // Priority is 3
	Idle      = 16 // Priority is -3
)

// StreamOptions are those of Open.
type StreamOptions struct {
	Unordered   bool
	Priority    int
	Lifetime    time.Duration
	Retransmits int
}

// Partial reports whether messages of the stream may be given up.
func (o StreamOptions) Partial() bool { return o.Lifetime > 0 || o.Retransmits != 0 }

// Stream returns the options of Open.
func (s Step) Stream() (o StreamOptions) {
	o.Unordered = s.How&Unordered > 0
	if s.How&Partial > 0 {
		o.Retransmits = 1
	}
	if s.How&Mortal > 0 {
		o.Lifetime = 60 * time.Millisecond
	}
	o.Priority = 3*(s.How/Urgent&1) - 3*(s.How/Idle&1)
	return o
}

// Script is what happens in a run. World is whatever a world makes of it.
type Script struct {
	World uint32
	Steps []Step
}

// String returns s as Parse takes it.
func (s Script) String() string {
	words := []string{fmt.Sprintf("%08x", s.World)}
	for _, step := range s.Steps {
		words = append(words, step.String())
	}
	return strings.Join(words, " ")
}

// Parse returns the script of a text. World may be missing.
func Parse(text string) (s Script, err error) {
	for i, word := range strings.Fields(text) {
		if world, err := strconv.ParseUint(word, 16, 32); i == 0 && err == nil {
			s.World = uint32(world)
			continue
		}
		parts := strings.Split(word, ":")
		if len(parts) < 2 || len(parts) > 3 || parts[0] != "a" && parts[0] != "b" {
			return s, fmt.Errorf("life: %q is not like a:write:1,300", word)
		}
		step := Step{End: int(parts[0][0] - 'a'), Op: Op(parts[1])}
		for i, number := range strings.Split(strings.Join(parts[2:], ""), ",") {
			n, err := strconv.Atoi(number)
			switch {
			case number == "" && len(parts) == 2:
			case err != nil || i > 2:
				return s, fmt.Errorf("life: %q is not like a:write:1,300", word)
			case i == 0:
				step.ID = uint32(n)
			case i == 1:
				step.N = n
			default:
				step.How = n
			}
		}
		s.Steps = append(s.Steps, step)
	}
	return s, nil
}

// MustParse is Parse for texts of a program.
func MustParse(text string) Script {
	s, err := Parse(text)
	if err != nil {
		panic(err)
	}
	return s
}

// Table is the steps that a script is drawn of, each as often as it has weight.
type Table []Op

// Weighted returns a table in which words name an operation and its weight, such as
// "write 4 wait 3".
func Weighted(text string) (t Table) {
	words := strings.Fields(text)
	for i := 0; i+1 < len(words); i += 2 {
		n, err := strconv.Atoi(words[i+1])
		if err != nil {
			panic(err)
		}
		for range n {
			t = append(t, Op(words[i]))
		}
	}
	return t
}

// MaxSteps is the length of the longest script that bytes make.
const MaxSteps = 150

// Of returns the script that bytes make: four are the world, and four each step.
func (t Table) Of(b []byte) (s Script) {
	word := func() (w [4]byte) {
		b = b[copy(w[:], b):]
		return w
	}
	for _, x := range word() {
		s.World = s.World<<8 | uint32(x)
	}
	for len(b) > 0 && len(s.Steps) < MaxSteps {
		w := word()
		s.Steps = append(s.Steps, step(t[int(w[0])%len(t)], w[1], w[2], w[3]))
	}
	return s
}

// Random returns a random script of as many steps, or the bytes that make it.
func (t Table) Random(random *rand.Rand, steps int) (b []byte) {
	b = make([]byte, 4+4*steps)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

// step returns the step that bytes make.
func step(op Op, x, y, z byte) Step {
	s := Step{End: int(x & 1), Op: op, N: int(y), How: int(z)}
	switch op {
	case Write:
		s.ID, s.N, s.How = uint32(x>>1), int(y)*(1+int(z&7)), int(z>>3)
		if x&0xc0 == 0 {
			s.N *= 8
		}
	case Fin:
		if s.ID = uint32(y); y < 128 { // the session itself, seldom
			s.ID |= 1
		}
	case StopRead, StopWrite, Reset, EndStream, Deadline:
		s.ID = 1 + uint32(x>>1)
	case Datagram:
		s.N = int(y) * int(z&7)
	case Wait, Cut, Rest:
		s.N = [16]int{0, 1, 2, 5, 10, 20, 21, 40, 60, 100, 150, 200, 400, 1000, 3000, 15000}[y&15]
	case Rate:
		s.N = []int{0, 20_000, 300_000, 5_000_000}[y&3]
	case MTU:
		s.N = []int{0, 500, 900, 1400}[y&3]
	case Path, Small:
		s.N = []int{0, 1200, 1250, 1400}[y&3]
	case Buffer:
		s.N = 4096 + int(y)*int(z)
	case Loss:
		s.N = int(y) % 80
	case Delay, Jitter:
		s.N = int(y) % 120
	case Late:
		s.N = int(y) * int(z&1)
	case Full:
		s.N = int(y) % 10
	}
	return s
}
