package crypt_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"log"
	"sync/atomic"

	"github.com/arqnet/kcp/crypt"
	"golang.org/x/crypto/argon2"
)

// Seal and Open work in the buffer of the packet, which has room for the
// overhead.
func Example() {
	key := make([]byte, 32) // the same at both ends
	rand.Read(key)
	c, err := crypt.AESGCM(key)
	if err != nil {
		log.Fatal(err)
	}

	head, tail := c.Overhead()
	packet := make([]byte, head+len("hello")+tail)
	copy(packet[head:], "hello")
	if err := c.Seal(packet); err != nil {
		log.Fatal(err)
	}

	plaintext, err := c.Open(packet) // at the other end
	fmt.Printf("%s %v\n", plaintext, err)

	packet[head] ^= 1
	_, err = c.Open(packet)
	fmt.Println(err)
	// Output:
	// hello <nil>
	// crypt: packet fails its check
}

// A passphrase becomes a key by way of a function that is slow on purpose. Salt
// and parameters are no secrets, but have to be the same at both ends; the salt
// should be random bytes of your own.
func Example_passphrase() {
	passphrase := []byte("correct horse battery staple")
	salt := []byte("\x1f\x8b\x53\x0c\xd2\x97\x6e\x41\xa8\x35\xfb\x09\x74\xe6\x2d\xb0")
	key := argon2.IDKey(passphrase, salt, 1, 64*1024, 4, 32)

	c, err := crypt.ChaCha20Poly1305(key)
	if err != nil {
		log.Fatal(err)
	}
	head, tail := c.Overhead()
	fmt.Println(len(key), head, tail)
	// Output: 32 12 16
}

// A rotating cipher seals with one key and opens with that and another. Both
// ends get the new key as the second one first; when both have it, each makes it
// the first; then the old one is dropped. All keys must be for one kind of
// cipher, as Overhead must not change.
type rotating struct {
	keys atomic.Pointer[[2]crypt.Cipher]
}

func (r *rotating) use(seal, other crypt.Cipher) { r.keys.Store(&[2]crypt.Cipher{seal, other}) }

func (r *rotating) Overhead() (head, tail int) { return r.keys.Load()[0].Overhead() }
func (r *rotating) Seal(packet []byte) error   { return r.keys.Load()[0].Seal(packet) }
func (r *rotating) Authenticated() bool        { return crypt.Authenticated(r.keys.Load()[0]) }
func (r *rotating) Remaining() uint64          { return crypt.Remaining(r.keys.Load()[0]) }

func (r *rotating) Open(packet []byte) ([]byte, error) {
	keys := r.keys.Load()
	if keys[1] == nil {
		return keys[0].Open(packet)
	}
	second := bytes.Clone(packet) // Open spoils a packet that it cannot open
	plaintext, err := keys[0].Open(packet)
	if err != nil {
		return keys[1].Open(second)
	}
	return plaintext, nil
}

// To change the key of live sessions, write a Cipher that holds two.
func Example_rotation() {
	newCipher := func() crypt.Cipher {
		key := make([]byte, 32)
		rand.Read(key)
		c, err := crypt.AESGCM(key)
		if err != nil {
			log.Fatal(err)
		}
		return c
	}
	before, after := newCipher(), newCipher()

	var ours, theirs rotating
	ours.use(before, nil)
	theirs.use(before, after)

	// The peer has the new key now, so we may seal with it.
	ours.use(after, before)

	head, tail := ours.Overhead()
	packet := make([]byte, head+len("hello")+tail)
	copy(packet[head:], "hello")
	if err := ours.Seal(packet); err != nil {
		log.Fatal(err)
	}
	plaintext, err := theirs.Open(packet)
	fmt.Printf("%s %v\n", plaintext, err)
	// Output: hello <nil>
}
