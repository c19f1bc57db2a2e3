package handshake

import (
	"math/bits"
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md and WIRE.md say.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| What a handshake holds", "16 KiB", maxClientHello},
		{"| What a handshake holds", "64 KiB", maxPeerFlight},
		{"| What a peer's certificates", "10 of them", maxCertificates},
		{"| What a peer's certificates", "12 P-256", maxVerifyCost},
		{"| What a peer's certificates", "40 under", maxUnknownCost},
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
