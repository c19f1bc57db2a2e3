package kcp

import (
	"errors"
	"io"
	"time"

	engine "github.com/arqnet/kcp"
	"github.com/arqnet/kcp/compat"
	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/stats"
)

// KCP is the protocol of one conversation without a socket. The program passes
// it the packets that arrive, and calls Update by the clock. It is not safe for
// concurrent use. Sessions do not use it; it is here because kcp-go exports it.
//
// It follows the C reference where kcp-go does not: the receive window is 128
// segments at least, a message has 127 segments at most, and an acknowledgement
// of what was never sent is an error.
type KCP struct {
	machine *engine.KCP

	mtu        int // bytes
	sendWindow int // segments
	rcvWindow  int // segments
	noControl  bool

	acks    int // acknowledgements that wait since the last flush, at most
	counted stats.Counters
}

// clockStart is where the clock of every KCP begins.
var clockStart = time.Now()

// clock returns milliseconds since clockStart, modulo 2^32.
func clock() uint32 { return uint32(time.Since(clockStart).Milliseconds()) }

// NewKCP returns the protocol for conversation conv, which must be the same at
// both ends. output is called with each packet to be sent, buf[:size], which is
// valid during the call. It is called from within Update and Input.
func NewKCP(conv uint32, output func(buf []byte, size int)) *KCP {
	k := &KCP{
		machine:    engine.New(conv, func(p []byte) { output(p, len(p)) }),
		mtu:        IKCP_MTU_DEF,
		sendWindow: IKCP_WND_SND,
		rcvWindow:  IKCP_WND_RCV,
	}
	k.machine.SetClock(clock())
	return k
}

// Send queues buffer as one message. It returns 0; -1 if buffer is empty; or -2
// if the message needs more than 127 segments.
func (kcp *KCP) Send(buffer []byte) int {
	if len(buffer) == 0 {
		return -1
	}
	if _, err := kcp.machine.Send(buffer); err != nil {
		return -2
	}
	return 0
}

// Recv copies the next message to buffer and returns its length in bytes. It
// returns -1 if there is no complete message, and -2 if the next one is larger
// than buffer: PeekSize returns its size.
func (kcp *KCP) Recv(buffer []byte) (n int) {
	n, err := kcp.machine.Recv(buffer)
	switch {
	case err == nil:
		return n
	case errors.Is(err, io.ErrShortBuffer):
		return -2
	}
	return -1
}

// PeekSize returns the length of the next message in bytes, or -1 if there is no
// complete one.
func (kcp *KCP) PeekSize() (length int) { return kcp.machine.PeekSize() }

// Input processes a packet that has arrived, which it does not keep. It returns
// 0; -1 for a packet that is too short, of another conversation, or that
// acknowledges what was never sent; -2 for a segment longer than the packet; or
// -3 for an unknown command. Segments before a bad one have taken effect.
//
// It sends at once what an acknowledgement makes room for. Acknowledgements
// leave at once if they fill a packet, or if ackNoDelay is set, and otherwise
// with the next Update.
func (kcp *KCP) Input(data []byte, pktType PacketType, ackNoDelay bool) int {
	waiting, before := kcp.machine.WaitSend(), kcp.machine.Counters()
	kcp.machine.SetClock(clock())
	input := kcp.machine.Input
	if pktType != IKCP_PACKET_REGULAR {
		input = func(packet []byte) error { return compat.InputRecovered(kcp.machine, packet) }
	}
	err := input(data)
	after := kcp.machine.Counters()
	kcp.acks += int(after.SegmentsReceived - before.SegmentsReceived)
	switch {
	case err != nil:
	case kcp.machine.WaitSend() < waiting, after.AcksReceived != before.AcksReceived:
		kcp.flush()
	case kcp.acks >= kcp.mtu/IKCP_OVERHEAD, ackNoDelay && kcp.acks > 0:
		kcp.flush()
	}
	kcp.count()
	return inputCode(err)
}

// inputCode returns what Input returns for err.
func inputCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, engine.InputLength):
		return -2
	case errors.Is(err, engine.InputCommand):
		return -3
	}
	return -1
}

