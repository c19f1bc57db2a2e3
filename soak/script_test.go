package soak

import (
	"crypto/aes"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/arqnet/kcp/crypt"
)

// script is what both sides of a session do.
type script struct {
	Kind           string
	Start          time.Duration // of Dial
	GiveUp         time.Duration // Dial is cancelled after so long; 0: it is not
	Client, Server []step
}

// step is one thing that an application does.
type step struct {
	Op    op
	Bytes int           `json:",omitempty"`
	Pause time.Duration `json:",omitempty"`
}

type op string

const (
	write      op = "write"       // Bytes
	writeAside op = "write aside" // Bytes and then CloseWrite, while the next steps run
	read       op = "read"        // Bytes
	readAll    op = "read all"    // until io.EOF
	readAny    op = "read any"    // until any error
	pause      op = "pause"
	closeWrite op = "CloseWrite"
	closing    op = "Close"
	closeExit  op = "Close, exit" // and the socket is closed as soon as Close returns
	abort      op = "Abort"
	// With streams_test.go: Bytes on streams; streams are echoed while the next
	// steps run.
	openStreams  op = "open streams"
	streamsAside op = "open streams aside" // while the next steps run
	join         op = "join"               // what runs aside
	echoStreams  op = "echo streams"
	flush        op = "Flush"
	closeReason  op = "CloseWithError" // with closeCode and closeText
)

const (
	closeCode = 77
	closeText = "that was all"

	maxPause    = 2500 * time.Millisecond
	maxTransfer = 1500 * time.Millisecond
)

func newCFB(key []byte) (crypt.Cipher, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return crypt.CFB(block), nil
}

// size draws an amount of data that takes up to maxTransfer in a direction.
func (p *plan) size(r *rand.Rand, from, to settings, rate int64) int {
	mtu, window := from.MTU, from.SendWindow
	if mtu == 0 {
		mtu = 1400
	}
	if window == 0 {
		window = 2048
	}
	payload := max(mtu-100, 50)
	loss := p.loss()
	window = min(window, max(to.ReceiveWindow, 128), 32)
	if from.Control != "none" && from.Control != "bbr" && loss > 0.01 {
		window = min(window, 2)
	}
	round := p.Up.Delay + p.Down.Delay + p.Up.Jitter + p.Down.Jitter + 5*time.Millisecond
	round += time.Duration(4 * loss * float64(200*time.Millisecond))
	most := int(maxTransfer/round) * window * payload
	if rate > 0 {
		most = min(most, int(float64(rate)*maxTransfer.Seconds()/4))
	}
	most = max(min(most, 400_000), 2)
	return pick(r, 1, 1+r.IntN(min(most, 2000)), 1+r.IntN(min(most, 30_000)), 1+r.IntN(most))
}

