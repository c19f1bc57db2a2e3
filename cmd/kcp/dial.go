package main

import (
	"context"
	"io"
	"net"

	"github.com/arqnet/kcp"
)

// socketBuffer is the size asked of the system for the buffers of the socket;
// kcp.Dial asks for as much.
const socketBuffer = 4 << 20

// dialOptions returns the command line of kcp dial.
func dialOptions(n *netcat) *optionSet {
	return &optionSet{
		synopsis: "kcp dial ADDR [flags]",
		intro: `Opens a KCP session with the UDP address ADDR, such as 192.0.2.1:9000, and
pipes it to stdin and stdout. The peer learns of the session with the first
byte that is sent, or when stdin ends without any.

` + endingText + `
With -d, the time of -q begins with the first byte that comes.`,
		groups: []optionGroup{n.pipeGroup(), n.settings.group()},
		examples: `  kcp dial 192.0.2.1:9000 < file             send a file
  kcp dial 192.0.2.1:9000 > copy             receive one
  echo status | kcp dial 192.0.2.1:9000      ask, and print the answer
  kcp dial 192.0.2.1:9000                    talk to the peer`,
	}
}

// runDial is kcp dial.
func runDial(ctx context.Context, std streams, args []string) error {
	n := newNetcat(std, "dial")
	if err := n.parse(dialOptions(n), args); err != nil {
		return err
	}
	addr, err := n.resolve()
	if err != nil {
		return err
	}
	socket, err := net.DialUDP("udp", nil, addr)
	if err != nil {
		return err
	}
	defer socket.Close()
	// What the system grants is enough to work.
	_ = socket.SetReadBuffer(socketBuffer)
	_ = socket.SetWriteBuffer(socketBuffer)

	empty := n.in == nil
	if !empty {
		// Nothing can come before something was sent, so nothing is missed.
		switch err := n.in.wait(ctx); {
		case err == io.EOF:
			empty = true
		case ctx.Err() != nil:
			return nil
		}
	}
	return n.dial(ctx, socket, empty)
}

// dial pipes a session on socket. empty is true where there is nothing to send.
func (n *netcat) dial(ctx context.Context, socket *net.UDPConn, empty bool) error {
	cfg := *n.cfg
	if empty {
		// A session begins at the peer with a segment of data. Message mode
		// can send one without any.
		cfg.MessageMode = true
	}
	e, err := kcp.NewEndpoint(socket, &cfg)
	if err != nil {
		return err
	}
	defer e.Close()
	conn, err := e.Dial(ctx, socket.RemoteAddr())
	if err != nil {
		return err
	}
	if empty {
		if err := conn.WriteMessage(nil); err != nil {
			return err
		}
	}
	err = n.pipe(ctx, conn, n.in == nil)
	if err == nil {
		settle(ctx, e, n.quiet)
	}
	return err
}