// Update sends what is due. Call it every 10 to 100 ms, or at the times that
// Check returns.
func (kcp *KCP) Update() {
	kcp.acks = 0
	kcp.machine.Update(clock())
	kcp.count()
}

// Check returns the time at which Update should be called next if neither Input
// nor Send is called before, in milliseconds of the clock that all KCPs of the
// process share.
func (kcp *KCP) Check() uint32 { return kcp.machine.Check(clock()) }

func (kcp *KCP) flush() {
	kcp.acks = 0
	kcp.machine.Flush()
}

// count adds what has happened since the last call to DefaultSnmp.
func (kcp *KCP) count() {
	now := kcp.machine.Counters()
	DefaultSnmp.addSegments(&kcp.counted, &now)
	kcp.counted = now
}

// WaitSnd returns how many segments wait to be sent or acknowledged.
func (kcp *KCP) WaitSnd() int { return kcp.machine.WaitSend() }

// WndSize sets the windows in segments: 32 and 128 by default. Values below 1
// leave the window as it is; a receive window below 128 means 128. It returns 0.
func (kcp *KCP) WndSize(sndwnd, rcvwnd int) int {
	const largest = 1 << 20
	if sndwnd > 0 {
		kcp.sendWindow = min(sndwnd, largest)
	}
	if rcvwnd > 0 {
		kcp.rcvWindow = min(rcvwnd, largest)
	}
	_ = kcp.machine.SetWindow(kcp.sendWindow, kcp.rcvWindow) // both are in range
	return 0
}

// SetMtu sets the largest packet in bytes, 1400 by default. It returns -1, and
// changes nothing, for 24 bytes and less. Less than 50 means 50, more than 65535
// that.
func (kcp *KCP) SetMtu(mtu int) int {
	if mtu <= IKCP_OVERHEAD {
		return -1
	}
	kcp.mtu = min(max(mtu, leastMTU), 1<<16-1)
	_ = kcp.machine.SetMTU(kcp.mtu) // in range
	return 0
}

// NoDelay tunes the protocol; a negative argument leaves its setting as it is.
//
//   - nodelay: 0, the default, bounds the retransmission time-out to 100 ms at
//     least, and doubles it when it passes. Any other bounds it to 30 ms, and
//     adds half of it.
//   - interval: between flushes, 10 to 5000 ms; others are brought into that
//     range. Default 100.
//   - resend: after how many later acknowledgements a segment is retransmitted;
//     0, the default, for never.
//   - nc: 0, the default, for the congestion control of the reference; others
//     for none.
//
// It returns 0.
func (kcp *KCP) NoDelay(nodelay, interval, resend, nc int) int {
	if nodelay >= 0 {
		kcp.machine.SetNoDelay(noDelayMode(nodelay))
	}
	if interval >= 0 {
		_ = kcp.machine.SetInterval(uint32(intervalMillis(interval))) // in range
	}
	if resend >= 0 {
		kcp.machine.SetFastResend(uint32(min(resend, 1<<31-1)))
	}
	switch {
	case nc < 0 || kcp.noControl == (nc != 0): // the window stays as it is
	case nc == 0:
		kcp.machine.SetCongestionControl(congestion.NewReference())
	default:
		kcp.machine.SetCongestionControl(congestion.NewNone())
	}
	if nc >= 0 {
		kcp.noControl = nc != 0
	}
	return 0
}

// SetLogger does nothing. In kcp-go it does so too, but in programs that are
// built with the tag debug.
func (kcp *KCP) SetLogger(mask KCPLogType, logger func(msg string, args ...any)) {}

// noDelayMode returns what kcp-go's nodelay means. Any value but 0 makes a
// time-out grow by half of the connection's, which is the reference's mode 2.
func noDelayMode(nodelay int) engine.NoDelay {
	if nodelay == 0 {
		return engine.NoDelayOff
	}
	return engine.NoDelayTurbo
}

// intervalMillis brings an interval into kcp-go's range.
func intervalMillis(interval int) int { return min(max(interval, 10), 5000) }
