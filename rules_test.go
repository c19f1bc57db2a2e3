package kcp

import (
	"math/bits"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/netpath"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/arqnet/kcp/internal/session"
)

const millis = time.Millisecond

// The constants of the package are the figures that RULES.md and WIRE.md say.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", sessionFigures())
	rulebook.Check(t, "RULES.md", endpointFigures())
	rulebook.Check(t, "WIRE.md", wireFigures())
}

// sessionFigures are those of sessions.
func sessionFigures() []rulebook.Figure {
	const ( // rules
		writes    = "| Write buffer if"
		dial      = "| Dial: "
		legacy    = "| A peer is legacy"
		closing   = "| Close: CLOSE"
		linger    = "| Such sockets"
		keepAlive = "| Keep-alive"
	)
	return []rulebook.Figure{
		{"| RTO back-off", "5 s", session.SessionMaxRTO},
		{"| Zero-window probe", "5 s", session.SessionMaxRTO},
		{"| Fast retransmit", "2 ACKs", defaultFastResend},
		{"| Black hole (RFC", "3 losses", netpath.WatchedLosses},
		{"| Write buffer, unless", "4 MiB", session.DefaultWriteBuffer},
		{"| Write buffer, unless", "64 bytes", machine.WriteCostPerSegment},
		{"| Cap of the rate", "1000 bytes a second", minMaxRate},
		{"| At the cap the write", "4 MiB", session.DefaultWriteBuffer},
		{writes, "64 MiB", session.WritePressure * session.WriteGrain},
		{writes, "256 KiB", session.ScarceWriteBuffer},
		{writes, "4 MiB", session.DefaultWriteBuffer},
		{writes, "16 KiB", session.LeastWriteBuffer},
		{"| Write buffer of streams", "256 KiB", session.DefaultStreamWrite},
		{"| Any segment", "256 of the peer", defaultMaxStreams},
		{"| Credit of a stream", "1 MiB", defaultStreamReceive},
		{"| Dynamic right-sizing", "16 MiB", session.MaxStreamReceive},
		{"| Priorities", "64 KiB", session.BulkAhead},
		{"| Partial reliability (RFC 3758)", "65534", maxRetransmitLimit},
		{"| Half-open sessions", "10 s", session.HandshakeTime},
		{"| What sessions hold", "1 KiB", session.AccountGrain},
		{"| A batch has", "16 KiB", session.LittleHeld},
		{dial, "200", int(opening.FirstHello / millis)},
		{dial, "500 ms", opening.EagerWait},
		{dial, "20th", opening.EagerHellos},
		{dial, "4 cookies", opening.MaxCookies},
		{dial, "50 ms", opening.HelloGap},
		{dial, "2 s", opening.MaxWait},
		{dial, "10 s", defaultDialTimeout},
		{legacy, "2 plain window updates", session.LegacyAnswers},
		{legacy, "8 HELLOs", session.HelloTries},
		{closing, "5 s", session.DefaultLinger},
		{linger, "256 sockets", fair.MostLingering},
		{linger, "an 8th", fair.LingeringPart},
		{keepAlive, "25 s", defaultKeepAlive},

		{"| Idle timeout", "30 min", defaultStallTimeout},
	}
}

// endpointFigures are those of endpoints.
func endpointFigures() []rulebook.Figure {
	const ( // rules
		pressure = "| A batch has"
		foreign  = "| Sockets of NewEndpoint"
		records  = "| Records"
	)
	return []rulebook.Figure{
		{"| Half-open sessions", "1024", defaultMaxHalfOpen},
		{"| Half-open sessions", "3 s", session.EvictAfter},
		{"| Above `MaxBuffered`", "64 KiB", session.LeastShare},
		{pressure, "1024 sessions", scanned},
		{pressure, "16 ended", mostShed},
		{"| TIME-WAIT", "60 s", session.TimeWaitTime},
		{"| Time-outs that are due wait", "1 ms", session.HoldTime},
		{"| Time-outs that are due wait", "1 s", session.MostHold},
		{"| Packets of several sessions", "64", sendBatchSize},
		{foreign, "1 s", closeWait},
		{"| A dropped handshake", "3 times", maxDials - 1},
		{"| TLS works on fewer handshakes", "100 ms", fair.Lease},
		{"| Errors: an alert", "16 wait", maxFailures},
		{"| After a handover", "800 ms", drainHold},
		{records, "100 a second", sessionLogRate},
		{records, "10 s", unopenedLogEvery},
	}
}

// wireFigures are those of the format, and of what WIRE.md says besides.
func wireFigures() []rulebook.Figure {
	const ( // rows and paragraphs
		Packet      = "A UDP payload is one packet"
		info        = "| 2 | INFO | WINS |"
		unvalidated = "What is received is kept up to"
	)
	return []rulebook.Figure{
		{Packet, "default 1400", defaultConfigMTU},
		{info, "bit 1", bits.TrailingZeros(session.CapTLS)},
		{info, "bit 2", bits.TrailingZeros(session.CapReason)},
		{info, "bit 3", bits.TrailingZeros(session.CapStreams)},
		{info, "bit 7", bits.TrailingZeros(session.CapCopies)},
		{info, "bit 10", bits.TrailingZeros(session.CapCounts)},
		{info, "bit 8", bits.TrailingZeros(protect.CapKeys)},
		{info, "bit 9", bits.TrailingZeros(protect.CapChaCha)},
		{info, "version, now 2", handshake.Version},
		{"- CLOSE may carry why", "code 8", closing.ReasonCode},
		{"Peers with signals are shown", "128 first", machine.MinRcvWnd},
		{unvalidated, "16 KiB", machine.UnvalidatedBytes},
		{"a dialler takes no first key", "30 s", session.ResetKeyWithin},
		{"| 0x00f3 | datagram", "conv 4", session.DatagramHeader - fec.HeaderSize},
	}
}
