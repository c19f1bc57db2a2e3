package kcp

import (
	"sync"
	"sync/atomic"
	"time"

	engine "github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
)

// settings are the settings of one session that the engine does not keep.
type settings struct {
	stream atomic.Bool // SetStreamMode

	mu        sync.Mutex // guards the fields below
	noControl bool       // no congestion control
	rate      uint32     // bytes a second; 0: no limit
}

// SetStreamMode sets whether writes are parts of a stream, which may share
// packets, or messages, the default. The peer need not be told.
func (s *UDPSession) SetStreamMode(enable bool) {
	s.settings.stream.Store(enable)
	_ = s.conn.SetMessageMode(!enable) // fails after Close, when it does nothing
}

// SetWriteDelay does nothing: writes leave at once. kcp-go keeps small ones
// until the next flush.
func (s *UDPSession) SetWriteDelay(delay bool) {}

// SetACKNoDelay does nothing. Acknowledgements are delayed as long as it is of
// use (RFC 1122 §4.2.3.2).
func (s *UDPSession) SetACKNoDelay(nodelay bool) {}

// SetDUP does nothing. kcp-go sends every packet n times more, for tests.
func (s *UDPSession) SetDUP(dup int) {}

// SetLogger does nothing. In kcp-go it does so too, but in programs that are
// built with the tag debug.
func (s *UDPSession) SetLogger(mask KCPLogType, logger func(msg string, args ...any)) {}

// SetWindowSize sets the windows in segments, 32 and 128 by default. Values
// below 1 leave a window as it is; more than 65535 means that, and a receive
// window below 128 means 128.
func (s *UDPSession) SetWindowSize(sndwnd, rcvwnd int) {
	_ = s.conn.SetWindow(min(max(sndwnd, 0), maxWindow), min(max(rcvwnd, 0), maxWindow)) // in range
}

// SetMtu sets the size of the largest packet in bytes of UDP payload, 1400 by
// default; more than 1500 means 1500. It returns false, and changes nothing, if
// that leaves 24 bytes or less beside what encryption and error correction add.
// The least packet is of 50 bytes beside that.
func (s *UDPSession) SetMtu(mtu int) bool {
	mtu = min(mtu, maxPacket)
	room := s.port.overhead
	if mtu-room <= IKCP_OVERHEAD {
		return false
	}
	_ = s.conn.SetMTU(max(mtu, room+leastMTU)) // in range
	return true
}

// SetNoDelay tunes the session; a negative argument leaves its setting as it is.
//
//   - nodelay: 0, the default, bounds the retransmission time-out to 100 ms at
//     least, and doubles it when it passes. Any other bounds it to 30 ms, and
//     adds half of it.
//   - interval: the least variation of the round-trip time that the time-out
//     allows for, 10 to 5000 ms; others are brought into that range. Default 100.
//     Nothing waits for it: packets leave when they are due.
//   - resend: after how many later acknowledgements a segment is retransmitted;
//     0, the default, for never.
//   - nc: 0, the default, for congestion control, by BBR; others for none.
func (s *UDPSession) SetNoDelay(nodelay, interval, resend, nc int) {
	mode := engine.NoDelayDefault // leaves it
	if nodelay >= 0 {
		mode = noDelayMode(nodelay)
	}
	var wait time.Duration
	if interval >= 0 {
		wait = time.Duration(intervalMillis(interval)) * time.Millisecond
	}
	switch {
	case resend < 0:
		resend = 0 // leaves it
	case resend == 0:
		resend = -1 // never
	}
	_ = s.conn.SetNoDelay(mode, wait, resend) // in range
	if nc >= 0 {
		s.settings.mu.Lock()
		defer s.settings.mu.Unlock()
		if none := nc != 0; none != s.settings.noControl {
			s.settings.noControl = none
			s.controlLocked()
		}
	}
}

// SetRateLimit limits what the session sends to bytesPerSecond; 0 means no
// limit. New data is limited. Acknowledgements, retransmissions and parity come
// on top.
func (s *UDPSession) SetRateLimit(bytesPerSecond uint32) {
	s.settings.mu.Lock()
	defer s.settings.mu.Unlock()
	if s.settings.rate != bytesPerSecond {
		s.settings.rate = bytesPerSecond
		s.controlLocked()
	}
}

// controlLocked installs the congestion control that noControl and rate ask
// for. s.settings.mu is held.
func (s *UDPSession) controlLocked() {
	control, rate := congestion.NewBBR, int64(s.settings.rate)
	if s.settings.noControl {
		control = congestion.NewNone
	}
	_ = s.conn.SetCongestionControl(func() congestion.Control { // fails after Close, when it does nothing
		if rate == 0 {
			return control()
		}
		return limited{control(), rate}
	})
}

// limited is a congestion controller with an upper bound of the rate.
type limited struct {
	congestion.Control
	rate int64 // bytes a second
}

// PacingRate implements congestion.Control.
func (c limited) PacingRate() int64 {
	if r := c.Control.PacingRate(); r > 0 && r < c.rate {
		return r
	}
	return c.rate
}

// OnRecovered implements congestion.Undoer.
func (c limited) OnRecovered(s *congestion.State, spurious bool) {
	if r, ok := c.Control.(congestion.Undoer); ok {
		r.OnRecovered(s, spurious)
	}
}
