package takeover

import (
	"net"
	"time"

	"github.com/arqnet/kcp/internal/udp"
)

// Socket is how an endpoint reaches a socket. It is immutable, and another takes its
// place when the socket is handed over.
type Socket struct {
	Conn    net.PacketConn
	Packets udp.Conn // moves the packets of Conn
	Inbox   *Inbox   // read in place of Conn after a handover; nil: Conn is read
}

// SetReadDeadline sets the deadline of what is read.
func (l *Socket) SetReadDeadline(t time.Time) error {
	if l.Inbox != nil {
		return l.Inbox.SetReadDeadline(t)
	}
	return l.Conn.SetReadDeadline(t)
}

// Read reads one batch.
func (l *Socket) Read(batch []udp.Datagram) (n int, err error) {
	if l.Inbox != nil {
		return l.Inbox.ReadBatch(batch)
	}
	return l.Packets.ReadBatch(batch)
}

// Detached returns the way by which in is read. With leave it takes the socket out of the
// netpoller, which would wake this process for each packet that the successor reads. A
// socket that the caller has, too, stays in it.
func (l Socket) Detached(in *Inbox, leave bool) *Socket {
	l.Inbox = in
	if leave {
		if pc, sock := udp.Detach(l.Packets); pc != nil {
			l.Conn, l.Packets = pc, sock
		}
	}
	return &l
}

// Attached undoes Detached, if the system lets it.
func (l Socket) Attached() (*Socket, error) {
	l.Inbox = nil
	if d, ok := l.Conn.(*udp.Detached); ok {
		pc, err := Reopen(d)
		if err != nil {
			return nil, err
		}
		l.Conn, l.Packets = pc, udp.New(pc)
	}
	return &l, nil
}
