package kcp

import (
	"errors"
	"net"
	"time"

	"github.com/arqnet/kcp/internal/udp"
)

// shard is one socket of an endpoint. Several are on the same port, so that it
// does not matter to the peers from which one they are answered; a session
// keeps to the one that its peer's packets come to, whose reader it shares the
// processor with.
type shard struct {
	pc   net.PacketConn
	sock udp.Conn
	lead readTurn

	// Of whoever reads it.
	batch    []udp.Datagram
	in       readState
	failures int // in a row
}

// listenSockets opens n sockets on one address, or one where the system does
// not let several share it.
func listenSockets(network, address string, n int) ([]net.PacketConn, error) {
	if n > 1 {
		conns, err := udp.ListenReusePort(network, address, n)
		if err == nil {
			sockets := make([]net.PacketConn, n)
			for i, c := range conns {
				sockets[i] = c
			}
			return sockets, nil
		}
		if !errors.Is(err, errors.ErrUnsupported) {
			return nil, err
		}
	}
	addr, err := net.ResolveUDPAddr(network, address)
	if err != nil {
		return nil, opError("listen", nil, nil, err)
	}
	pc, err := net.ListenUDP(network, addr)
	if err != nil {
		return nil, err
	}
	return []net.PacketConn{pc}, nil
}

// stopReaders has the readers come to their end: the sockets are closed, if
// they are ours.
func (e *Endpoint) stopReaders() {
	for i := range e.socket.shards {
		e.socket.shards[i].lead.stop()
		if e.socket.owned {
			_ = e.socket.shards[i].pc.Close()
		} else {
			_ = e.socket.shards[i].pc.SetReadDeadline(time.Unix(1, 0))
		}
	}
}

// releaseSockets gives sockets that are not ours back as they were.
func (e *Endpoint) releaseSockets() error {
	var errs []error
	for i := range e.socket.shards {
		errs = append(errs, e.socket.shards[i].sock.Release(), e.socket.shards[i].pc.SetReadDeadline(time.Time{}))
	}
	return errors.Join(errs...)
}
