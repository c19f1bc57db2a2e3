package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"

	"github.com/arqnet/kcp/internal/udp"
)

// The other implementations, beside kcp and kcp-go.
const (
	quicGo    = "quic-go"
	kernelTCP = "tcp"
	bareUDP   = "udp"
)

// settings say how the connections of a measurement are made. What an
// implementation has no setting for, it does its own way.
type settings struct {
	mode   string // one of modes
	window int    // segments, both ways
	buffer int    // of each socket, in bytes; 0 leaves the system's default
}

// Modes of a connection.
const (
	plain   = "plain"
	aesGCM  = "aes-gcm"
	aesCFB  = "aes-cfb"
	fecMix  = "fec-10-3"
	overTLS = "tls"
)

const (
	wireMTU      = 1400    // UDP payload of a full packet, whoever sends it
	bulkWindow   = 1024    // segments
	bulkBuffer   = 8 << 20 // bytes
	fecDataPart  = 10
	fecExtraPart = 3
)

var packetKey = bytes.Repeat([]byte{7}, 16)

// peer is an implementation with one listening end on the loopback interface.
type peer interface {
	// Dial opens a connection from a socket of its own. The listening end
	// need not learn of it before something is written.
	Dial() (io.ReadWriteCloser, error)
	Accept() (io.ReadWriteCloser, error)
	// Close ends what is left, the listening end last.
	Close() error
}

// newPeer starts the named implementation.
func newPeer(impl string, s settings) (peer, error) {
	switch impl {
	case ours:
		return newKCPPeer(s)
	case kcpGo:
		return newKCPGoPeer(s)
	case kcpGoAPI:
		return newFacadePeer(s)
	case quicGo:
		return newQUICPeer(s)
	case kernelTCP:
		return newTCPPeer()
	}
	return nil, fmt.Errorf("no implementation %q", impl)
}

// loopback is where everything listens.
const loopback = "127.0.0.1:0"

// openSocket opens a UDP socket with buffers of the given size, which the same
// means get for every implementation.
func openSocket(buffer int) (*net.UDPConn, error) {
	pc, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(loopback)))
	if err != nil {
		return nil, err
	}
	if buffer > 0 {
		if err := udp.SetBuffers(pc, buffer); err != nil {
			return nil, errors.Join(err, pc.Close())
		}
	}
	return pc, nil
}

// connect dials a connection and returns both ends of it. A byte goes each way,
// which most implementations need for the listening end to know of it.
func connect(p peer) (client, server io.ReadWriteCloser, err error) {
	if client, err = p.Dial(); err != nil {
		return nil, nil, err
	}
	if _, err = client.Write([]byte{greeting}); err != nil {
		return nil, nil, err
	}
	if server, err = p.Accept(); err != nil {
		return nil, nil, err
	}
	if err = wantGreeting(server); err != nil {
		return nil, nil, err
	}
	if _, err = server.Write([]byte{greeting}); err != nil {
		return nil, nil, err
	}
	return client, server, wantGreeting(client)
}

// What sessions begin with.
const (
	greeting       = '!'
	greetingUpload = '^' // bulk follows
)

func wantGreeting(r io.Reader) error {
	var b [1]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return err
	}
	if b[0] != greeting {
		return errContent
	}
	return nil
}

var errContent = errors.New("the received bytes are not those that were sent")

// rope is an endless stream of known bytes: random ones, repeated with a period
// that no packet or buffer size divides. Comparing is as cheap as reading, and
// what is lost, doubled, swapped or changed does not fit; multiples of the
// period show in the number of bytes.
type rope struct {
	table  []byte // two periods, so that any part of one is in one piece
	period int
}

// ropePeriod is a prime, small enough to stay in the processor's cache, and more
// than writeSize, so that a write is one.
const ropePeriod = 65537

func newRope() *rope {
	one := make([]byte, ropePeriod)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(one)
	return &rope{table: append(one, one...), period: ropePeriod}
}

// at returns n bytes, one period at most, that begin at a position.
func (r *rope) at(position uint64, n int) []byte {
	from := int(position % uint64(r.period))
	return r.table[from : from+n]
}

// check compares what was received at a position with what was sent there.
func (r *rope) check(position uint64, b []byte) error {
	for len(b) > 0 {
		n := min(len(b), r.period)
		if !bytes.Equal(b[:n], r.at(position, n)) {
			return fmt.Errorf("%w, at byte %d or soon after", errContent, position)
		}
		position += uint64(n)
		b = b[n:]
	}
	return nil
}

// closers closes several things, the last first.
type closers []io.Closer

func (c closers) Close() error {
	var errs []error
	for i := range c {
		errs = append(errs, c[len(c)-1-i].Close())
	}
	return errors.Join(errs...)
}
