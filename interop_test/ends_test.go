package interop

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
	"github.com/stretchr/testify/require"
	kcpgo "github.com/xtaci/kcp-go/v5"
)

// flags are the settings of one end that are on or off.
type flags uint8

const (
	nodelay  flags = 1 << iota // bound the retransmission time-out at 30 ms
	resend                     // fast resend after 2 acknowledgements; never otherwise
	nc                         // no congestion control; the reference's otherwise
	messages                   // message mode; stream mode otherwise

	allFlags = nodelay | resend | nc | messages
	quick    = nodelay | resend | nc
)

// tuning is what one end is set to, in terms that either implementation knows. The zero
// value leaves it as it is when nobody sets anything.
type tuning struct {
	window int // segments, both ways
	mtu    int // bytes of UDP payload
	flags
}

func (u tuning) String() string {
	text := fmt.Sprintf("%d×%d", u.window, u.mtu)
	for i, name := range strings.Fields("nodelay resend nc messages") {
		if u.has(1 << i) {
			text += "+" + name
		}
	}
	return text
}

func (f flags) has(flag flags) bool { return f&flag != 0 }

// mss returns how many bytes of data a segment holds.
func (u tuning) mss() int { return u.mtu - headerSize }

const (
	headerSize = 24 // of a segment

	interval   = 10 // of kcp-go's flushes, in milliseconds
	fastResend = 2  // acknowledgements, behind the flag resend

	// timeLimit ends no test on a busy machine, but a session whose peer is gone.
	timeLimit = time.Hour
	// socketBuffer is asked of the system for each socket. Those of kcp-go
	// would otherwise lose packets that no path has lost.
	socketBuffer = 4 << 20
)

// envelope is what one end puts around its packets.
type envelope struct {
	mode
	fec kcp.FEC
}

func (e envelope) secret() []byte { return bytes.Repeat([]byte{0x5a}, e.key) }

// end is one end of a session, of either implementation.
type end interface {
	net.Conn
	conversation() uint32
}

// listener accepts sessions, with either implementation.
type listener interface {
	address() string
	accept() (end, error)
	Close() error
}

// party makes the ends of sessions.
type party interface {
	fmt.Stringer
	dial(t testing.TB, address string) end
	listen(t testing.TB) listener
}

// ours is package kcp.
type ours struct {
	tuning
	envelope
}

func (o ours) String() string { return "ours=" + o.tuning.String() }

func (o ours) config(t testing.TB) *kcp.Config {
	c := &kcp.Config{DialTimeout: timeLimit, PeerTimeout: timeLimit, Linger: timeLimit, FEC: o.fec}
	if o.mode.ours != nil {
		var err error
		c.Cipher, err = o.mode.ours(o.secret())
		require.NoError(t, err)
		c.LegacyPeers = kcp.LegacyAllow // kcp-go dials too
	}
	if o.window == 0 {
		return c
	}
	c.MessageMode, c.MTU, c.SocketBuffer = o.has(messages), o.mtu, socketBuffer
	c.SendWindow, c.ReceiveWindow = o.window, o.window
	c.Tuning.NoDelay, c.Tuning.FastResend, c.CongestionControl = kcp.NoDelayOff, -1, congestion.NewReference
	if o.has(nodelay) {
		c.Tuning.NoDelay = kcp.NoDelayOn
	}
	if o.has(resend) {
		c.Tuning.FastResend = fastResend
	}
	if o.has(nc) {
		c.CongestionControl = congestion.NewNone
	}
	return c
}

func (o ours) dial(t testing.TB, address string) end {
	c, err := kcp.Dial("udp", address, o.config(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Abort(0, "") })
	return ourEnd{c}
}

func (o ours) listen(t testing.TB) listener {
	l, err := kcp.Listen("udp", "127.0.0.1:0", o.config(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Endpoint().Close() })
	return ourListener{l}
}

type ourEnd struct{ *kcp.Conn }

func (e ourEnd) conversation() uint32 { return e.Conv() }

type ourListener struct{ *kcp.Listener }

func (l ourListener) address() string { return l.Addr().String() }

func (l ourListener) accept() (end, error) {
	c, err := l.AcceptKCP(context.Background())
	return ourEnd{c}, err
}

// theirs is kcp-go.
type theirs struct {
	tuning
	envelope
}

func (i theirs) String() string { return "kcp-go=" + i.tuning.String() }

func (i theirs) block(t testing.TB) kcpgo.BlockCrypt {
	if i.mode.theirs == nil {
		return nil
	}
	b, err := i.mode.theirs(i.secret())
	require.NoError(t, err)
	return b
}

func (i theirs) dial(t testing.TB, address string) end {
	s, err := kcpgo.DialWithOptions(address, i.block(t), i.fec.Data, i.fec.Parity)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	_ = s.SetReadBuffer(socketBuffer) // the system may grant less
	_ = s.SetWriteBuffer(socketBuffer)
	require.NoError(t, i.tune(s))
	return theirEnd{s}
}

func (i theirs) listen(t testing.TB) listener {
	l, err := kcpgo.ListenWithOptions("127.0.0.1:0", i.block(t), i.fec.Data, i.fec.Parity)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	_ = l.SetReadBuffer(socketBuffer) // the system may grant less
	_ = l.SetWriteBuffer(socketBuffer)
	return theirListener{l, i}
}

// tune sets up a session.
func (i theirs) tune(s *kcpgo.UDPSession) error {
	if i.window == 0 {
		return nil
	}
	set := func(flag flags, value int) int {
		if i.has(flag) {
			return value
		}
		return 0
	}
	s.SetNoDelay(set(nodelay, 1), interval, set(resend, fastResend), set(nc, 1))
	s.SetWindowSize(i.window, i.window)
	s.SetStreamMode(!i.has(messages))
	if !s.SetMtu(i.mtu) {
		return fmt.Errorf("kcp-go refuses an MTU of %d", i.mtu)
	}
	return nil
}

type theirEnd struct{ *kcpgo.UDPSession }

func (e theirEnd) conversation() uint32 { return e.GetConv() }

type theirListener struct {
	*kcpgo.Listener
	theirs theirs
}

func (l theirListener) address() string { return l.Addr().String() }

func (l theirListener) accept() (end, error) {
	s, err := l.AcceptKCP()
	if err != nil {
		return nil, err
	}
	return theirEnd{s}, l.theirs.tune(s)
}
