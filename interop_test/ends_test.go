package interop

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/arqnet/kcp"

	"github.com/arqnet/kcp/congestion"
	kcpgo "github.com/xtaci/kcp-go/v5"
)

// flags are the settings of one end that are on or off.
type flags uint8

const (
	nodelay  flags = 1 << iota // bound the retransmission time-out at 30 ms
	resend                     // fast resend after 2 acknowledgements; never otherwise
	nc                         // no congestion control; the reference's otherwise
	messages                   // message mode; stream mode otherwise

	noFlags  flags = 0
	allFlags       = nodelay | resend | nc | messages
)

var flagNames = []struct {
	flag flags
	name string
}{{nodelay, "nodelay"}, {resend, "resend"}, {nc, "nc"}, {messages, "messages"}}

// tuning is what one end is set to, in terms that either implementation knows.
type tuning struct {
	window int // segments, both ways
	mtu    int // bytes of UDP payload
	flags
}

func (u tuning) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d×%d", u.window, u.mtu)
	for _, f := range flagNames {
		if u.has(f.flag) {
			b.WriteString("+" + f.name)
		}
	}
	return b.String()
}

func (f flags) has(flag flags) bool { return f&flag != 0 }

// mss returns how many bytes of data a segment holds.
func (u tuning) mss() int { return u.mtu - headerSize }

const (
	headerSize = 24 // of a segment

	// interval is the flush interval of kcp-go in milliseconds.
	interval = 10
	// fastResend is the number of acknowledgements behind the flag resend.
	fastResend = 2
	// socketBuffer is asked of the system for each socket. Those of kcp-go
	// would otherwise lose packets that no path has lost.
	socketBuffer = 4 << 20
	// linger is how long Close may take at our end. A time-out that losses have
	// backed off to its maximum, of 5 s, has to fit in several times.
	linger = 5 * time.Minute
)

// end is one end of a session, of either implementation.
type end interface {
	net.Conn
	conversation() uint32
	stats() string
}

// listener accepts sessions, with either implementation.
type listener interface {
	address() string
	accept(deadline time.Time) (end, error)
	Close() error
}

// implementation makes the ends of sessions.
type implementation interface {
	fmt.Stringer
	dial(address string, u tuning) (end, error)
	listen(u tuning) (listener, error)
}

// ours is package kcp.
type ours struct {
	untuned bool // has the defaults of the package, whatever the tuning
}

func (ours) String() string { return "ours" }

func (o ours) config(u tuning) *kcp.Config {
	if o.untuned {
		return nil
	}
	c := &kcp.Config{
		MessageMode:       u.has(messages),
		MTU:               u.mtu,
		SendWindow:        u.window,
		ReceiveWindow:     u.window,
		NoDelay:           kcp.NoDelayOff,
		FastResend:        -1,
		CongestionControl: congestion.NewReference,
		SocketBuffer:      socketBuffer,
		Linger:            linger,
	}
	if u.has(nodelay) {
		c.NoDelay = kcp.NoDelayOn
	}
	if u.has(resend) {
		c.FastResend = fastResend
	}
	if u.has(nc) {
		c.CongestionControl = congestion.NewNone
	}
	return c
}

func (o ours) dial(address string, u tuning) (end, error) {
	c, err := kcp.Dial("udp", address, o.config(u))
	if err != nil {
		return nil, err
	}
	return ourEnd{c}, nil
}

func (o ours) listen(u tuning) (listener, error) {
	l, err := kcp.Listen("udp", "127.0.0.1:0", o.config(u))
	if err != nil {
		return nil, err
	}
	return ourListener{l}, nil
}

type ourEnd struct{ *kcp.Conn }

func (e ourEnd) conversation() uint32 { return e.Conv() }
func (e ourEnd) stats() string        { return fmt.Sprintf("%+v", e.Stats()) }

type ourListener struct{ *kcp.Listener }

func (l ourListener) address() string { return l.Addr().String() }

func (l ourListener) accept(deadline time.Time) (end, error) {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	c, err := l.AcceptKCP(ctx)
	if err != nil {
		return nil, err
	}
	return ourEnd{c}, nil
}

// theirs is kcp-go, without error correction and encryption.
type theirs struct {
	untuned bool // has the defaults of the package, whatever the tuning
}

func (theirs) String() string { return "kcp-go" }

func (i theirs) dial(address string, u tuning) (end, error) {
	s, err := kcpgo.DialWithOptions(address, nil, 0, 0)
	if err != nil {
		return nil, err
	}
	_ = s.SetReadBuffer(socketBuffer) // the system may grant less
	_ = s.SetWriteBuffer(socketBuffer)
	return theirEnd{s}, i.tune(s, u)
}

func (i theirs) listen(u tuning) (listener, error) {
	l, err := kcpgo.ListenWithOptions("127.0.0.1:0", nil, 0, 0)
	if err != nil {
		return nil, err
	}
	_ = l.SetReadBuffer(socketBuffer) // the system may grant less
	_ = l.SetWriteBuffer(socketBuffer)
	return theirListener{l, i, u}, nil
}

// tune sets up a session.
func (i theirs) tune(s *kcpgo.UDPSession, u tuning) error {
	if i.untuned {
		return nil
	}
	set := func(flag flags, value int) int {
		if u.has(flag) {
			return value
		}
		return 0
	}
	s.SetNoDelay(set(nodelay, 1), interval, set(resend, fastResend), set(nc, 1))
	s.SetWindowSize(u.window, u.window)
	s.SetStreamMode(!u.has(messages))
	if !s.SetMtu(u.mtu) {
		return fmt.Errorf("kcp-go refuses an MTU of %d", u.mtu)
	}
	return nil
}

type theirEnd struct{ *kcpgo.UDPSession }

func (e theirEnd) conversation() uint32 { return e.GetConv() }

// stats returns all that kcp-go tells of one session.
func (e theirEnd) stats() string {
	return fmt.Sprintf("{RTO:%dms SRTT:%dms RTTVar:%dms}", e.GetRTO(), e.GetSRTT(), e.GetSRTTVar())
}

type theirListener struct {
	*kcpgo.Listener
	theirs theirs
	tuning tuning // of the sessions
}

func (l theirListener) address() string { return l.Addr().String() }

func (l theirListener) accept(deadline time.Time) (end, error) {
	if err := l.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	s, err := l.AcceptKCP()
	if err != nil {
		return nil, err
	}
	return theirEnd{s}, l.theirs.tune(s, l.tuning)
}
