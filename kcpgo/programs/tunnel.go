package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/arqnet/kcp/netsim"
)

// tunnel is one way to run a program: a server that takes KCP, and a client that
// takes TCP and speaks KCP with it.
type tunnel struct {
	name string
	// server and client return the command lines, binary first. Files that they
	// need are written into dir.
	server func(a addresses) ([]string, error)
	client func(a addresses) ([]string, error)
	socks  bool // the client takes SOCKS5 for any target, not TCP for one
	// alone says that the client sends and checks by itself, and exits with 0.
	alone bool
	// slow multiplies the time limit, for a program that keeps to kcp-go's
	// defaults; 0 means 1.
	slow int
}

// addresses are the addresses of one case, all of 127.0.0.1.
type addresses struct {
	listen string // UDP: the server listens there
	dial   string // UDP: the client talks to it: listen, or the relay before it
	entry  string // TCP: what is to be sent is sent there
	other  string // TCP: for the program's own use
	target string // TCP: where it is to arrive
	dir    string // for files
	size   int    // bytes each way
}

// runProgram builds p twice, and runs its cases in all pairs.
func (o *options) runProgram(ctx context.Context, p *program) (results []result) {
	folders := make(map[side]string)
	for _, s := range []side{ours, theirs} {
		progress("%s: building with %v", p.name, s)
		dir, err := o.buildWith(ctx, p, s)
		if err != nil {
			return append(results, result{program: p.name, name: "build", pair: s.String(), err: err}.logged())
		}
		folders[s] = dir
	}
	if p.testOnly != "" {
		return o.runTests(ctx, p, folders)
	}
	for _, t := range p.tunnels {
		if !o.cases.MatchString(t.name) {
			continue
		}
		for _, pair := range [][2]side{{ours, ours}, {ours, theirs}, {theirs, ours}} {
			for _, relayed := range []bool{false, true} {
				if relayed && !o.relay || ctx.Err() != nil {
					continue
				}
				r := result{program: p.name, name: t.name, pair: fmt.Sprintf("%v-%v", pair[0], pair[1]), path: "direct"}
				if relayed {
					r.path = "3 %, 10 ms"
				}
				start := time.Now()
				for range portTries {
					if r.err = o.runTunnel(ctx, t, folders[pair[0]], folders[pair[1]], relayed); !errors.Is(r.err, errEnded) {
						break
					}
				}
				r.took = time.Since(start)
				results = append(results, r.logged())
			}
		}
	}
	return results
}

// errEnded means that a program has ended before the transfer. Its port may have
// been taken by another program since it was chosen, so the case is tried again,
// portTries times in all.
var errEnded = errors.New("a program has ended by itself")

const portTries = 3

// logged prints the outcome, with all of the error.
func (r result) logged() result {
	progress("%s, %s, %s, %s: %.1f s, %v", r.program, r.name, r.pair, r.path, r.took.Seconds(), r)
	if r.err != nil {
		fmt.Println(r.err)
	}
	return r
}

// runTunnel starts both ends, sends, and stops them.
func (o *options) runTunnel(ctx context.Context, t tunnel, client, server string, relayed bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, o.limit*time.Duration(max(t.slow, 1)))
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	sink, err := newSink(o.size)
	if err != nil {
		return err
	}
	defer sink.Close()
	a, err := o.addresses(sink.Addr().String())
	if err != nil {
		return err
	}
	defer os.RemoveAll(a.dir)
	if relayed {
		link := netsim.LinkConfig{Delay: 10 * time.Millisecond, Loss: 0.03}
		relay, err := netsim.NewRelay(a.listen, link, link, 1)
		if err != nil {
			return err
		}
		defer relay.Close()
		a.dial = relay.Addr().String()
	}
	var ends []*process
	defer func() {
		for _, p := range ends {
			p.stop()
			if err != nil || o.verbose {
				err = errors.Join(err, p.says(err != nil))
			}
		}
	}()
	for _, end := range []struct {
		folder string
		line   func(addresses) ([]string, error)
	}{{server, t.server}, {client, t.client}} {
		line, err := end.line(a)
		if err != nil {
			return err
		}
		p, err := start(ctx, end.folder, line)
		if err != nil {
			return err
		}
		if ends = append(ends, p); len(ends) == 1 || !t.alone {
			context.AfterFunc(p.ended, func() { fail(errEnded) })
		}
	}
	if t.alone {
		err = ends[1].wait(ctx)
	} else {
		err = send(ctx, a, t.socks, o.size)
	}
	if err != nil && context.Cause(ctx) == errEnded {
		err = errors.Join(errEnded, err)
	}
	return err
}

// addresses chooses free ports.
func (o *options) addresses(target string) (a addresses, err error) {
	a = addresses{target: target, size: o.size}
	if a.dir, err = os.MkdirTemp(o.temp, "case-"); err != nil {
		return a, err
	}
	u, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return a, err
	}
	defer u.Close()
	a.listen = u.LocalAddr().String()
	a.dial = a.listen
	for _, to := range []*string{&a.entry, &a.other} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return a, err
		}
		defer l.Close()
		*to = l.Addr().String()
	}
	return a, nil
}

// process is a program that was started.
type process struct {
	cmd  *exec.Cmd
	line string
	done chan error // how it has ended

	ended context.Context // done when it has ended

	mu  sync.Mutex
	out bytes.Buffer
}

// Write takes what the program prints.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

func start(ctx context.Context, folder string, line []string) (*process, error) {
	p := &process{line: strings.Join(line, " "), done: make(chan error, 1)}
	p.cmd = exec.CommandContext(ctx, filepath.Join(folder, "bin", line[0]), line[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	ended, end := context.WithCancel(context.Background())
	p.ended = ended
	go func() {
		defer end()
		p.done <- p.cmd.Wait()
	}()
	return p, nil
}

// stop ends the program and waits for that.
func (p *process) stop() {
	_ = p.cmd.Process.Kill() // it may have ended
	select {
	case err := <-p.done:
		p.done <- err
	case <-time.After(10 * time.Second):
	}
}

// wait waits for the program to end by itself.
func (p *process) wait(ctx context.Context) error {
	select {
	case err := <-p.done:
		p.done <- err
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// says returns what the program has printed as an error, or prints it.
func (p *process) says(failed bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	const most = 3000
	out := p.out.Bytes()
	if len(out) > most {
		out = append([]byte("..."), out[len(out)-most:]...)
	}
	if failed {
		return fmt.Errorf("%s says:\n%s", p.line, out)
	}
	fmt.Printf("%s says:\n%s\n", p.line, out)
	return nil
}
