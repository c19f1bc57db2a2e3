package paths

import (
	"bytes"
	"context"
	"crypto/aes"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	kcpgo "github.com/xtaci/kcp-go/v5"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
)

const (
	listening = "10.0.0.1:4000"
	dialling  = "10.0.0.2:5000"
)

// paths are links, both ways.
var paths = map[string]netsim.LinkConfig{
	"0.1 ms":       {Delay: 50 * time.Microsecond},
	"80 ms":        {Delay: 40 * time.Millisecond},
	"600 ms":       {Delay: 300 * time.Millisecond},
	"3 s":          {Delay: 1500 * time.Millisecond},
	"64 kbit/s":    {Delay: 50 * time.Millisecond, Rate: 8000, Queue: 80_000},
	"1 Mbit/s":     {Delay: 20 * time.Millisecond, Rate: 125_000, Queue: 12_500},
	"policer":      {Delay: 20 * time.Millisecond, Rate: 125_000, Bucket: 8000, Queue: 1},
	"loss of 1 %":  {Delay: 30 * time.Millisecond, Loss: 0.01},
	"loss of 10 %": {Delay: 30 * time.Millisecond, Loss: 0.1},
	"loss of 30 %": {Delay: 30 * time.Millisecond, Loss: 0.3},
	"bursts":       {Delay: 30 * time.Millisecond, Burst: netsim.BurstLoss(0.05, 4)},
	"jitter":       {Delay: 30 * time.Millisecond, Jitter: 60 * time.Millisecond, Reorder: 0.2},
	"bunches":      {Delay: 10 * time.Millisecond, Bunch: 205 * time.Millisecond},
}

// change is what happens to a path: it is another one, or gone for a time.
type change struct {
	to   func(l *netsim.LinkConfig)
	gone time.Duration
}

var changes = map[string]change{
	"none":            {},
	"longer":          {to: func(l *netsim.LinkConfig) { l.Delay += 400 * time.Millisecond }},
	"much longer":     {to: func(l *netsim.LinkConfig) { l.Delay += time.Second }},
	"shorter":         {to: func(l *netsim.LinkConfig) { l.Delay /= 4 }},
	"narrower":        {to: func(l *netsim.LinkConfig) { l.Rate, l.Queue = 16_000, 16_000 }},
	"lossier":         {to: func(l *netsim.LinkConfig) { l.Loss = 0.2 }},
	"smaller":         {to: func(l *netsim.LinkConfig) { l.MTU = 1232 }},
	"gone for 100 ms": {gone: 100 * time.Millisecond},
	"gone for 5 s":    {gone: 5 * time.Second},
	"gone for 20 s":   {gone: 20 * time.Second},
	"all at once": {gone: time.Second, to: func(l *netsim.LinkConfig) {
		l.Delay, l.Rate, l.Queue, l.Loss, l.MTU = l.Delay+200*time.Millisecond, 32_000, 32_000, max(l.Loss, 0.05), 1232
	}},
}

// modes are how packets are protected, by either implementation.
var modes = map[string]mode{
	"plain": {},
	"FEC":   {fec: kcp.FEC{Data: 10, Parity: 3}},
	"AES":   {key: bytes.Repeat([]byte{0x5a}, 16)},
}

type mode struct {
	fec kcp.FEC
	key []byte
}

// ours returns the settings of this package's end. What is too large for a path cannot be
// cut again for kcp-go.
func (m mode) ours(t *testing.T) *kcp.Config {
	c := &kcp.Config{FEC: m.fec, MTU: 1200, DialTimeout: patience, PeerTimeout: patience, Linger: patience}
	if m.key != nil {
		b, err := aes.NewCipher(m.key)
		require.NoError(t, err)
		c.Cipher = crypt.CFB(b)
	}
	return c
}

// theirs returns kcp-go's.
func (m mode) theirs(t *testing.T) (b kcpgo.BlockCrypt) {
	if m.key != nil {
		var err error
		b, err = kcpgo.NewAESBlockCrypt(m.key)
		require.NoError(t, err)
	}
	return b
}

// world is a session between the two over a path, in virtual time.
type world struct {
	t      *testing.T
	net    *netsim.Network
	random *rand.Rand
	mode   mode
	ours   *kcp.Conn
	their  *kcpgo.UDPSession
}

// Sessions with kcp-go, dialled by either, carry what is written, whatever happens to the
// path, and end. Without KCP_LONG=1 it is a part of the cases. The name of a case decides
// its seed.
func TestPaths(t *testing.T) {
	for name, link := range paths {
		for what, c := range changes {
			for protected, m := range modes {
				for who, dials := range map[string]bool{"kcp-go dials": true, "kcp-go listens": false} {
					t.Run(name+"/"+what+"/"+protected+"/"+who, func(t *testing.T) {
						h := fnv.New64a()
						fmt.Fprint(h, t.Name())
						if os.Getenv("KCP_LONG") == "" && h.Sum64()%8 > 0 {
							t.Skip("takes a while")
						}
						run(t, h.Sum64(), link, c, m, dials)
					})
				}
			}
		}
	}
}

