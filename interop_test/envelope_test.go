package interop

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/des"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/netpath"
	"github.com/arqnet/kcp/internal/testenv"
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

// enveloped returns the two parties of a session with envelopes.
func enveloped(m mode, our, their kcp.FEC) (ours, theirs) {
	u := tuning{512, 1400, quick}
	return ours{u, envelope{m, our}}, theirs{u, envelope{m, their}}
}

func ratioName(r kcp.FEC) string { return fmt.Sprintf("%d-%d", r.Data, r.Parity) }

// TestEnvelope moves bytes each way with every cipher and every ratio, with either end
// listening, directly and through loss and reordering. If time is short, each cipher has
// one ratio, path and role.
func TestEnvelope(t *testing.T) {
	for i, m := range modes {
		for j, ratio := range ratios {
			if !long && j != i%len(ratios) {
				continue
			}
			us, them := enveloped(m, ratio, ratio)
			for _, p := range covering(plansOf(us, them, direct, rough), i) {
				envelopeCase(t, fmt.Sprintf("%s/%s/%s", m.name, ratioName(ratio), p.name()), p)
			}
		}
	}
}

func envelopeCase(t *testing.T, name string, p plan) {
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		s := newService(t, p)
		s.dial()
		if long {
			s.transfer(1 * mB)
		}
		s.transfer(200 * kB)
		s.close()
	})
}

// inOrder is the path for error correction that kcp-go is not set to: if parity
// overtakes the first data, kcp-go takes it for data (WIRE.md §4.2).
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
			for _, p := range covering(plansOf(us, them, bad, direct), i+j) {
				envelopeCase(t, fmt.Sprintf("%s/ours %s/theirs %s/%s", m.name, ratioName(r[0]), ratioName(r[1]), p.name()), p)
			}
		}
	}
}

// TestRatioChange has kcp-go change its ratio in mid-session.
func TestRatioChange(t *testing.T) {
	for i, change := range [][2]kcp.FEC{{ratios[1], ratios[2]}, {ratios[2], ratios[4]}, {ratios[4], ratios[3]}} {
		us, them := enveloped(modes[15], change[0], change[0])
		for _, p := range covering(plansOf(us, them, rough, direct), i) {
			t.Run(fmt.Sprintf("%s to %s/%s", ratioName(change[0]), ratioName(change[1]), p.name()), func(t *testing.T) {
				t.Parallel()
				n := open(t, p)
				n.transfer(512 * kB)
				before := n.ours().Stats().FEC
				require.Equal(t, change[0], before.PeerRatio)
				changeRatio(t, n.theirs(), change[1])
				for range 3 {
					n.transfer(512 * kB)
				}
				after := n.ours().Stats().FEC
				require.Equal(t, change[1], after.PeerRatio)
				if p.path.relay {
					require.Greater(t, after.Recovered, before.Recovered+20)
				}
				n.close()
			})
		}
	}
}

// changeRatio gives a session of kcp-go another encoder. kcp-go has no call for
// it; its users restart one end. The encoder is taken from a session made for
// it with the same header in front.
func changeRatio(t *testing.T, s *kcpgo.UDPSession, ratio kcp.FEC) {
	_, donor := enveloped(modes[15], ratio, ratio)
	field := func(s *kcpgo.UDPSession) reflect.Value {
		f := reflect.ValueOf(s).Elem().FieldByName("fecEncoder")
		return reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem()
	}
	field(s).Set(field(donor.dial(t, "127.0.0.1:1").(theirEnd).UDPSession))
}

// TestDatagrams exchanges datagrams with kcp-go's out-of-band packets.
func TestDatagrams(t *testing.T) {
	for i, m := range modes {
		us, them := enveloped(m, ratios[1], ratios[1])
		for _, p := range covering(plansOf(us, them, direct), i) {
			t.Run(m.name+"/"+p.name(), func(t *testing.T) {
				n := open(t, p)
				got := make(chan []byte, 16)
				require.NoError(t, n.theirs().SetOOBHandler(func(b []byte) { got <- bytes.Clone(b) }))
				require.Equal(t, n.theirs().GetOOBMaxSize()-(1400-netpath.BaseMTU), n.ours().MaxDatagramSize(), "kcp-go answers no PROBE")
				// Before kcp-go has acknowledged something, datagrams may be dropped.
				testenv.Await(t, func() bool { return n.ours().Stats().WriteBuffered == 0 })
				for _, size := range []int{0, 1, 500, n.ours().MaxDatagramSize(), n.theirs().GetOOBMaxSize()} {
					want := bytes.Repeat([]byte{byte(size)}, size)
					require.NoError(t, n.ours().SendDatagram(want))
					require.Equal(t, want, append([]byte{}, <-got...))
					require.NoError(t, n.theirs().SendOOB(want))
					b, err := n.ours().ReceiveDatagram(t.Context())
					require.NoError(t, err)
					require.Equal(t, want, append([]byte{}, b...))
				}
				n.close()
			})
		}
	}
}
