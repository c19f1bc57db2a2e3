package kcp

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/stretchr/testify/require"
)

// withoutKeys removes the capabilities that concern keys from a packet under the cipher.
// It reports whether there was one.
func withoutKeys(c crypt.Cipher, packet []byte) (content []byte, found bool) {
	content, err := c.Open(bytes.Clone(packet))
	for b := content; err == nil && len(b) >= headerSize; {
		h := decodeHeader(b)
		payload, fits := h.payload(b[headerSize:])
		if !fits {
			break
		}
		if s, ok := h.signal(); ok && s.code == sigInfo && s.ts&protect.CapKeys != 0 {
			binary.LittleEndian.PutUint32(b[8:], s.ts&^(protect.CapKeys|protect.CapChaCha))
			found = true
		}
		b = b[headerSize+len(payload):]
	}
	return content, found
}

// An attacker who can change packets under the cipher, as with salsa20, removes from
// INFO that an end derives keys, and repeats packets of the session. He keeps the
// session under the cipher if he changes every INFO of the listening end. The ends do
// not differ for long: both have changed over or neither, and what they write arrives.
func TestDowngradeDoesNotSplit(t *testing.T) {
	t.Parallel()
	seeds := uint64(60)
	if testing.Short() {
		seeds = 12
	}
	for seed := range seeds {
		inWorld(t, seed, changeOverLink(seed), func(t *testing.T, w *world) {
			random, onPath := rand.New(rand.NewPCG(seed, 9)), rand.New(rand.NewPCG(seed, 10))
			cipher := hidingCiphers(t)["Salsa20"]
			config := &Config{Cipher: cipher, DialTimeout: time.Minute, PeerTimeout: time.Minute}
			l := w.listen(config)
			e, _ := w.endpoint("10.0.0.2:5000", config)
			toServer, toClient := seed%2 == 1, seed/2%2 == 1
			server := netip.MustParseAddrPort(serverAddr)
			var kept []keptPacket
			w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
				if len(kept) > 0 && onPath.IntN(4) == 0 {
					again := kept[onPath.IntN(len(kept))]
					w.net.Inject(again.from, again.to, again.data)
				}
				content, found := withoutKeys(cipher, p)
				changes := found && (to == server && toServer || to != server && toClient)
				packet := bytes.Clone(p)
				if changes {
					packet = sealed(t, cipher, content)
				}
				kept = append(kept, keptPacket{from, to, packet})
				if changes && onPath.IntN(3) > 0 { // lost otherwise, as by any path
					w.net.Inject(from, to, packet)
				}
				return !changes
			})
			a := w.dial(e)
			send(t, a, []byte{1})
			b := accepted(t, l)
			receive(t, b, []byte{1})
			bothWays(t, a, b, content(seed, 1+random.IntN(20000)), content(seed+1, 1+random.IntN(20000)))
			for range 3 {
				bothWays(t, a, b, []byte("up"), []byte("down"))
				time.Sleep(5 * time.Second)
			}
			for _, c := range []*Conn{a, b} {
				_, sends, heard := progress(c)
				require.Equal(t, [2]bool{!toClient, !toClient}, [2]bool{sends, heard}, "seed %d", seed)
			}
			w.net.SetFilter(nil)
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
		})
	}
}
