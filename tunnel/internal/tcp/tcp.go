// Package tcp has what all ends of tunnels do with connections of TCP.
package tcp

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"time"
)

// Accept passes the connections of a listener to handle until the listener is closed.
func Accept(l net.Listener, log *slog.Logger, handle func(*net.TCPConn)) {
	pause := 5 * time.Millisecond
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as no more file descriptors
			log.Warn("cannot accept", "error", err)
			time.Sleep(pause)
			pause = min(2*pause, time.Second)
			continue
		}
		pause = 5 * time.Millisecond
		handle(conn.(*net.TCPConn))
	}
}

// Abort ends a connection so that its peer sees a reset, not an end.
func Abort(conn io.Closer) {
	EndsByReset(conn, true)
	_ = conn.Close()
}

// EndsByReset sets whether a connection ends with a reset when it is closed: by this
// process, or by the system because the process was killed. Otherwise what was sent so
// far would look complete. What is no connection of TCP has no resets.
func EndsByReset(conn any, reset bool) {
	if tcp, ok := conn.(interface{ SetLinger(int) error }); ok {
		seconds := -1 // the system's default: what was written is delivered
		if reset {
			seconds = 0
		}
		_ = tcp.SetLinger(seconds)
	}
}
