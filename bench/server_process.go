package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"time"
)

// The processes of the server suite are this program, started again with
// roleVariable in the environment. They read orders from standard input and
// write an answer to each to standard output, as JSON. They exit when standard
// input ends, as it does with the process that gives the orders.

// roleVariable names the environment variable that says what a process is.
const roleVariable = "KCP_BENCH_ROLE"

// Values of roleVariable.
const (
	serverRole  = "server"
	clientsRole = "clients"
	busyRole    = "busy" // takes no orders, and computes
)

// Orders.
const (
	doPrepare = "prepare" // the server listens, or the clients connect
	doStart   = "start"   // the clients begin to send
	doBegin   = "begin"   // the measured time begins
	doMark    = "mark"    // report what was used and done
	doCount   = "count"   // the server counts its sessions, the clients what they have written
	doMemory  = "memory"  // report the memory in use, without garbage
	doTry     = "try"     // the clients want an echo on every session
	doClose   = "close"   // the clients close their sessions
)

// order is what the controlling process says to another.
type order struct {
	Do          string
	Job         *serverJob    `json:",omitempty"`
	Addr        string        `json:",omitempty"` // of the server
	Certificate []byte        `json:",omitempty"` // of the server, in DER
	Limit       time.Duration `json:",omitempty"` // how long it may take
}

// answer is what a process says to an order.
type answer struct {
	Error string `json:",omitempty"`

	Addr        string `json:",omitempty"`
	Certificate []byte `json:",omitempty"`

	At     time.Duration // since the process was started
	CPU    time.Duration // used by the process, user and system
	Memory uint64        `json:",omitempty"` // resident, in bytes

	// Of the server.
	Received []uint64 `json:",omitempty"` // bytes, by session
	Sessions int      `json:",omitempty"` // accepted
	Ended    int      `json:",omitempty"` // of those

	Goroutines int `json:",omitempty"` // of the server

	// Of the clients.
	Written  uint64  `json:",omitempty"` // bytes of bulk, since the beginning
	Echoes   int     `json:",omitempty"` // in the measured time, as the rest
	P50, P99 float64 `json:",omitempty"` // of those, in µs
	Sent     uint64  `json:",omitempty"` // segments, retransmissions included; of a server of states packets
	Resent   uint64  `json:",omitempty"` // of those
	Alive    int     `json:",omitempty"` // sessions with an echo to doTry
}

// subtract makes what has grown in a what it has grown by since before.
func (a *answer) subtract(before answer) {
	a.At -= before.At
	a.CPU -= before.CPU
	a.Sent -= before.Sent
	a.Resent -= before.Resent
	for i := range min(len(a.Received), len(before.Received)) {
		a.Received[i] -= before.Received[i]
	}
}

// moved returns the bytes of all sessions.
func (a *answer) moved() (n uint64) {
	for _, bytes := range a.Received {
		n += bytes
	}
	return n
}

// child is a process of a measurement.
type child struct {
	role    string
	cmd     *exec.Cmd
	in      io.WriteCloser
	orders  *json.Encoder
	answers chan answer // closed when the process has closed its output
}

// startChild starts a process. It may use that many processors, or all if cores
// is 0.
func startChild(role string, cores int) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	if cores > 0 {
		cmd.Env = append(cmd.Env, fmt.Sprint("GOMAXPROCS=", cores))
	}
	cmd.Stderr = os.Stderr
	dieWithParent(cmd)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &child{role: role, cmd: cmd, in: in, orders: json.NewEncoder(in), answers: make(chan answer, 1)}
	go func() {
		defer close(p.answers)
		for dec := json.NewDecoder(out); ; {
			var a answer
			if dec.Decode(&a) != nil {
				return // the process has ended
			}
			p.answers <- a
		}
	}()
	return p, nil
}

// ask gives an order and waits for the answer. After an error the process must
// be killed.
func (p *child) ask(o order, limit time.Duration) (answer, error) {
	if err := p.orders.Encode(o); err != nil {
		return answer{}, fmt.Errorf("%s: %s: %w", p.role, o.Do, err)
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case a, ok := <-p.answers:
		if !ok {
			return a, fmt.Errorf("%s: %s: the process has ended", p.role, o.Do)
		}
		if a.Error != "" {
			return a, fmt.Errorf("%s: %s: %s", p.role, o.Do, a.Error)
		}
		return a, nil
	case <-timer.C:
		return answer{}, fmt.Errorf("%s: %s: no answer in %v", p.role, o.Do, limit)
	}
}

// kill ends the process and waits for it.
func (p *child) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.in.Close()
	for range p.answers { // until the output is closed
	}
	_ = p.cmd.Wait() // it was killed
}

// role is a process of a measurement from within.
type role interface {
	do(o order) (answer, error)
}

// runRole is the program in a process of a measurement. The process exits when
// in ends, whatever it does then.
func runRole(name string, in io.Reader, out io.Writer) error {
	var r role
	switch name {
	case serverRole:
		r = new(serverProcess)
	case clientsRole:
		r = new(clientsProcess)
	case stateClients:
		r = new(stateReaders)
	case busyRole:
	default:
		return fmt.Errorf("%s: no role %q", roleVariable, name)
	}
	if name == busyRole {
		go compute()
	}
	orders := make(chan order)
	go func() {
		for dec := json.NewDecoder(in); ; {
			var o order
			if dec.Decode(&o) != nil {
				os.Exit(1)
			}
			orders <- o
		}
	}()
	enc := json.NewEncoder(out)
	for o := range orders {
		a, err := r.do(o)
		if err != nil {
			a = answer{Error: err.Error()}
		}
		if err := enc.Encode(a); err != nil {
			return err
		}
	}
	return nil
}

// startBusy starts n processes that compute, which end ends.
func startBusy(n int) (end func(), err error) {
	var busy []*child
	end = func() {
		for _, p := range busy {
			p.kill()
		}
	}
	for range n {
		p, err := startChild(busyRole, 1)
		if err != nil {
			end()
			return nil, err
		}
		busy = append(busy, p)
	}
	return end, nil
}

// computed is what compute has found, so that it is not left out.
var computed atomic.Uint64

// compute uses a processor until the process ends.
func compute() {
	for n := uint64(1); ; n = n*6364136223846793005 + 1442695040888963407 {
		if n>>44 == 0 {
			computed.Store(n)
		}
	}
}

// processStart is when the process was started, or soon after.
var processStart = time.Now()

// usedSoFar returns an answer with what the process has used.
func usedSoFar() answer { return answer{At: time.Since(processStart), CPU: cpuTime()} }

var errOrder = errors.New("unknown order")
