package handshake

import (
	"math/bits"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md and WIRE.md say.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| What a handshake holds", "16 KiB", maxClientHello},
		{"| What a handshake holds", "64 KiB", maxPeerFlight},
		{"| What a peer's certificates", "10 of them", maxCertificates},
		{"| What a client's key exchange and certificates may cost", "12 P-256", maxCost},
		{"| What a key exchange, or parsing", "1920 elements", maxCost * elementsAtOnce},
		{"| What a signature by the peer's own key may cost", "24 P-256", maxKeyCost},
		{"| Signatures of clients that cost more", "16 of a network", networkDear},
		{"| Signatures of clients that cost more", "8 a second", int(time.Second / networkEvery)},
		{"| Signatures of clients that cost more", "4 for a wrong one", wrongDear},
		{"| Signatures of clients that cost more", "64 wrong ones", allWrong},
		{"| Signatures of clients that cost more", "32 a second", int(time.Second / allEvery)},
	})
	rulebook.Check(t, "WIRE.md", []rulebook.Figure{
		{"| 2 | INFO |", "version, now 2", Version},
		{"| 2 | INFO |", "bit 1", bits.TrailingZeros(CapTLS)},
		{"Version 1 sealed nothing", "Version 1", VersionUnsealed},
		{"Version 1 sealed nothing", "ALERT 70", AlertProtocolVersion},
		{"**Errors.** ALERT", "256", alertChanged},
		{"A receiver holds 16 KiB", "64 KiB", maxAheadOfTLS},
		{"A receiver holds 16 KiB", "64 KiB", maxHeld / 2},
		{"A receiver holds 16 KiB", "these are 32", maxEarly},
		{"| 8 | RESET |", "8", CodeReset},
		{"| 9 | ABORT |", "9", CodeAbort},
		{"| 12 | CRYPTO |", "12", CodeCrypto},
		{"| 13 | ALERT |", "13", CodeAlert},
		{"A UDP payload is one packet", "24 bytes", SegmentSize},
		{"| 4 | 1 | cmd |", "84 WINS", cmdWins},
		{"quic_transport_parameters (57)", "4 bytes", paramsSize / 6},
		{"| 20 | flags;", "bit 0", bits.TrailingZeros(paramTickets)},
	})
}
