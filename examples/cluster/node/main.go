// Command node is a node of a cluster on the command line. It prints who joins and who
// is gone, and what the others send.
//
//	node certs -dir certs a b c       # an authority, and certificates
//	node run -dir certs -bind 127.0.0.1:7001 a
//	node run -dir certs -bind 127.0.0.1:7002 -seeds 127.0.0.1:7001 b
//
// A line of its input goes to all members, "~text" as a datagram. At the end of its input,
// and with an interrupt, the node leaves.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/arqnet/kcp/examples/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdin, os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "node:", err)
		os.Exit(1)
	}
}

// run is the program without its process.
func run(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	usage := errors.New("usage: node certs [flags] NAME..., or node run [flags] NAME; -h has the flags")
	if len(args) == 0 {
		return usage
	}
	flags := flag.NewFlagSet("node "+args[0], flag.ContinueOnError)
	dir := flags.String("dir", "certs", "`folder` of the certificates")
	name := flags.String("cluster", "nodes.example", "`name` that all certificates have")
	bind := flags.String("bind", "127.0.0.1:0", "`address` to listen on")
	seeds := flags.String("seeds", "", "`addresses` of some nodes, with commas between")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	switch {
	case args[0] == "certs":
		return certs(*dir, *name, flags.Args())
	case args[0] != "run" || flags.NArg() != 1:
		return usage
	}
	cert, pool, err := load(*dir, flags.Arg(0))
	if err != nil {
		return err
	}
	t, err := cluster.Listen(&cluster.Config{Bind: *bind, Certificate: cert, CA: pool, Cluster: *name})
	if err != nil {
		return err
	}
	defer t.Shutdown()
	c := t.Memberlist()
	n := &node{name: c.Name, out: log.New(out, "", 0)}
	c.Events, c.Delegate, c.LogOutput = n, n, io.Discard
	if n.list, err = memberlist.Create(c); err != nil {
		return err
	}
	defer n.list.Shutdown()
	n.out.Printf("%s listens on %v", n.name, n.list.LocalNode().FullAddress().Addr)
	if *seeds != "" {
		if _, err := n.list.Join(strings.Split(*seeds, ",")); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	n.read(ctx, in)
	return n.list.Leave(time.Second)
}

// node prints what memberlist tells it. memberlist calls its methods.
type node struct {
	name string
	list *memberlist.Memberlist
	out  *log.Logger
}

// read sends lines of input until its end.
func (n *node) read(ctx context.Context, in io.Reader) {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(in); s.Scan(); {
			select {
			case lines <- s.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case line, more := <-lines:
			if !more {
				return
			}
			n.send(line)
		case <-ctx.Done():
			return
		}
	}
}

// send sends a line to all: by a stream, or one that begins with "~" by a datagram.
func (n *node) send(line string) {
	send := n.list.SendReliable
	line, datagram := strings.CutPrefix(line, "~")
	if datagram {
		send = n.list.SendBestEffort
	}
	for _, m := range n.list.Members() {
		if m.Name == n.name {
			continue
		}
		go func() { // a member that is gone holds up no other
			if err := send(m, []byte(n.name+": "+line)); err != nil {
				n.out.Printf("not sent to %q: %v", m.Name, err)
			}
		}()
	}
}

// What others send is quoted, as it may steer the terminal.

func (n *node) NotifyMsg(b []byte) { n.out.Printf("%q", b) }
func (n *node) NotifyJoin(m *memberlist.Node) {
	n.out.Printf("* %q has joined (%v)", m.Name, m.Address())
}
func (n *node) NotifyLeave(m *memberlist.Node) {
	n.out.Printf("* %q is gone (%v)", m.Name, m.Address())
}
func (n *node) NotifyUpdate(m *memberlist.Node)   {}
func (n *node) NodeMeta(int) []byte               { return nil }
func (n *node) GetBroadcasts(_, _ int) [][]byte   { return nil }
func (n *node) LocalState(bool) []byte            { return nil }
func (n *node) MergeRemoteState(_ []byte, _ bool) {}
