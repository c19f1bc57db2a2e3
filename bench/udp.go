package main

import (
	"io"
	"net"
	"net/netip"

	"github.com/arqnet/kcp/internal/udp"
)

const (
	udpWriteSize = 46 * wireMTU // what leaves as one large packet
	udpWindow    = bulkWindow * wireMTU
)

// udpFlow returns a flow of bare datagrams with all the help of the kernel
// that there is. It has no acknowledgements; so that nothing is lost, the sender
// looks at the receiver's count, which costs nothing.
func udpFlow() (*flow, io.Closer, error) {
	sockets, end, err := udpSockets()
	if err != nil {
		return nil, nil, err
	}
	addr := sockets[1].LocalAddr().(*net.UDPAddr).AddrPort()
	from, to := udp.New(sockets[0]), udp.New(sockets[1])
	progress := make(chan struct{}, 1) // the receiver is about to wait
	var f *flow
	var out []udp.Datagram
	in, n, got := make([]udp.Datagram, to.BatchSize()), 0, 0
	f = newFlow(func(r *rope, at uint64, n int) error {
		for at+uint64(n) > f.received.Load()+udpWindow {
			<-progress
		}
		out = out[:0]
		for n > 0 {
			m := min(n, wireMTU)
			out = append(out, udp.Datagram{Buf: r.at(at, m), Addr: addr})
			at, n = at+uint64(m), n-m
		}
		_, err := from.WriteBatch(out)
		return err
	}, func() ([]byte, error) {
		if got == n {
			select {
			case progress <- struct{}{}:
			default:
			}
			if n, err = to.ReadBatch(in); err != nil {
				return nil, err
			}
			got = 0
		}
		got++
		return in[got-1].Buf, nil
	}, udpWriteSize)
	return f, end, nil
}

// udpSockets opens two sockets.
func udpSockets() (s [2]*net.UDPConn, end closers, err error) {
	for i := range s {
		if s[i], err = openSocket(bulkBuffer); err != nil {
			return s, nil, err
		}
		end = append(end, s[i])
	}
	return s, end, nil
}

// udpEcho is a socket that writes to whoever it read from.
type udpEcho struct {
	*net.UDPConn
	peer netip.AddrPort
}

func (e *udpEcho) Read(b []byte) (n int, err error) {
	n, e.peer, err = e.ReadFromUDPAddrPort(b)
	return n, err
}

func (e *udpEcho) Write(b []byte) (int, error) { return e.WriteToUDPAddrPort(b, e.peer) }
