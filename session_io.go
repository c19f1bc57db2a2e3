package kcp

import (
	"io"
	"net"
	"os"
)

// Read reads the next bytes, waiting for them if need be. In message mode it
// reads through message boundaries, without losing what does not fit into b.
// It fails with os.ErrDeadlineExceeded when the read deadline has passed, also
// where there is data; with net.ErrClosed after Close; and after all data that
// has arrived with io.EOF, when the peer has closed the session or its side of
// it, with ErrReset, when it has broken it off, or a *PeerLostError, when it is
// gone.
func (c *Conn) Read(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := c.cannotRead(); err != nil {
			return 0, c.opError("read", err)
		}
		if len(b) == 0 {
			return 0, nil
		}
		n := c.kcp.recvBytes(b)
		if n == 0 {
			if err := c.readEnd(); err != nil {
				return 0, c.opError("read", err)
			}
			if n = c.waitRead(b); n == 0 {
				continue
			}
			n += c.kcp.recvBytes(b[n:])
		}
		c.afterRead()
		return n, nil
	}
}

// waitRead waits for news. Until then the state machine may put what arrives
// straight into b; it returns how much that was.
func (c *Conn) waitRead(b []byte) (n int) {
	if c.io.filling {
		c.io.canRead.Wait() // another reader comes first
		return 0
	}
	c.io.filling = true
	c.kcp.lendReadBuffer(b)
	c.io.canRead.Wait()
	c.io.filling = false
	return len(b) - c.kcp.takeReadBuffer()
}

// ReadMessage reads the next message and returns its size, which may be 0. If
// b is too small, the message is left where it is and the error is
// io.ErrShortBuffer. Other errors are those of Read, and ErrNotMessageMode.
func (c *Conn) ReadMessage(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := c.cannotRead(); err != nil {
			return 0, c.opError("read", err)
		}
		if !c.ep.config.MessageMode {
			return 0, c.opError("read", ErrNotMessageMode)
		}
		n, err := c.kcp.Recv(b)
		if err == nil {
			c.afterRead()
			return n, nil
		}
		if err == io.ErrShortBuffer {
			return 0, c.opError("read", err)
		}
		if err := c.readEnd(); err != nil {
			return 0, c.opError("read", err)
		}
		c.io.canRead.Wait()
	}
}

// cannotRead returns why nothing may be read, whatever has arrived.
func (c *Conn) cannotRead() error {
	if c.closing.closed {
		return net.ErrClosed
	}
	if c.io.readDeadline.expired {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// readEnd returns why nothing more is going to be read: io.EOF once the peer
// has closed its side and all it wrote has been read.
func (c *Conn) readEnd() error {
	if c.heardOut() {
		if c.kcp.queued() {
			return io.ErrUnexpectedEOF // a message without its end
		}
		return io.EOF
	}
	c.io.errReported = c.io.errReported || c.closing.err != nil
	return c.closing.err
}

// afterRead tells the peer when a read has reopened a shut window.
func (c *Conn) afterRead() {
	if c.closing.state == stateEnded {
		c.kcp.Compact()
	} else if c.timers.compactAt == 0 {
		c.timers.compactAt = c.ep.now() + compactAfter
		c.wake(c.timers.compactAt)
	}
	c.account()
	if c.kcp.windowReopened() && c.closing.state != stateEnded {
		c.push()
	}
}

// Write queues b, and sends as much as the windows allow at once. It waits
// while Config.WriteBuffer is full, and returns when all of b is queued; the
// peer need not have acknowledged it. When it fails, n bytes were queued and
// will be delivered if possible. Errors are os.ErrDeadlineExceeded when the
// write deadline has passed, net.ErrClosed after Close and CloseWrite,
// ErrPeerClosed when the peer has closed the session, and how it has ended:
// *PeerLostError, ErrReset.
func (c *Conn) Write(b []byte) (n int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := c.waitRoom(); err != nil {
			return n, c.opError("write", err)
		}
		if n < len(b) {
			m, err := c.queue(b[n:])
			n += m
			if err != nil {
				return n, c.opError("write", err)
			}
			c.push()
		}
		if n == len(b) {
			return n, nil
		}
	}
}

// queue queues a part of b, at least a segment of it, as far as there is room,
// but not so much that it would better be on its way first. In message mode each
// segment is a message.
func (c *Conn) queue(b []byte) (n int, err error) {
	segments := min(max(c.room()/(c.kcp.segmentPayload()+writeCostPerSegment), 1), writeBatch)
	b = b[:min(len(b), segments*c.kcp.segmentPayload())]
	if !c.ep.config.MessageMode {
		return c.kcp.Send(b)
	}
	for err == nil && n < len(b) {
		var m int
		m, err = c.kcp.Send(b[n:min(len(b), n+c.kcp.segmentPayload())])
		n += m
	}
	return n, err
}

// WriteMessage queues b as one message, which may be empty. It waits as Write
// does. Its errors are those of Write, ErrNotMessageMode, and
// ErrMessageTooLarge for a message of more than 127 segments, or of more than
// the receive window that the peer has shown.
func (c *Conn) WriteMessage(b []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ep.config.MessageMode {
		return c.opError("write", ErrNotMessageMode)
	}
	if err := c.waitRoom(); err != nil {
		return c.opError("write", err)
	}
	if _, err := c.kcp.Send(b); err != nil {
		return c.opError("write", err)
	}
	c.push()
	return nil
}

// waitRoom waits until something may be queued, and returns why not.
func (c *Conn) waitRoom() error {
	for {
		switch {
		case c.closing.closed:
			return net.ErrClosed
		case c.io.writeDeadline.expired:
			return os.ErrDeadlineExceeded
		case c.hs.peerClosed:
			return ErrPeerClosed
		case c.closing.err != nil:
			c.io.errReported = true
			return c.closing.err
		case c.hs.closing != 0:
			return net.ErrClosed
		case c.room() > 0:
			return nil
		}
		c.io.canWrite.Wait()
	}
}

// room returns how much of the write buffer is free.
func (c *Conn) room() int {
	return c.ep.config.WriteBuffer - c.kcp.sendBytes() - c.kcp.WaitSend()*writeCostPerSegment
}

// push sends what there is, as far as the windows allow.
func (c *Conn) push() {
	now := c.ep.now()
	if c.io.replyPending { // this says it all
		c.io.respondPending, c.io.replyPending = false, false
	}
	c.flush(now)
	c.finishStep(now)
	c.writePackets()
}