// randomScript draws what a session is for.
func (p *plan) randomScript(r *rand.Rand) script {
	if p.Group != "" {
		return p.groupScript(r)
	}
	s := script{Start: millis(r, 0, 1500)}
	if p.Event == restartBeforeData {
		s.Start = 0
	}
	up, down := p.size(r, p.Client, p.Server, p.Up.Rate), p.size(r, p.Server, p.Client, p.Down.Rate)
	wait := step{Op: pause, Pause: millis(r, 0, 800)}
	finish, exit, all := step{Op: closing}, step{Op: closeExit}, step{Op: readAll}
	end := finish
	if p.Client.Sockets != ownSockets && chance(r, 50) {
		end = exit
	}
	half := step{Op: closeWrite}
	out := func(n int) step { return step{Op: write, Bytes: n} }
	in := func(n int) step { return step{Op: read, Bytes: n} }
	kinds := []func(){
		func() {
			s.Kind = "ask, half close, answer"
			s.Client, s.Server = []step{out(up), half, all, end}, []step{all, out(down), finish}
		},
		func() {
			s.Kind = "ask, answer, server closes"
			s.Client, s.Server = []step{out(up), all, end}, []step{in(up), out(down), finish}
		},
		func() {
			s.Kind = "proxy: the server half-closes and closes"
			s.Client, s.Server = []step{out(up), half, all, end}, []step{all, out(down), half, finish}
		},
		func() {
			s.Kind = "both ways"
			s.Client = []step{{Op: writeAside, Bytes: up}, all, end}
			s.Server = []step{{Op: writeAside, Bytes: down}, all, finish}
		},
		func() {
			s.Kind = "ask and answer, several times"
			for range 2 + r.IntN(20) {
				n := 1 + r.IntN(300)
				s.Client, s.Server = append(s.Client, out(n), in(n)), append(s.Server, in(n), out(n))
			}
			s.Client, s.Server = append(s.Client, half, all, end), append(s.Server, all, finish)
		},
		func() {
			s.Kind = "idle"
			idle := step{Op: pause, Pause: millis(r, 1100, int(maxPause.Milliseconds()))}
			s.Client = []step{out(10), in(10), idle, out(up), half, all, end}
			s.Server = []step{in(10), out(10), all, out(down), finish}
		},
		func() {
			s.Kind = "client writes, closes"
			s.Client, s.Server = []step{wait, out(up), end}, []step{all, finish}
		},
		func() {
			s.Kind = "server writes, closes"
			s.Client, s.Server = []step{all, end}, []step{wait, out(down), finish}
		},
		func() {
			s.Kind = "client closes at once"
			s.Client, s.Server = []step{end}, []step{all, finish}
		},
		func() {
			s.Kind = "client aborts"
			s.Client = []step{{Op: writeAside, Bytes: up}, wait, {Op: abort}}
			s.Server = []step{{Op: writeAside, Bytes: down}, {Op: readAny}, finish}
		},
		func() {
			s.Kind = "server aborts"
			s.Client = []step{{Op: writeAside, Bytes: up}, {Op: readAny}, end}
			s.Server = []step{{Op: writeAside, Bytes: down}, wait, {Op: abort}}
		},
		func() {
			s.Kind = "dial, and give up"
			s.GiveUp = millis(r, 1, 150)
			s.Client, s.Server = []step{end}, []step{all, finish}
		},
		func() {
			s.Kind = "streams"
			s.Client = []step{{Op: openStreams, Bytes: min(up, down)}, half, all, end}
			s.Server = []step{{Op: echoStreams}, all, finish}
		},
		func() {
			s.Kind = "streams beside bytes"
			s.Client = []step{{Op: streamsAside, Bytes: min(up, down) / 2}, out(1 + up/2), {Op: join}, half, all, end}
			s.Server = []step{{Op: echoStreams}, all, out(1 + down/2), finish}
		},
		func() {
			s.Kind = "streams, and abort"
			s.Client = []step{{Op: streamsAside, Bytes: min(up, down)}, wait, {Op: abort}}
			s.Server = []step{{Op: echoStreams}, {Op: readAny}, finish}
		},
		func() {
			s.Kind = "server closes with a reason"
			s.Client, s.Server = []step{out(up), all, end}, []step{in(up), out(down), {Op: closeReason}}
		},
		func() {
			s.Kind = "flush, abort"
			s.Client, s.Server = []step{out(up), {Op: flush}, {Op: abort}}, []step{{Op: readAny}, finish}
		},
	}
	kinds[r.IntN(len(kinds))]()
	return s
}

// groupScript draws what a session with a server is for that serves a Group. It
// echoes everything.
func (p *plan) groupScript(r *rand.Rand) script {
	s := script{Start: millis(r, 0, 1500)}
	if p.Event == restartBeforeData {
		s.Start = 0
	}
	n := min(p.size(r, p.Client, p.Server, p.Up.Rate), p.size(r, p.Server, p.Client, p.Down.Rate))
	echo := []step{{Op: readAll}, {Op: write, Bytes: n}, {Op: closing}}
	kinds := []func(){
		func() {
			s.Kind = "group, echo"
			s.Client = []step{{Op: writeAside, Bytes: n}, {Op: readAll}, {Op: closing}}
		},
		func() {
			s.Kind = "group, echo with pauses"
			idle := step{Op: pause, Pause: millis(r, 0, int(maxPause.Milliseconds()))}
			s.Client = []step{{Op: write, Bytes: n}, {Op: read, Bytes: n}, idle, {Op: closeWrite}, {Op: readAll}, {Op: closing}}
		},
		func() {
			s.Kind = "group, client aborts"
			s.Client = []step{{Op: writeAside, Bytes: n}, {Op: pause, Pause: millis(r, 0, 800)}, {Op: abort}}
		},
		func() {
			s.Kind = "group, dial, and give up"
			s.GiveUp = millis(r, 1, 150)
			s.Client = []step{{Op: closing}}
			echo = []step{{Op: readAll}, {Op: closing}}
		},
	}
	kinds[r.IntN(len(kinds))]()
	s.Server = echo
	return s
}

// does reports whether one of the steps is o.
func does(steps []step, o ...op) bool {
	for _, s := range steps {
		for _, want := range o {
			if s.Op == want {
				return true
			}
		}
	}
	return false
}

// total returns how much the steps write.
func total(steps []step) (n int64) {
	for _, s := range steps {
		if s.Op == write || s.Op == writeAside {
			n += int64(s.Bytes)
		}
	}
	return n
}

func (s script) String() string { return fmt.Sprintf("%s (%v; %v)", s.Kind, s.Client, s.Server) }

func (s step) String() string {
	switch {
	case s.Bytes > 0:
		return fmt.Sprintf("%s %d", s.Op, s.Bytes)
	case s.Pause > 0:
		return fmt.Sprintf("%s %v", s.Op, s.Pause)
	}
	return string(s.Op)
}
