package interop

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/des"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
	"github.com/tjfoc/gmsm/sm4"
	kcpgo "github.com/xtaci/kcp-go/v5"
	"golang.org/x/crypto/blowfish"
	"golang.org/x/crypto/cast5"
	"golang.org/x/crypto/tea"
	"golang.org/x/crypto/twofish"
	"golang.org/x/crypto/xtea"
)

// mode is one way of encrypting packets, by either implementation.
type mode struct {
	name   string
	ours   func(key []byte) (crypt.Cipher, error)
	theirs func(key []byte) (kcpgo.BlockCrypt, error)
	key    int // bytes
}

// cfb is a mode of ours made of a block cipher.
func cfb[B cipher.Block](newCipher func([]byte) (B, error)) func([]byte) (crypt.Cipher, error) {
	return func(key []byte) (crypt.Cipher, error) {
		b, err := newCipher(key)
		if err != nil {
			return nil, err
		}
		return crypt.Locked(crypt.CFB(b)), nil // gmsm keeps state in its blocks
	}
}

// modes are all that kcp-go has.
var modes = []mode{
	{"no cipher", nil, nil, 0},
	{"aes-128", cfb(aes.NewCipher), kcpgo.NewAESBlockCrypt, 16},
	{"aes-192", cfb(aes.NewCipher), kcpgo.NewAESBlockCrypt, 24},
	{"aes-256", cfb(aes.NewCipher), kcpgo.NewAESBlockCrypt, 32},
	{"3des", cfb(des.NewTripleDESCipher), kcpgo.NewTripleDESBlockCrypt, 24},
	{"blowfish", cfb(blowfish.NewCipher), kcpgo.NewBlowfishBlockCrypt, 32},
	{"cast5", cfb(cast5.NewCipher), kcpgo.NewCast5BlockCrypt, 16},
	{"sm4", cfb(sm4.NewCipher), theirSM4, 16},
	{"tea", cfb(tea16), kcpgo.NewTEABlockCrypt, 16},
	{"twofish", cfb(twofish.NewCipher), kcpgo.NewTwofishBlockCrypt, 32},
	{"xtea", cfb(xtea.NewCipher), kcpgo.NewXTEABlockCrypt, 16},
	{"salsa20", crypt.Salsa20, kcpgo.NewSalsa20BlockCrypt, 32},
	{"xor", func(key []byte) (crypt.Cipher, error) { return crypt.XOR(key), nil }, kcpgo.NewSimpleXORBlockCrypt, 32},
	{"none", func([]byte) (crypt.Cipher, error) { return crypt.None(), nil }, kcpgo.NewNoneBlockCrypt, 32},
	{"aes-128-gcm", crypt.AESGCM, kcpgo.NewAESGCMCrypt, 16},
	{"aes-256-gcm", crypt.AESGCM, kcpgo.NewAESGCMCrypt, 32},
}

// theirSM4 is kcp-go's SM4 for one goroutine at a time. The two goroutines of a
// session share its state otherwise, and now and then spoil a packet.
func theirSM4(key []byte) (kcpgo.BlockCrypt, error) {
	b, err := kcpgo.NewSM4BlockCrypt(key)
	return &locked{BlockCrypt: b}, err
}

// locked is a cipher that one goroutine uses at a time.
type locked struct {
	mu sync.Mutex
	kcpgo.BlockCrypt
}

func (l *locked) Encrypt(dst, src []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.BlockCrypt.Encrypt(dst, src)
}

func (l *locked) Decrypt(dst, src []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.BlockCrypt.Decrypt(dst, src)
}

// tea16 is TEA with the 16 rounds that kcp-go gives it.
func tea16(key []byte) (cipher.Block, error) { return tea.NewCipherWithRounds(key, 16) }

// ratios are the ratios of error correction that every mode is tried with.
var ratios = []kcp.FEC{{}, {Data: 10, Parity: 3}, {Data: 3, Parity: 1}, {Data: 1, Parity: 1}, {Data: 20, Parity: 10}}

// rough is the path that the envelope is tried on.
var rough = path{name: "rough", relay: true, link: netsim.LinkConfig{
	Delay: 10 * time.Millisecond, Jitter: 10 * time.Millisecond, Loss: 0.15, Reorder: 0.2,
}}

// envelope is what one end puts around its packets.
type envelope struct {
	mode
	fec kcp.FEC
}

