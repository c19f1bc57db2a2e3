package main

import (
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"sync/atomic"
	"time"
)

// The processes of the server suite are this program, started again with
// roleVariable in the environment. They are called by net/rpc over standard input
// and output, and exit when standard input ends.

// roleVariable names the environment variable that says what a process is.
const roleVariable = "KCP_BENCH_ROLE"

// Values of roleVariable.
const (
	serverRole  = "server"
	clientsRole = "clients"
	busyRole    = "busy" // is not called, and computes
)

// pipes are the two ends of a conversation with a process.
type pipes struct {
	io.Reader
	io.WriteCloser
}

// child is a process of a measurement.
type child struct {
	role string
	cmd  *exec.Cmd
	rpc  *rpc.Client
}

// startChild starts a process.
func startChild(role string) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	if role == busyRole {
		cmd.Env = append(cmd.Env, "GOMAXPROCS=1")
	}
	cmd.Stderr = os.Stderr
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
	return &child{role, cmd, rpc.NewClient(pipes{out, in})}, nil
}

// call calls a method of the process. After an error it must be killed.
func (p *child) call(method string, args, reply any) error {
	if reply == nil {
		reply = new(int)
	}
	select {
	case c := <-p.rpc.Go("Role."+method, args, reply, make(chan *rpc.Call, 1)).Done:
		if c.Error != nil {
			return fmt.Errorf("%s: %s: %w", p.role, method, c.Error)
		}
		return nil
	case <-time.After(answerLimit):
		return fmt.Errorf("%s: %s: no answer in %v", p.role, method, answerLimit)
	}
}

// kill ends the process and waits for it.
func (p *child) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.rpc.Close()
	_ = p.cmd.Wait() // it was killed
}

// runRole is the program in a process of a measurement. The process exits when
// in ends, whatever it does then.
func runRole(name string, in io.Reader, out io.WriteCloser) error {
	s := rpc.NewServer()
	var err error
	switch name {
	case serverRole:
		err = s.RegisterName("Role", new(serverProcess))
	case clientsRole:
		err = s.RegisterName("Role", new(clientsProcess))
	case busyRole:
		go compute()
	default:
		err = errors.New("no such role")
	}
	if err == nil {
		s.ServeConn(pipes{in, out})
	}
	return err
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
