package main

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/des"
	"crypto/pbkdf2"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/crypt"
)

// newCipher makes a cipher from a key of 32 bytes. It uses as many of them as
// it needs, as kcptun does.
type newCipher func(key []byte) (crypt.Cipher, error)

// ciphers are the values of -cipher. The names are kcptun's, if it has the cipher.
var ciphers = choices[newCipher]{
	{"aes-256-gcm", crypt.AESGCM},
	{"aes-128-gcm", func(key []byte) (crypt.Cipher, error) { return crypt.AESGCM(key[:16]) }},
	{"chacha20-poly1305", crypt.ChaCha20Poly1305},
	{"xchacha20-poly1305", crypt.XChaCha20Poly1305},
	{"xchacha20", crypt.XChaCha20Poly1305},
	{"aes", cfb(aes.NewCipher, 32)},
	{"aes-128", cfb(aes.NewCipher, 16)},
	{"aes-192", cfb(aes.NewCipher, 24)},
	{"3des", cfb(des.NewTripleDESCipher, 24)},
	{"salsa20", crypt.Salsa20},
	{"xor", func(key []byte) (crypt.Cipher, error) { return crypt.XOR(key), nil }},
	{"none", func([]byte) (crypt.Cipher, error) { return crypt.None(), nil }},
}

// cfb returns a cipher in CFB mode, with a key of size bytes.
func cfb(block func(key []byte) (cipher.Block, error), size int) newCipher {
	return func(key []byte) (crypt.Cipher, error) {
		b, err := block(key[:size])
		if err != nil {
			return nil, err
		}
		return crypt.CFB(b), nil
	}
}

// keySize is the size of a key, in bytes.
const keySize = 32

// parseKey derives a key from a passphrase as kcptun does, or parses it in hex.
func parseKey(s string) ([]byte, error) {
	digits, isHex := strings.CutPrefix(s, "hex:")
	if isHex {
		key, err := hex.DecodeString(digits)
		if err != nil || len(key) != keySize {
			return nil, fmt.Errorf("want hex: and %d digits", 2*keySize)
		}
		return key, nil
	}
	if s == "" {
		return nil, errors.New("must not be empty")
	}
	return pbkdf2.Key(sha1.New, s, []byte("kcp-go"), 4096, keySize)
}

// maxKeyFile is the largest file with a key, in bytes.
const maxKeyFile = 4096

// readKey reads what -key takes from a file, without the end of its line.
func readKey(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxKeyFile {
		return nil, fmt.Errorf("%s is longer than %d bytes", path, maxKeyFile)
	}
	key, err := parseKey(strings.TrimRight(string(b), "\r\n"))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

// envelope holds the cipher, which has to be the same at both ends.
type envelope struct {
	cipher  newCipher // nil: none
	key     []byte    // nil: not given
	keyFlag string    // the flag that has set it
	secret  bool      // -key is not needed: both ends are in this process
}

// keyVariable is the environment variable with the key that -cipher takes
// without -key and -key-file. Unlike a flag, other users do not see it.
const keyVariable = "KCP_KEY"

// apply sets the cipher of c.
func (e *envelope) apply(c *kcp.Config) error {
	if e.cipher == nil {
		if e.key != nil {
			return usageErrorf("-key and -key-file do nothing without -cipher")
		}
		return nil
	}
	key, err := e.key, error(nil)
	switch variable := os.Getenv(keyVariable); {
	case key != nil:
	case variable != "":
		if key, err = parseKey(variable); err != nil {
			return usageErrorf("%s: %v", keyVariable, err)
		}
	case e.secret:
		key = make([]byte, keySize)
	default:
		return usageErrorf("-cipher needs -key-file, -key or the environment variable %s", keyVariable)
	}
	c.Cipher, err = e.cipher(key)
	return err
}

// setKey returns the setter of a flag with a key. There may be one of them.
func (e *envelope) setKey(flag string, parse func(string) ([]byte, error)) func(string) error {
	return func(s string) error {
		if e.keyFlag != "" && e.keyFlag != flag {
			return errors.New("the key is already given by " + e.keyFlag)
		}
		e.keyFlag = flag
		return parsed(&e.key, parse)(s)
	}
}

// envelopeOptions returns the flags of the envelope.
func (s *settings) envelopeOptions() []option {
	return []option{
		{"cipher", "NAME", "encrypt packets, the same at both ends: aes-256-gcm,\naes-128-gcm, chacha20-poly1305, xchacha20-poly1305,\nand without authentication aes, aes-128, aes-192,\n3des, salsa20, xor, none",
			func(value string) error {
				s.note("cipher", "NAME", value)
				return parsed(&s.envelope.cipher, ciphers.parse)(value)
			}},
		{"key", "PASSPHRASE", "passphrase of the cipher, or hex: and the 64 digits\nof its key", s.envelope.setKey("-key", parseKey)},
		{"key-file", "PATH", "read the same from a file, so that ps does not show\nit; without both the environment variable KCP_KEY\ncounts", s.envelope.setKey("-key-file", readKey)},
	}
}
