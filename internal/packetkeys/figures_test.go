package packetkeys

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md and WIRE.md say.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Key update (RFC 9001", "2^22", updateAfter},
		{"| Key update (RFC 9001", "2^23", confidentialityLimit},
		{"| Key update (RFC 9001", "2^36", int64(integrityLimit)},
		{"| Stateless reset (RFC 9000", "41 to 48", MinReset},
		{"| Keys derived from a cipher", "16 bytes", TagSize},
		{"| Keys derived from a cipher", "a word of 4", wordSize},
		{"| Derived keys: 2^24 packets", "2^24", 1 << keyBits},
		{"| Derived keys: 2^24 packets", "2^62", int64(lastNumber + 1)},
		{"| Stateless reset (RFC 9000", "48 bytes", MaxReset},
	})
	rulebook.Check(t, "WIRE.md", []rulebook.Figure{
		{"Each direction and level numbers", "2^62", int64(lastNumber + 1)},
		{"so no key seals more than", "2^24", 1 << keyBits},
		{"Numbers begin at 0 in each direction", "2^62", int64(lastNumber + 1)},
		{"of word are the packet number's", "29 bits", numberBits},
		{"| begins with conv | word 4", "conv 4", idSize},
		{"Key and mask are told", "16 bytes", ResetKeySize},
		{"A packet with a nonce of its own has", "12 bytes", NonceSize},
		{"The content is a packet of §1", "9 bytes", HeaderSize},
		{"nonce (12) | sealed bytes", "nonce (12)", NonceSize},
		{"nonce (12) | sealed bytes", "tag (16)", TagSize},
		{"nonce (12) | sealed bytes", "tag (16)", InitialOverhead - NonceSize},
		{"conv  | type | number  | sealed", "tag (16)", Overhead - HeaderSize},
	})
}
