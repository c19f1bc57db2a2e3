package kcp

import (
	"fmt"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/wire"
)

// set locks c.mu, and changes settings.
func (c *Conn) set(to *change) error {
	c.mu.Lock()
	defer c.unlock()
	if err := c.session.set(to); err != nil {
		return c.opError("set", err)
	}
	return nil
}

// SetMTU sets the size of the largest UDP payload sent, in bytes, in place of
// Config.MTU: 50 to 65507 with what Cipher and FEC add, which must leave 50 bytes. Path
// MTU discovery does not exceed it, whatever Config.MaxMTU says; packets that are lost
// in a black hole still become smaller. 0 returns to Config.MTU, and to discovery.
// Segments that are queued already travel in pieces to an extended peer if they are
// larger, and to a legacy peer as they are.
//
// Errors are a *ConfigError for a size out of range, which changes nothing, and
// net.ErrClosed after Close or Abort. A session that has ended ignores it.
func (c *Conn) SetMTU(n int) error {
	room := c.ep.overhead.total
	if least := room + machine.MinMTU; n != 0 && (n < least || n > maxUDPPayload) {
		return &ConfigError{"MTU", n, fmt.Sprintf("must be in [%d, %d], or 0 for the value of Config", least, maxUDPPayload)}
	}
	return c.set(&change{of: ofMTU, n: n})
}

// SetWindow sets the windows in segments, in place of Config.SendWindow and
// Config.ReceiveWindow: 1 to 65535 each, 0 leaves one as it is. A receive window below
// 128 is raised to 128. The peer learns of a smaller one with the next packet, and
// retransmits what it has sent beyond. Errors are as for SetMTU.
func (c *Conn) SetWindow(send, receive int) error {
	for _, w := range []struct {
		field string
		value int
	}{{"SendWindow", send}, {"ReceiveWindow", receive}} {
		if w.value < 0 || w.value > wire.MaxWindow {
			return &ConfigError{w.field, w.value, fmt.Sprintf("must be in [1, %d], or 0 to leave it", wire.MaxWindow)}
		}
	}
	return c.set(&change{of: ofWindow, n: send, m: receive})
}

// SetNoDelay sets how segments are retransmitted, in place of Tuning.NoDelay,
// Tuning.Interval and Tuning.FastResend. NoDelayDefault leaves the mode as it is, and 0
// the others. interval is 10 ms to 5 s, in whole milliseconds. fastResend is a number
// of acknowledgements; negative means no fast retransmission. Another mode also sets
// its minimum retransmission time-out, unless Tuning.MinRTO is set. Errors are as for
// SetMTU.
func (c *Conn) SetNoDelay(mode NoDelay, interval time.Duration, fastResend int) error {
	if mode > NoDelayTurbo {
		return &ConfigError{"Tuning.NoDelay", mode, "must be one of the NoDelay modes"}
	}
	const least, most = machine.MinInterval * time.Millisecond, machine.MaxInterval * time.Millisecond
	if interval != 0 && (interval < least || interval > most) {
		return &ConfigError{"Tuning.Interval", interval, fmt.Sprintf("must be in [%v, %v], or 0 to leave it", least, most)}
	}
	return c.set(&change{of: ofTuning, machine: machine.Settings{
		NoDelay: machine.NoDelay(mode), MinRTO: int(c.ep.config.Tuning.MinRTO.Milliseconds()),
		Interval: int(interval.Milliseconds()), FastResend: min(fastResend, maxInt32),
	}})
}

// SetCongestionControl makes the session use the controller that f returns, in place of
// Config.CongestionControl; nil returns to that. What was learnt of the path is lost. f
// is called now, and again with the session's lock held if the session migrates (RFC
// 9000 §9). Neither f nor a controller may call the Conn. The error is net.ErrClosed
// after Close or Abort.
func (c *Conn) SetCongestionControl(f func() congestion.Control) error {
	first := f
	if f == nil {
		first = c.ep.config.CongestionControl
	}
	return c.set(&change{of: ofCongestion, control: f, first: first()})
}

// SetMessageMode sets whether Write and WriteMessage send messages, or a byte stream,
// in place of Config.MessageMode. The boundary behind the last message written before
// stays, and a Write that is waiting goes on in the new mode. How the session reads
// does not change, but in a Group it gets EventMessage in message mode, and EventData
// otherwise. Streams are not concerned. The error is net.ErrClosed after Close or
// Abort.
func (c *Conn) SetMessageMode(on bool) error {
	return c.set(&change{of: ofMessages, on: on})
}

// SetWriteBuffer sets how many bytes may be written ahead of the peer's
// acknowledgements, in place of Config.WriteBuffer: 4096 to 1 GiB; 0 returns to
// Config.WriteBuffer. Write blocks until what waits is less. The default of
// Config.MaxLinger does not follow. Errors are as for SetMTU.
func (c *Conn) SetWriteBuffer(bytes int) error {
	if bytes != 0 && (bytes < minWriteBuffer || bytes > maxConfigWriteBuffer) {
		return &ConfigError{"WriteBuffer", bytes, fmt.Sprintf("must be in [%d, %d], or 0 for the value of Config", minWriteBuffer, maxConfigWriteBuffer)}
	}
	return c.set(&change{of: ofWriteBuffer, n: bytes})
}

// SetMaxRate caps the rate at which the session sends from now on, in bytes a second, in
// place of Config.MaxRate: 1000 or more; 0, the default, means no cap.
//
// All bytes of UDP payload count that the session sends: data and retransmissions of the
// session and its streams, datagrams, ACKs, signals, path MTU probes, parity, and what
// Cipher, TLS and FEC add. IP and UDP headers do not. In any time no more leaves than the
// rate allows and one packet, and above 1 MB/s what it allows in 1 ms. A late timer is
// made up for by at most 10 ms. ACKs, signals and probes do not wait; until they are paid
// for, the rest has half of the rate.
//
// Data waits in the write buffer, where its lifetimes go on. That buffer, unless its
// size is set, is what the rate carries in a second, at least 64 KiB. Write and
// WriteReady wait for room in it. Datagrams leave before data, up to half of the rate;
// see SendDatagram. Errors are as for SetMTU.
func (c *Conn) SetMaxRate(bytes int) error {
	if err := validateRate(bytes); err != nil {
		return err
	}
	return c.set(&change{of: ofRate, n: bytes})
}