func (e envelope) secret() []byte { return bytes.Repeat([]byte{0x5a}, e.key) }

// ourEnvelope is package kcp with an envelope.
type ourEnvelope struct {
	ours
	envelope
}

func (o ourEnvelope) String() string { return o.ours.String() }

func (o ourEnvelope) config(u tuning) (*kcp.Config, error) {
	c := o.ours.config(u)
	c.FEC = o.fec
	if o.mode.ours == nil {
		return c, nil
	}
	var err error
	c.Cipher, err = o.mode.ours(o.secret())
	c.LegacyPeers = kcp.LegacyAllow // kcp-go dials too
	return c, err
}

func (o ourEnvelope) dial(address string, u tuning) (end, error) {
	config, err := o.config(u)
	if err != nil {
		return nil, err
	}
	c, err := kcp.Dial("udp", address, config)
	if err != nil {
		return nil, err
	}
	return ourEnd{c}, nil
}

func (o ourEnvelope) listen(u tuning) (listener, error) {
	config, err := o.config(u)
	if err != nil {
		return nil, err
	}
	l, err := kcp.Listen("udp", "127.0.0.1:0", config)
	if err != nil {
		return nil, err
	}
	return ourListener{l}, nil
}

// theirEnvelope is kcp-go with an envelope.
type theirEnvelope struct {
	theirs
	envelope
}

func (i theirEnvelope) String() string { return i.theirs.String() }

func (i theirEnvelope) block() (kcpgo.BlockCrypt, error) {
	if i.mode.theirs == nil {
		return nil, nil
	}
	return i.mode.theirs(i.secret())
}

func (i theirEnvelope) dial(address string, u tuning) (end, error) {
	block, err := i.block()
	if err != nil {
		return nil, err
	}
	s, err := kcpgo.DialWithOptions(address, block, i.fec.Data, i.fec.Parity)
	if err != nil {
		return nil, err
	}
	return theirEnd{s}, i.tune(s, u)
}

func (i theirEnvelope) listen(u tuning) (listener, error) {
	block, err := i.block()
	if err != nil {
		return nil, err
	}
	l, err := kcpgo.ListenWithOptions("127.0.0.1:0", block, i.fec.Data, i.fec.Parity)
	if err != nil {
		return nil, err
	}
	return theirListener{l, i.theirs, u}, nil
}

// enveloped returns the two parties of a session with envelopes.
func enveloped(m mode, our, their kcp.FEC) (us, them party) {
	u := tuning{512, 1400, nodelay | resend | nc}
	return party{ourEnvelope{ours{}, envelope{m, our}}, u}, party{theirEnvelope{theirs{}, envelope{m, their}}, u}
}

func ratioName(r kcp.FEC) string { return fmt.Sprintf("%d-%d", r.Data, r.Parity) }

// TestEnvelope moves 1 MB each way with every cipher and every ratio, with
// either end listening, directly and through loss and reordering.
func TestEnvelope(t *testing.T) {
	for i, m := range modes {
		for j, ratio := range ratios {
			us, them := enveloped(m, ratio, ratio)
			plans := slices.Concat(bothWays(us, them, direct), bothWays(us, them, rough))
			for _, p := range covering(plans, i+j) {
				name := fmt.Sprintf("%s/%s/%s/%v dials", m.name, ratioName(ratio), p.path.name, p.dialler.implementation)
				t.Run(name, func(t *testing.T) {
					if p.path.relay {
						t.Parallel()
					}
					envelopeCase(t, p)
				})
			}
		}
	}
}

// inOrder is the path for error correction that kcp-go is not set to: if parity
// overtakes the first data, kcp-go takes it for data (TestKCPGoTakesParityForData).
var inOrder = path{name: "in order", relay: true, link: netsim.LinkConfig{Delay: 15 * time.Millisecond, Loss: 0.10}}

// TestOneSidedFEC has error correction in one direction, or another ratio in
// each.
func TestOneSidedFEC(t *testing.T) {
	for i, m := range []mode{modes[0], modes[1], modes[15]} {
		for j, r := range [][2]kcp.FEC{{ratios[1], {}}, {{}, ratios[1]}, {ratios[2], ratios[4]}, {ratios[3], ratios[1]}} {
			us, them := enveloped(m, r[0], r[1])
			bad := rough
			if r[1] == (kcp.FEC{}) {
				bad = inOrder
			}
			plans := slices.Concat(bothWays(us, them, bad), bothWays(us, them, direct))
			for _, p := range covering(plans, i+j) {
				name := fmt.Sprintf("%s/ours %s/theirs %s/%s/%v dials", m.name, ratioName(r[0]), ratioName(r[1]), p.path.name, p.dialler.implementation)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					envelopeCase(t, p)
				})
			}
		}
	}
}

