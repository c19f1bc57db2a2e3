package contract

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/xtaci/kcp-go/v5"
)

// oneAtATime is a cipher of the program that has another one.
type oneAtATime struct {
	mu sync.Mutex
	kcp.BlockCrypt
	encrypted, decrypted, odd atomic.Int64
}

func (c *oneAtATime) wrap(block kcp.BlockCrypt) kcp.BlockCrypt {
	c.BlockCrypt = block
	return c
}

func (c *oneAtATime) Encrypt(dst, src []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.encrypted.Add(1)
	if len(dst) < len(src) || len(src) < 20 || crc32.ChecksumIEEE(src[20:]) != binary.LittleEndian.Uint32(src[16:]) {
		c.odd.Add(1)
	}
	c.BlockCrypt.Encrypt(dst, src)
}

func (c *oneAtATime) Decrypt(dst, src []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.decrypted.Add(1)
	c.BlockCrypt.Decrypt(dst, src)
}

// A cipher of the program gets packets that begin with a nonce and a CRC-32.
func TestOwnBlockCrypt(t *testing.T) {
	xor, _ := kcp.NewSimpleXORBlockCrypt([]byte("key"))
	own := new(oneAtATime)
	client, server, _ := join(t, setup{block: own.wrap(xor), data: 3, parity: 1})
	write(t, client, "abc")
	want(t, server, "abc")
	wrong(t, own.encrypted.Load() == 0 || own.decrypted.Load() == 0 || own.odd.Load() != 0, own.encrypted.Load(), own.decrypted.Load(), own.odd.Load())
}

// An AEAD of the program seals whole packets, with nothing besides.
func TestOwnAEAD(t *testing.T) {
	block, err := aes.NewCipher(pattern(16))
	must(t, err)
	gcm, err := cipher.NewGCMWithNonceSize(block, 17)
	must(t, err)
	client, server, _ := join(t, setup{block: kcp.NewAEADCrypt(gcm)})
	write(t, client, "abc")
	want(t, server, "abc")
}

// With another key nothing arrives, and it is counted.
func TestWrongKey(t *testing.T) {
	right, _ := kcp.NewAESBlockCrypt(pattern(16))
	wrong, _ := kcp.NewAESBlockCrypt(pattern(32))
	before := kcp.DefaultSnmp.Copy().InCsumErrors
	l := listen(t, setup{block: right})
	client := dial(t, setup{block: wrong}, l.Addr())
	write(t, client, "abc")
	l.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	_, err := l.AcceptKCP()
	wantTimeout(t, err)
	waitFor(t, func() bool { return kcp.DefaultSnmp.Copy().InCsumErrors > before })
}

// waitFor waits until something is so.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for !ok() {
		time.Sleep(time.Millisecond)
	}
}

// counting is a source of entropy that counts up.
type counting struct{ n byte }

func (c *counting) Read(p []byte) (int, error) {
	c.n++
	for i := range p {
		p[i] = c.n
	}
	return len(p), nil
}

// Nonces come from the source that the program sets.
func TestSetEntropy(t *testing.T) {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	defer pc.Close()
	kcp.SetEntropy(new(counting))
	defer kcp.SetEntropy(kcp.NewEntropy())
	none, _ := kcp.NewNoneBlockCrypt(nil)
	client := dial(t, setup{block: none}, pc.LocalAddr())
	write(t, client, "abc")
	pc.SetReadDeadline(time.Now().Add(patience))
	b := make([]byte, 2000)
	n, _, err := pc.ReadFrom(b)
	if err != nil || n < 44 {
		t.Fatal(n, err)
	}
	if !bytes.Equal(b[:16], bytes.Repeat(b[:1], 16)) {
		t.Errorf("nonce %x", b[:16])
	}
	client.Close()
	var _ io.Reader = new(counting)
}
