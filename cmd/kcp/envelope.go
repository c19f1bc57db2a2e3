package main

import (
	"crypto/aes"
	"crypto/des"
	"crypto/pbkdf2"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/crypt"
)

// newCipher makes a cipher from a key of 32 bytes. It uses as many of them as
// it needs, as kcptun does.
type newCipher func(key []byte) (crypt.Cipher, error)

// ciphers are the values of -cipher. The names are kcptun's, if it has
// the cipher.
var ciphers = choices[newCipher]{
	{"aes-256-gcm", crypt.AESGCM},
	{"aes-128-gcm", func(key []byte) (crypt.Cipher, error) { return crypt.AESGCM(key[:16]) }},
	{"chacha20-poly1305", crypt.ChaCha20Poly1305},
	{"xchacha20-poly1305", crypt.XChaCha20Poly1305},
	{"aes", aesCFB},
	{"aes-128", func(key []byte) (crypt.Cipher, error) { return aesCFB(key[:16]) }},
	{"aes-192", func(key []byte) (crypt.Cipher, error) { return aesCFB(key[:24]) }},
	{"3des", func(key []byte) (crypt.Cipher, error) {
		b, err := des.NewTripleDESCipher(key[:24])
		if err != nil {
			return nil, err
		}
		return crypt.CFB(b), nil
	}},
	{"salsa20", crypt.Salsa20},
	{"xor", func(key []byte) (crypt.Cipher, error) { return crypt.XOR(key), nil }},
	{"none", func([]byte) (crypt.Cipher, error) { return crypt.None(), nil }},
}

// parseCipher parses the value of -cipher, which may be kcptun's name of
// xchacha20-poly1305, too.
func parseCipher(s string) (newCipher, error) {
	if strings.EqualFold(s, "xchacha20") {
		return crypt.XChaCha20Poly1305, nil
	}
	return ciphers.parse(s)
}

func aesCFB(key []byte) (crypt.Cipher, error) {
	b, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return crypt.CFB(b), nil
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

// parseFEC parses a ratio such as 10/3.
func parseFEC(s string) (f kcp.FEC, err error) {
	data, parity, ok := strings.Cut(s, "/")
	if ok {
		f.Data, err = strconv.Atoi(data)
	}
	if ok && err == nil {
		f.Parity, err = strconv.Atoi(parity)
	}
	if !ok || err != nil {
		return kcp.FEC{}, errors.New("want data and parity packets of a group, such as 10/3")
	}
	return f, nil
}

// envelope holds the flags that have to be the same at both ends.
type envelope struct {
	cipher  newCipher // nil: none
	key     []byte    // nil: not given
	keyFlag string    // the flag that has set it
	secret  bool      // -key is not needed: both ends are in this process
}

// keyVariable is the environment variable with the key that -cipher takes
// without -key and -key-file. Unlike a flag, other users do not see it.
const keyVariable = "KCP_KEY"

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

// maxKeyFile is the largest file with a key, in bytes.
const maxKeyFile = 4096

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
func (e *envelope) setKey(flag string, parse func(string) ([]byte, error)) setFunc {
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
			ciphers.listed(edit(s, "cipher", parseCipher, func(_ *kcp.Config, v newCipher) { s.envelope.cipher = v }))},
		{"key", "PASSPHRASE", "passphrase of the cipher, or hex: and the 64 digits\nof its key",
			s.envelope.setKey("-key", parseKey)},
		{"key-file", "PATH", "read the same from a file, so that ps does not show\nit; without both the environment variable KCP_KEY\ncounts",
			s.envelope.setKey("-key-file", readKey)},
		{"fec", "D/P", "forward error correction: after every D packets send\nP parity packets, such as 10/3",
			edit(s, "fec", parseFEC, func(c *kcp.Config, v kcp.FEC) { c.FEC = v })},
	}
}
