// Command node is a node of a cluster on the command line. It prints who joins, leaves
// and dies, and what the others send.
//
//	node certs -dir certs -cluster nodes.example a b c    # an authority, and certificates
//	node run -dir certs -cluster nodes.example -bind 127.0.0.1:7001 a
//	node run -dir certs -cluster nodes.example -bind 127.0.0.1:7002 -seeds 127.0.0.1:7001 b
//
// A line of its input goes to all members. "@b text" goes to b alone, "~text" to all as
// a datagram. At the end of its input, and with an interrupt, the node leaves.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/arqnet/kcp/examples/cluster"
)

const authority = "authority" // name of its files

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: node certs [flags] NAME..., or node run [flags] NAME; -h has the flags")

func run(args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	flags := flag.NewFlagSet("node "+args[0], flag.ContinueOnError)
	dir := flags.String("dir", "certs", "folder of the certificates")
	name := flags.String("cluster", "nodes.example", "name that all certificates have")
	switch args[0] {
	case "certs":
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return certs(*dir, *name, flags.Args())
	case "run":
		bind := flags.String("bind", "127.0.0.1:0", "address to listen on")
		advertise := flags.String("advertise", "", "address that the others are told")
		seeds := flags.String("seeds", "", "addresses of some nodes, with commas between")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		if flags.NArg() != 1 {
			return errUsage
		}
		c := &cluster.Config{Advertise: *advertise}
		c.Bind, c.Cluster = *bind, *name
		if *seeds != "" {
			c.Seeds = strings.Split(*seeds, ",")
		}
		return serve(c, *dir, flags.Arg(0))
	}
	return errUsage
}

// certs makes an authority, and a certificate for each name.
func certs(dir, clusterName string, names []string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	a, err := cluster.NewAuthority(clusterName)
	if err != nil {
		return err
	}
	if err := cluster.Save(dir, authority, a.Certificate); err != nil {
		return err
	}
	for _, name := range names {
		cert, err := a.Issue(name)
		if err != nil {
			return err
		}
		if err := cluster.Save(dir, name, cert); err != nil {
			return err
		}
	}
	return nil
}

// serve runs a node until the end of its input, or an interrupt.
func serve(c *cluster.Config, dir, name string) (err error) {
	if c.Certificate, err = cluster.Load(dir, name); err != nil {
		return err
	}
	if c.CA, err = cluster.LoadPool(dir, authority); err != nil {
		return err
	}
	n, err := cluster.Start(c)
	if err != nil {
		return err
	}
	defer n.Close()
	fmt.Printf("%s listens on %v\n", n.Name(), n.Addr())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	go printEvents(ctx, n)
	go printMessages(ctx, n)
	lines := make(chan string)
	go readLines(lines)
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				return n.Leave(time.Second)
			}
			if err := send(ctx, n, line); err != nil {
				fmt.Println("error:", err)
			}
		case <-ctx.Done():
			return n.Leave(time.Second)
		}
	}
}

func readLines(lines chan<- string) {
	defer close(lines)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		lines <- in.Text()
	}
}

// send sends a line to whom it is for.
func send(ctx context.Context, n *cluster.Node, line string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	switch {
	case line == "":
		return nil
	case line[0] == '~':
		return n.BroadcastDatagram([]byte(line[1:]))
	case line[0] == '@':
		to, text, _ := strings.Cut(line[1:], " ")
		return n.Send(ctx, to, []byte(text))
	}
	return n.Broadcast(ctx, []byte(line))
}

func printEvents(ctx context.Context, n *cluster.Node) {
	for {
		select {
		case e := <-n.Events():
			fmt.Printf("* %s has %s (%v)\n", shown(e.Member.Name), e.Kind, e.Member.Addr)
		case <-ctx.Done():
			return
		}
	}
}

func printMessages(ctx context.Context, n *cluster.Node) {
	for {
		m, err := n.Receive(ctx)
		if err != nil {
			return
		}
		how := ""
		if !m.Reliable {
			how = " (datagram)"
		}
		fmt.Printf("%s%s: %q\n", shown(m.From), how, m.Data)
	}
}

// shown returns a name that another node has given, in quotes if it does not print.
func shown(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}
