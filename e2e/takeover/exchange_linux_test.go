package takeover

import (
	"encoding/binary"
	"io"
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// exchange relays the messages between a predecessor and its successor. It can do
// something at one of them.
type exchange struct {
	at   string // the steps so far at which to act: the kinds of messages, such as "OAS"
	late bool   // act once the message was delivered, not in its place
	act  func()

	mu    sync.Mutex // guards the fields below
	steps string     // the kinds of the messages so far
	over  bool       // it acts, or has

	acted chan struct{} // closed when it has acted
}

// relay relays until one of the ends has closed, or the exchange has acted, and then
// closes both.
func (x *exchange) relay(old, new *net.UnixConn) {
	x.acted = make(chan struct{})
	var wait sync.WaitGroup
	both := func() {
		_ = old.Close()
		_ = new.Close()
	}
	wait.Go(func() { x.pass(old, new, both) })
	wait.Go(func() { x.pass(new, old, both) })
	wait.Wait()
}

// pass relays in one direction.
func (x *exchange) pass(from, to *net.UnixConn, end func()) {
	defer end()
	for {
		message, files, err := readMessage(from)
		if err != nil {
			return
		}
		acts, over := x.step(message[0])
		if over {
			<-x.acted
			return
		}
		if !acts || x.late {
			var rights []byte
			if len(files) > 0 {
				rights = unix.UnixRights(files...)
			}
			if _, _, err := to.WriteMsgUnix(message, rights, nil); err != nil {
				acts = false
			}
		}
		for _, fd := range files {
			_ = unix.Close(fd)
		}
		if acts {
			x.act()
			close(x.acted)
			return
		}
	}
}

// step counts a message. It reports whether to act at it, and whether the exchange is
// over already.
func (x *exchange) step(kind byte) (acts, over bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if n := len(x.steps); kind != 'N' || n == 0 || x.steps[n-1] != 'N' {
		x.steps += string(kind)
	}
	if x.over || x.act == nil || x.steps != x.at {
		return false, x.over
	}
	x.over = true
	return true, false
}

// readMessage reads a message and its descriptors.
func readMessage(c *net.UnixConn) (message []byte, files []int, err error) {
	message = make([]byte, 5)
	for n := 0; n < len(message); {
		rights := make([]byte, 2048)
		got, size, _, _, err := c.ReadMsgUnix(message[n:], rights)
		if err == nil && got == 0 {
			err = io.EOF
		}
		if err != nil {
			return nil, nil, err
		}
		parsed, _ := unix.ParseSocketControlMessage(rights[:size])
		for i := range parsed {
			fds, _ := unix.ParseUnixRights(&parsed[i])
			files = append(files, fds...)
		}
		if n += got; n == 5 {
			message = append(message, make([]byte, binary.LittleEndian.Uint32(message[1:]))...)
		}
	}
	return message, files, nil
}
