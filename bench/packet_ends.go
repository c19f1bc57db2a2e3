package main

import (
	"crypto/aes"
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"unsafe"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/fec"
	kcpgo "github.com/xtaci/kcp-go/v5"
)

// cipherOf returns a function that seals and opens one packet with impl, as a
// session of it does: with a random nonce, and the checksum where the mode has
// one. packet has room for what sealing adds.
func cipherOf(impl, mode string, packet []byte) (func() error, error) {
	if impl == ours {
		return ourCipher(mode, packet)
	}
	return kcpGoCipher(mode, packet)
}

func ourCipher(mode string, packet []byte) (func() error, error) {
	var c crypt.Cipher
	var err error
	switch mode {
	case "aes-gcm":
		c, err = crypt.AESGCM(packetKey[:16])
	case "aes-cfb":
		block, e := aes.NewCipher(packetKey[:16])
		if e != nil {
			return nil, e
		}
		c = crypt.CFB(block)
	default:
		c, err = crypt.Salsa20(packetKey)
	}
	if err != nil {
		return nil, err
	}
	head, tail := c.Overhead()
	b := packet[:head+packetSize+tail]
	return func() error {
		if err := c.Seal(b); err != nil {
			return err
		}
		_, err := c.Open(b)
		return err
	}, nil
}

// gcm is what kcp-go's AEAD mode has besides its exported interface.
type gcm interface {
	NonceSize() int
	Overhead() int
	Seal(dst, nonce, plaintext, additionalData []byte) []byte
	Open(dst, nonce, ciphertext, additionalData []byte) ([]byte, error)
}

func kcpGoCipher(mode string, packet []byte) (func() error, error) {
	var block kcpgo.BlockCrypt
	var err error
	switch mode {
	case "aes-gcm":
		if block, err = kcpgo.NewAESGCMCrypt(packetKey[:16]); err != nil {
			return nil, err
		}
		a := block.(gcm)
		nonce, text := packet[:a.NonceSize()], packet[a.NonceSize():a.NonceSize()+packetSize]
		return func() error {
			kcpGoFillRand(nonce)
			sealed := a.Seal(nonce, nonce, text, nil)
			_, err := a.Open(sealed[len(nonce):len(nonce)], nonce, sealed[len(nonce):], nil)
			return err
		}, nil
	case "aes-cfb":
		block, err = kcpgo.NewAESBlockCrypt(packetKey[:16])
	default:
		block, err = kcpgo.NewSalsa20BlockCrypt(packetKey)
	}
	if err != nil {
		return nil, err
	}
	const nonceSize, head = 16, 20
	b := packet[:head+packetSize]
	return func() error {
		kcpGoFillRand(b[:nonceSize])
		binary.LittleEndian.PutUint32(b[nonceSize:], crc32.ChecksumIEEE(b[head:]))
		block.Encrypt(b, b)
		block.Decrypt(b, b)
		if crc32.ChecksumIEEE(b[head:]) != binary.LittleEndian.Uint32(b[nonceSize:]) {
			return errWrong
		}
		return nil
	}, nil
}

// fillRand, and what follows, are not exported by kcp-go; the exact version that
// go.mod asks for has them.
//
//go:linkname kcpGoFillRand github.com/xtaci/kcp-go/v5.fillRand
func kcpGoFillRand(b []byte)

//go:linkname kcpGoNewEncoder github.com/xtaci/kcp-go/v5.newFECEncoder
func kcpGoNewEncoder(data, parity, offset int) unsafe.Pointer

//go:linkname kcpGoEncode github.com/xtaci/kcp-go/v5.(*fecEncoder).encode
func kcpGoEncode(encoder unsafe.Pointer, b []byte, gap uint32) [][]byte

//go:linkname kcpGoNewDecoder github.com/xtaci/kcp-go/v5.newFECDecoder
func kcpGoNewDecoder(data, parity int) unsafe.Pointer

//go:linkname kcpGoDecode github.com/xtaci/kcp-go/v5.(*fecDecoder).decode
func kcpGoDecode(decoder unsafe.Pointer, packet []byte) [][]byte

// encoderOf returns a function that frames one packet and returns the parity
// that completes a group.
func encoderOf(impl string) (func(packet []byte) [][]byte, error) {
	if impl == ours {
		e, err := fec.NewEncoder(packetData, packetParity)
		if err != nil {
			return nil, err
		}
		return func(packet []byte) [][]byte { return e.Encode(packet, 0) }, nil
	}
	e := kcpGoNewEncoder(packetData, packetParity, 0)
	return func(packet []byte) [][]byte { return kcpGoEncode(e, packet, 1<<30) }, nil
}

// decoderOf returns a function that decodes one packet and returns how many it
// recovered.
func decoderOf(impl string) func(packet []byte) int {
	if impl == ours {
		d := fec.NewDecoder()
		recovered := 0
		count := func([]byte) { recovered++ }
		return func(packet []byte) int {
			recovered = 0
			_, _, _ = d.Decode(packet, 0, count) // a wrong packet recovers nothing
			return recovered
		}
	}
	d := kcpGoNewDecoder(packetData, packetParity)
	return func(packet []byte) int { return len(kcpGoDecode(d, packet)) }
}

// fill makes the content of a packet.
func fill(packet []byte) {
	random := rand.New(rand.NewPCG(1, 2))
	for i := range packet {
		packet[i] = byte(random.Uint32())
	}
}