// A path becomes longer at any time of the opening. Until the first ACK the peer's address
// is not validated.
func TestPathBecomesLongerAtOnce(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			run(t, seed, paths["3 s"], changes["longer"], modes["plain"], true)
		})
	}
}

func run(t *testing.T, seed uint64, link netsim.LinkConfig, c change, m mode, theyDial bool) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, mode: m, net: netsim.NewNetwork(seed, link), random: rand.New(rand.NewPCG(seed, 1))}
		w.run(link, c, theyDial)
	})
}

// run opens the session, has the path change, and converses.
func (w *world) run(link netsim.LinkConfig, c change, theyDial bool) {
	stop := inVirtualTime()
	defer func() {
		if w.their != nil {
			_ = w.their.Close()
		}
		stop()
	}()
	ours, their := listening, dialling
	if !theyDial {
		ours, their = dialling, listening
	}
	e, err := kcp.NewEndpoint(w.listen(ours), w.mode.ours(w.t))
	require.NoError(w.t, err)
	theirSocket := w.listen(their)
	first := []byte("what the dialling end says first")
	if theyDial {
		w.accept(e, theirSocket, first)
	} else {
		w.dial(e, theirSocket, first)
	}
	w.change(link, c)
	w.converse()
	require.NoError(w.t, w.ours.Close())
	require.NoError(w.t, e.Close())
	require.Zero(w.t, e.Stats().Sessions)
	require.NoError(w.t, theirSocket.Close()) // first, as a listener of kcp-go makes sessions of late packets
}

func (w *world) listen(addr string) *netsim.PacketConn {
	pc, err := w.net.Listen(addr)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = pc.Close() })
	return pc
}

// tune sets kcp-go's end up.
func tune(s *kcpgo.UDPSession) *kcpgo.UDPSession {
	s.SetStreamMode(true)
	s.SetNoDelay(1, 10, 2, 1)
	s.SetWindowSize(256, 256)
	s.SetMtu(1200)
	return s
}

// accept has kcp-go dial.
func (w *world) accept(e *kcp.Endpoint, socket net.PacketConn, first []byte) {
	l, err := e.Listen()
	require.NoError(w.t, err)
	w.their, err = kcpgo.NewConn2(l.Addr(), w.mode.theirs(w.t), w.mode.fec.Data, w.mode.fec.Parity, socket)
	require.NoError(w.t, err)
	tune(w.their)
	_, err = w.their.Write(first)
	require.NoError(w.t, err)
	w.ours, err = l.AcceptKCP(w.t.Context())
	require.NoError(w.t, err)
	require.NoError(w.t, testenv.Compare(w.ours, first))
}

// dial has kcp-go listen.
func (w *world) dial(e *kcp.Endpoint, socket net.PacketConn, first []byte) {
	l, err := kcpgo.ServeConn(w.mode.theirs(w.t), w.mode.fec.Data, w.mode.fec.Parity, socket)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = l.Close() })
	w.ours, err = e.Dial(w.t.Context(), l.Addr(), nil)
	require.NoError(w.t, err)
	_, err = w.ours.Write(first)
	require.NoError(w.t, err)
	w.their, err = l.AcceptKCP()
	require.NoError(w.t, err)
	require.NoError(w.t, testenv.Compare(tune(w.their), first))
}

// change has the path change within a second.
func (w *world) change(link netsim.LinkConfig, c change) {
	to := link
	if c.to != nil {
		c.to(&to)
	}
	down := to
	down.Down = c.gone > 0
	at := w.net.Elapsed() + time.Duration(w.random.Int64N(int64(time.Second)))
	w.net.At(at, func() { w.net.SetLink("", "", down) })
	w.net.At(at+c.gone, func() { w.net.SetLink("", "", to) })
}

// patience is how long all of it may take: the narrowest of these paths carries it in half
// a minute, kcp-go sends most of it several times, and it is gone for 20 seconds.
const patience = 5 * time.Minute

// converse makes the calls of this package's end that wait for the peer.
func (w *world) converse() {
	up, down := testenv.Content(1, 30_000), testenv.Content(2, 30_000)
	begin := w.net.Elapsed()
	done := make(chan error, 3)
	go func() { done <- testenv.Compare(w.their, up) }()
	go func() {
		_, err := w.their.Write(down)
		done <- err
	}()
	go func() { done <- testenv.Compare(w.ours, down) }()
	_, err := w.ours.Write(up)
	require.NoError(w.t, err)
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	require.NoError(w.t, w.ours.Flush(ctx))
	_, err = w.ours.Ping(ctx)
	require.ErrorIs(w.t, err, kcp.ErrLegacyPeer)
	_, err = w.ours.OpenStream(ctx, nil)
	require.ErrorIs(w.t, err, kcp.ErrLegacyPeer)
	require.ErrorIs(w.t, w.ours.CloseWrite(), kcp.ErrLegacyPeer)
	for range 3 {
		require.NoError(w.t, <-done)
	}
	require.Less(w.t, w.net.Elapsed()-begin, patience)
}