func envelopeCase(t *testing.T, p plan) {
	s := newService(t, p)
	s.dial()
	s.check(s.transfer(1 * mB))
	for _, n := range s.sessions {
		s.check(n.ours().Close())
		stats := n.ours().Stats()
		if d := stats.Dropped; d.Total() != d.FEC { // parity may come late
			s.check(fmt.Errorf("packets of a well-behaved peer were dropped: %+v", d))
		}
	}
}

// TestRatioChange has kcp-go change its ratio in mid-session.
func TestRatioChange(t *testing.T) {
	for _, path := range []path{direct, rough} {
		for _, change := range [][2]kcp.FEC{{ratios[1], ratios[2]}, {ratios[2], ratios[4]}, {ratios[4], ratios[3]}} {
			us, them := enveloped(modes[15], change[0], change[0])
			for _, p := range bothWays(us, them, path) {
				name := fmt.Sprintf("%s/%s to %s/%v dials", path.name, ratioName(change[0]), ratioName(change[1]), p.dialler.implementation)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					n := open(t, p)
					n.check(n.transfer(1 * mB))
					require.Equal(t, change[0], n.ours().Stats().FEC.PeerRatio)
					before := n.ours().Stats().FEC
					n.check(changeRatio(n.theirs(), change[1]))
					for range 3 {
						n.check(n.transfer(1 * mB))
					}
					after := n.ours().Stats().FEC
					require.Equal(t, change[1], after.PeerRatio)
					if path.relay {
						require.Greater(t, after.Recovered, before.Recovered+50)
					}
					n.check(n.ours().Close())
				})
			}
		}
	}
}

// changeRatio gives a session of kcp-go another encoder. kcp-go has no call for
// it; its users restart one end. The encoder is taken from a session made for
// it with the same header in front.
func changeRatio(s *kcpgo.UDPSession, ratio kcp.FEC) error {
	block, err := modes[15].theirs(envelope{mode: modes[15]}.secret())
	if err != nil {
		return err
	}
	donor, err := kcpgo.DialWithOptions("127.0.0.1:1", block, ratio.Data, ratio.Parity)
	if err != nil {
		return err
	}
	field := func(s *kcpgo.UDPSession) reflect.Value {
		f := reflect.ValueOf(s).Elem().FieldByName("fecEncoder")
		return reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem()
	}
	field(s).Set(field(donor))
	return donor.Close()
}

// TestDatagrams exchanges datagrams with kcp-go's out-of-band packets.
func TestDatagrams(t *testing.T) {
	for _, m := range modes {
		us, them := enveloped(m, ratios[1], ratios[1])
		for _, p := range bothWays(us, them, direct) {
			t.Run(fmt.Sprintf("%s/%v dials", m.name, p.dialler.implementation), func(t *testing.T) {
				n := open(t, p)
				var mu sync.Mutex
				got := make(chan []byte, 16)
				require.NoError(t, n.theirs().SetOOBHandler(func(b []byte) {
					mu.Lock()
					defer mu.Unlock()
					got <- bytes.Clone(b)
				}))
				require.Equal(t, n.theirs().GetOOBMaxSize(), n.ours().MaxDatagramSize())
				// Before kcp-go has acknowledged something, datagrams may be dropped.
				acknowledged := func() bool { return n.ours().Stats().WriteBuffered == 0 }
				await.True(t, acknowledged)
				for _, size := range []int{0, 1, 500, n.ours().MaxDatagramSize()} {
					want := bytes.Repeat([]byte{byte(size)}, size)
					require.NoError(t, n.ours().SendDatagram(want))
					require.Equal(t, want, append([]byte{}, <-got...))
					require.NoError(t, n.theirs().SendOOB(want))
					b, err := n.ours().ReceiveDatagram(t.Context())
					n.check(err)
					require.Equal(t, want, append([]byte{}, b...))
				}
				n.check(n.ours().Close())
			})
		}
	}
}
