package main

import (
	"net/netip"

	"github.com/arqnet/kcp/internal/udp"
)

// udpWindow is how far bare UDP may be ahead of its receiver, in bytes.
const udpWindow = bulkWindow * wireMTU

type udpSource struct {
	conn  udp.Conn
	to    netip.AddrPort
	batch []udp.Datagram
	flow  *flow

	progress <-chan struct{} // the receiver is about to wait
}

func (s *udpSource) send(r *rope, position uint64, n int) error {
	for position+uint64(n) > s.flow.received.Load()+udpWindow {
		<-s.progress
	}
	s.batch = s.batch[:0]
	for n > 0 {
		m := min(n, wireMTU)
		s.batch = append(s.batch, udp.Datagram{Buf: r.at(position, m), Addr: s.to})
		position += uint64(m)
		n -= m
	}
	_, err := s.conn.WriteBatch(s.batch)
	return err
}

type udpSink struct {
	conn   udp.Conn
	batch  []udp.Datagram
	n, got int

	progress chan<- struct{}
}

func (s *udpSink) receive() ([]byte, error) {
	if s.got == s.n {
		select {
		case s.progress <- struct{}{}:
		default:
		}
		n, err := s.conn.ReadBatch(s.batch)
		if err != nil {
			return nil, err
		}
		s.n, s.got = n, 0
	}
	s.got++
	return s.batch[s.got-1].Buf, nil
}
