// Package replylimit bounds what is sent to the sender of UDP packets, whose address may
// be forged. It is the anti-amplification limit of QUIC (RFC 9000 §8.1), for protocols
// that are not ours: nothing in their packets shows that a sender receives what is sent
// to it. What counts as an answer is a packet that comes after one was sent.
//
//   - Until the first answer, three times as many bytes are sent as have come, and three
//     times as many packets.
//   - From then on there is a window: so much is sent until the next packet comes. It
//     begins small, and each answer doubles it.
//
// Who can forge one packet causes three times that. Who forges answers, too, has to go
// on: each further one buys a window, and the first ones are small.
package replylimit

import "sync"

const (
	// factor is how much is sent to who has not answered, for what has come.
	factor = 3
	// FirstWindow is the window after the first answer, in bytes: the largest packet.
	FirstWindow = 64 << 10
	// MaxWindow is the largest window, in bytes.
	MaxWindow = 16 << 20
	// packetShare is how many bytes of a window make room for one packet more.
	packetShare = 64
)

// Limit is the limit for one sender. The zero value is one that nothing came from, and nil
// is no limit. It is safe for concurrent use.
type Limit struct {
	mu             sync.Mutex
	bytes, packets int  // that may be sent until the next packet comes
	window         int  // bytes; 0: no answer has come
	sent           bool // anything, since the last packet has come
}

// Received notes that a packet of n bytes has come.
func (l *Limit) Received(n int) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sent {
		l.sent = false
		l.window = min(max(2*l.window, FirstWindow), MaxWindow)
	}
	l.bytes = max(min(l.bytes+factor*n, MaxWindow), l.window)
	l.packets = max(min(l.packets+factor, MaxWindow/packetShare), l.window/packetShare)
}

// Take reports whether a packet of n bytes may be sent, and counts it if so.
func (l *Limit) Take(n int) bool {
	if l == nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > l.bytes || l.packets == 0 {
		return false
	}
	l.bytes -= n
	l.packets--
	l.sent = true
	return true
}
