package kcp

import (
	"fmt"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/wire"
)

// set locks c.mu, and changes settings.
func (c *Conn) set(to *session.Change) error {
	c.mu.Lock()
	defer c.unlock()
	if err := c.session.Set(to); err != nil {
		return c.opError("set", err)
	}
	return nil
}

// SetMTU takes the place of Config.MTU: 50 to 65507 bytes with what Cipher and FEC add,
// which must leave 50 bytes. Path MTU discovery does not exceed it. 0 returns to
// Config.MTU, and to discovery. A size out of range is a *ConfigError, which changes
// nothing.
func (c *Conn) SetMTU(n int) error {
	room := c.ep.Overhead.Total
	if least := room + machine.MinMTU; n != 0 && (n < least || n > session.MaxUDPPayload) {
		return &ConfigError{"MTU", n, fmt.Sprintf("must be in [%d, %d], or 0 for the value of Config", least, session.MaxUDPPayload)}
	}
	return c.set(&session.Change{Of: session.OfMTU, N: n})
}

// SetWindow takes the place of Config.SendWindow and Config.ReceiveWindow, in segments: 1
// to 65535 each, 0 leaves one as it is. A receive window below 128 is raised to 128.
// Errors are as for SetMTU.
func (c *Conn) SetWindow(send, receive int) error {
	for _, w := range []struct {
		field string
		value int
	}{{"SendWindow", send}, {"ReceiveWindow", receive}} {
		if w.value < 0 || w.value > wire.MaxWindow {
			return &ConfigError{w.field, w.value, fmt.Sprintf("must be in [1, %d], or 0 to leave it", wire.MaxWindow)}
		}
	}
	return c.set(&session.Change{Of: session.OfWindow, N: send, M: receive})
}

// SetNoDelay sets these fields of Tuning. NoDelayDefault leaves the mode as it is, and 0
// the others. interval is 10 ms to 5 s; a negative fastResend means no fast
// retransmission. Another mode also sets its minimum time-out, unless MinRTO is set.
// Errors are as for SetMTU.
func (c *Conn) SetNoDelay(mode NoDelay, interval time.Duration, fastResend int) error {
	if mode > NoDelayTurbo {
		return &ConfigError{"Tuning.NoDelay", mode, "must be one of the NoDelay modes"}
	}
	const least, most = machine.MinInterval * time.Millisecond, machine.MaxInterval * time.Millisecond
	if interval != 0 && (interval < least || interval > most) {
		return &ConfigError{"Tuning.Interval", interval, fmt.Sprintf("must be in [%v, %v], or 0 to leave it", least, most)}
	}
	return c.set(&session.Change{Of: session.OfTuning, Machine: machine.Settings{
		NoDelay: machine.NoDelay(mode), MinRTO: int(c.ep.config.Tuning.MinRTO.Milliseconds()),
		Interval: int(interval.Milliseconds()), FastResend: min(fastResend, maxInt32),
	}})
}

// SetCongestionControl makes the session use the controller that f returns, in place of
// Config.CongestionControl; nil returns to that. f is called now, and again with the
// session's lock held if the session migrates. Neither f nor a controller may call the
// Conn.
func (c *Conn) SetCongestionControl(f func() congestion.Control) error {
	first := f
	if f == nil {
		first = c.ep.config.CongestionControl
	}
	return c.set(&session.Change{Of: session.OfCongestion, Control: f, First: first()})
}

// SetMessageMode sets whether Write and WriteMessage send messages or a byte stream, in
// place of Config.MessageMode. How the session reads does not change, but for the events
// of a Group. Streams are not concerned.
func (c *Conn) SetMessageMode(on bool) error {
	return c.set(&session.Change{Of: session.OfMessages, On: on})
}

// SetWriteBuffer takes the place of Config.WriteBuffer: 4096 bytes to 1 GiB; 0 returns to
// that. Errors are as for SetMTU.
func (c *Conn) SetWriteBuffer(bytes int) error {
	if bytes != 0 && (bytes < minWriteBuffer || bytes > maxConfigWriteBuffer) {
		return &ConfigError{"WriteBuffer", bytes, fmt.Sprintf("must be in [%d, %d], or 0 for the value of Config", minWriteBuffer, maxConfigWriteBuffer)}
	}
	return c.set(&session.Change{Of: session.OfWriteBuffer, N: bytes})
}

// SetMaxRate takes the place of Config.MaxRate: 1000 bytes of UDP payload a second or
// more; 0 means no cap. In any time no more leaves than the rate allows and one packet,
// and above 1 MB/s what it allows in 1 ms. ACKs, signals and probes do not wait; until
// they are paid for, the rest has half of the rate. Datagrams leave before data, up to
// half of the rate. The write buffer, unless its size is set, is what the rate carries in
// a second, at least 64 KiB. Errors are as for SetMTU.
func (c *Conn) SetMaxRate(bytes int) error {
	if err := validateRate(bytes); err != nil {
		return err
	}
	return c.set(&session.Change{Of: session.OfRate, N: bytes})
}
