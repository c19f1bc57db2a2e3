package contract

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"testing"

	"github.com/xtaci/kcp-go/v5"
)

// pattern returns n known bytes.
func pattern(n int) []byte {
	b := make([]byte, n)
	x := uint32(n) + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

// blockCrypts are kcp-go's ciphers that work without a session, with a key that
// each takes, and the SHA-256 of what each makes of pattern(0) to pattern(300)
// and pattern(1500).
var blockCrypts = []struct {
	name   string
	make   func([]byte) (kcp.BlockCrypt, error)
	key    int // bytes
	digest string
}{
	{"aes-128", kcp.NewAESBlockCrypt, 16, "f1e9eb4cfb5e5b172e501ab9e5ca1087ff2b45f5a1bc81776fd93dcb4ab00731"},
	{"aes-192", kcp.NewAESBlockCrypt, 24, "a006c5e4e82b1a19cd4d65261dbed91c3b238cfa4d286dad19e32b028d2e9076"},
	{"aes-256", kcp.NewAESBlockCrypt, 32, "e0021663854525c85e38251fa0c41ba8970810687a7a62e221d46be4296eb031"},
	{"sm4", kcp.NewSM4BlockCrypt, 16, "0b33c5811d3785b542ed7fe2293094a0711fbc8aa4d6266e842ebfc49b98ef90"},
	{"twofish", kcp.NewTwofishBlockCrypt, 32, "9d8f9ce29bd00484f3da101e7f1200d125392fe935938e232a1ba9453c9539d9"},
	{"3des", kcp.NewTripleDESBlockCrypt, 24, "8d8b85444a49c2692f3036df984c9ef8e1fda7af3413a7fb4d0d97955dc69eba"},
	{"cast5", kcp.NewCast5BlockCrypt, 16, "fe3892a80a0df46f050e03da4bae929a82fbd1986584d28cb46bf83fe13c345c"},
	{"blowfish", kcp.NewBlowfishBlockCrypt, 32, "fe59f3794d7d9cd42e6f11a97c1a4da152a316c1d1fb7118bc7c888eefbe870c"},
	{"tea", kcp.NewTEABlockCrypt, 16, "95595f51f177802f789ac783c1668ca06dbec163e9cdc36dc3288e4745faff4b"},
	{"xtea", kcp.NewXTEABlockCrypt, 16, "8942525163a515d354bef975faabaa8a8d46af3de17c21bbf54f4386f6fdd01c"},
	{"salsa20", kcp.NewSalsa20BlockCrypt, 32, "759f01087b05805a00263b0f3f1c142a41f499b9e7c5934c105bfca46e3e0c0f"},
	{"salsa20, short key", kcp.NewSalsa20BlockCrypt, 5, "12fcd1484d59493deb1dcef83ccc4e9c59b9e130a8ba19bb26966e6e98ef277d"},
	{"salsa20, long key", kcp.NewSalsa20BlockCrypt, 40, "6b1a3833d335fd1b046a006ad020accfbb71f0fd1d116f5793ef1d64f96c72cb"},
	{"xor", kcp.NewSimpleXORBlockCrypt, 32, "38be387e596a14bcc94b095fdc0454317b452166b15984fa0b1d0bd729270e31"},
	{"xor, no key", kcp.NewSimpleXORBlockCrypt, 0, "01dcfb4a96a656d3fd55f3d0cad74d2916ae803a378e67d9888a815948d63487"},
	{"none", kcp.NewNoneBlockCrypt, 0, "1c0661039c3fb7cef5b0ba449ec002a6138f464303333e529c5515dfc01dec6e"},
}

// Ciphers work on any length, in place or not, and give the same bytes.
func TestCiphersRaw(t *testing.T) {
	for _, c := range blockCrypts {
		t.Run(c.name, func(t *testing.T) {
			block, err := c.make(pattern(c.key))
			must(t, err)
			sum := sha256.New()
			for n := range 302 {
				if n == 301 {
					n = 1500
				}
				plain := pattern(n)
				inPlace := bytes.Clone(plain)
				block.Encrypt(inPlace, inPlace)
				sum.Write(inPlace)
				if n >= 8 { // less is left alone by salsa20
					apart := make([]byte, n)
					block.Encrypt(apart, plain)
					if !bytes.Equal(apart, inPlace) {
						t.Fatalf("%d bytes: another result in another place", n)
					}
					block.Decrypt(apart, inPlace)
					if !bytes.Equal(apart, plain) {
						t.Fatalf("%d bytes do not decrypt in another place", n)
					}
				}
				block.Decrypt(inPlace, inPlace)
				if !bytes.Equal(inPlace, plain) {
					t.Fatalf("%d bytes do not decrypt", n)
				}
			}
			if got := hex.EncodeToString(sum.Sum(nil)); got != c.digest {
				t.Errorf("digest %s, want %s", got, c.digest)
			}
		})
	}
}

// Ciphers refuse keys of wrong lengths.
func TestCipherKeys(t *testing.T) {
	for name, c := range map[string]struct {
		make    func([]byte) (kcp.BlockCrypt, error)
		lengths []int
	}{
		"aes":      {kcp.NewAESBlockCrypt, []int{0, 15, 17, 33}},
		"aes-gcm":  {kcp.NewAESGCMCrypt, []int{0, 15, 17, 33}},
		"sm4":      {kcp.NewSM4BlockCrypt, []int{0, 15, 17}},
		"twofish":  {kcp.NewTwofishBlockCrypt, []int{0, 15, 33}},
		"3des":     {kcp.NewTripleDESBlockCrypt, []int{0, 16, 25}},
		"cast5":    {kcp.NewCast5BlockCrypt, []int{0, 15, 17}},
		"blowfish": {kcp.NewBlowfishBlockCrypt, []int{0, 57}},
		"tea":      {kcp.NewTEABlockCrypt, []int{0, 15, 17}},
		"xtea":     {kcp.NewXTEABlockCrypt, []int{0, 15, 17}},
	} {
		for _, n := range c.lengths {
			if block, err := c.make(make([]byte, n)); err == nil || block != nil {
				t.Errorf("%s takes a key of %d bytes", name, n)
			}
		}
	}
}

// An AEAD is for sessions alone; none at all means no encryption.
func TestAEADs(t *testing.T) {
	wrong(t, kcp.NewAEADCrypt(nil) != nil, "an AEAD of nil is something")
	block, err := aes.NewCipher(pattern(16))
	must(t, err)
	gcm, err := cipher.NewGCM(block)
	must(t, err)
	made, err := kcp.NewAESGCMCrypt(pattern(16))
	must(t, err)
	for _, c := range []kcp.BlockCrypt{kcp.NewAEADCrypt(gcm), made} {
		for name, f := range map[string]func(dst, src []byte){"Encrypt": c.Encrypt, "Decrypt": c.Decrypt} {
			func() {
				defer func() {
					wrong(t, recover() == nil, name, "of an AEAD does not panic")
				}()
				f(make([]byte, 100), make([]byte, 100))
			}()
		}
	}
}

// Sources of entropy fill what they are given, and do not repeat.
func TestEntropySources(t *testing.T) {
	for name, r := range map[string]io.Reader{
		"default": kcp.NewEntropy(),
		"aes":     kcp.NewEntropyAES(),
		"chacha8": kcp.NewEntropyChacha8(),
	} {
		seen := make(map[[16]byte]bool)
		for range 5000 {
			var b [16]byte
			if _, err := io.ReadFull(r, b[:]); err != nil {
				t.Fatal(name, err)
			}
			if seen[b] {
				t.Fatal(name, "repeats itself")
			}
			seen[b] = true
		}
		if n, err := r.Read(nil); n != 0 || err != nil {
			t.Error(name, "reads nothing as", n, err)
		}
		long := make([]byte, 100)
		if _, err := io.ReadFull(r, long); err != nil || bytes.Equal(long, make([]byte, 100)) {
			t.Error(name, "does not fill 100 bytes", err)
		}
	}
}
