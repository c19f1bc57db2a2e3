package session

import (
	"cmp"
	"net"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/stats"
)

// rareState is what most sessions do without.
type rareState struct {
	dropped  stats.Drops
	settings *connSettings     // nil: as in Config
	decoded  *fec.DecoderStats // final statistics of inputState.decoder; nil: none
	receipts streams.Receipts  // that are due
	awaiting streams.Awaiting  // messages of Conn.WriteMessage that await a receipt
	messages bool              // WriteMessage was called with options
	failed   bool              // failMessages was called: no more of them are delivered
	measure  *measurement      // nil: nothing of it is needed
	tie      wire.Signal       // goes with our HELLO, as the peer dials too; code 0: it does not
	again    bool              // for tie: this end has dialled another session before
}

// measurement returns what Flush and Ping watch; nil: nothing was of it.
func (c *Session) measurement() *measurement {
	if c.rare == nil {
		return nil
	}
	return c.rare.measure
}

// measures is measurement, which it allocates if there is none.
func (c *Session) measures() *measurement {
	r := c.rarely()
	if r.measure == nil {
		r.measure = new(measurement)
	}
	return r.measure
}

// rarely returns the session's rareState, which it allocates.
func (c *Session) rarely() *rareState {
	if c.rare == nil {
		c.rare = new(rareState)
	}
	return c.rare
}

// connSettings are the settings of one session in place of its endpoint's
// Config. The state machine has the others.
type connSettings struct {
	messageMode bool
	writeBuffer int                       // bytes; 0: not set
	mtu         int                       // bytes, the envelope included; 0: Config.MTU, and discovery goes on
	congestion  func() congestion.Control // nil: Config.CongestionControl
	keepAlive   time.Duration             // negative: off
	peerTimeout time.Duration             // negative: off
}

// ownSettings returns the session's own settings. At first they equal
// Config's.
func (c *Session) ownSettings() *connSettings {
	r := c.rarely()
	if r.settings == nil {
		cfg := &c.shared.Config
		r.settings = &connSettings{messageMode: cfg.MessageMode, keepAlive: cfg.KeepAlive, peerTimeout: cfg.PeerTimeout}
	}
	return r.settings
}

// Setting is what of a session's settings a call changes.
type Setting uint8

const (
	OfMTU         Setting = iota // n bytes; 0: as in Config
	OfWindow                     // n segments to send, m to receive; 0: as they are
	OfTuning                     // machine
	OfCongestion                 // control, of which first is the next; nil: as in Config
	OfMessages                   // on
	OfWriteBuffer                // n bytes; 0: as in Config
	OfRate                       // n bytes a second; 0: none
	OfLinger                     // wait
	OfKeepAlive                  // wait; negative: never, 0: as in Config
	OfPeerTimeout                // likewise
	OfDatagrams                  // on: those that arrive are handed over; also of a session that was closed
)

// Change is a call that changes settings.
type Change struct {
	Of      Setting
	N, M    int
	On      bool
	Machine machine.Settings
	Control func() congestion.Control
	First   congestion.Control
	Wait    time.Duration
}

// Set changes settings. It does nothing if the session has ended, and fails with
// net.ErrClosed if it was closed or aborted at this end.
func (c *Session) Set(to *Change) error {
	switch {
	case to.Of == OfDatagrams:
		if to.On || c.in.datagrams != nil {
			c.datagramQueue().Handled = to.On
		}
	case c.closing.Caller != closing.Uses:
		return net.ErrClosed
	case to.Of == OfLinger:
		c.closing.Linger = to.Wait
	case c.closing.Phase < closing.Ended:
		c.change(to)
	}
	return nil
}

// change is Set for a session that goes on.
func (c *Session) change(to *Change) {
	switch to.Of {
	case OfMTU:
		c.ownSettings().mtu = to.N
		c.plpmtu.Restart()
		c.outgoing.dropProbe()
		c.kcp.Configure(machine.Settings{MTU: c.firstMTU() - c.shared.Overhead.Total})
		if c.hs.capabilities&CapPMTU != 0 {
			c.enablePieces()
		}
		c.schedule(c.host.Now())
	case OfWindow:
		c.in.fixedWindow = c.in.fixedWindow || to.M != 0
		c.kcp.Configure(machine.Settings{SendWindow: to.N, ReceiveWindow: to.M})
		if c.Waiting().Any {
			c.step.left.Ready |= Readers // a message that the old window could not hold
		}
		c.step.left.Ready |= Writers
		c.Push() // what the new windows allow, or a window update
	case OfTuning:
		c.kcp.Configure(to.Machine)
	case OfCongestion:
		c.ownSettings().congestion = to.Control
		c.call(func() { c.kcp.SetCongestionControl(to.First) })
		c.Push()
	case OfMessages:
		data := machine.StreamData
		if to.On {
			data = machine.MessageData
		}
		if to.On != c.messageMode() {
			c.ownSettings().messageMode = to.On
			c.kcp.Configure(machine.Settings{Data: data})
		}
	case OfWriteBuffer:
		c.ownSettings().writeBuffer = to.N
		c.step.left.Ready |= Writers
	case OfRate:
		c.setClock(c.host.Now())
		c.capRate(to.N)
		c.step.left.Ready |= Writers // the write buffer may have room
		if c.streams != nil {
			c.streams.WakeWriter()
		}
		c.Push()
	case OfKeepAlive:
		c.ownSettings().keepAlive = cmp.Or(to.Wait, c.shared.Config.KeepAlive)
		c.schedule(c.host.Now())
	case OfPeerTimeout:
		d := cmp.Or(to.Wait, c.shared.Config.PeerTimeout)
		c.ownSettings().peerTimeout = d
		c.kcp.Configure(machine.Settings{MaxRTO: longestRTO(d)})
		c.schedule(c.host.Now())
	}
}

// peerTimeout returns the user time-out; not positive: none.
func (c *Session) peerTimeout() time.Duration {
	if s := c.settings(); s != nil {
		return s.peerTimeout
	}
	return c.shared.Config.PeerTimeout
}

// settings returns the session's own settings; nil if it has none.
func (c *Session) settings() *connSettings {
	if c.rare == nil {
		return nil
	}
	return c.rare.settings
}

// messageMode reports whether Write and WriteMessage send messages.
func (c *Session) messageMode() bool {
	if c.rare != nil && c.rare.settings != nil {
		return c.rare.settings.messageMode
	}
	return c.shared.Config.MessageMode
}

// writeBuffer returns the size of the write buffer in bytes.
func (c *Session) writeBuffer() int {
	if c.rare != nil && c.rare.settings != nil && c.rare.settings.writeBuffer > 0 {
		return c.rare.settings.writeBuffer
	}
	if c.shared.FixedWriteBuffer {
		return c.shared.Config.WriteBuffer
	}
	size := WriteBufferFor(c.kcp.Sender().Flying())
	if all := c.shared.Load.Written.Load(); all > WritePressure {
		size = c.scarceWriteBuffer(all)
	}
	if s := c.capped; s != nil {
		size = min(size, recovery.WriteBuffer(s.rate, DefaultWriteBuffer))
	}
	return size
}

// WriteBufferFor returns the size of the write buffer for the bytes in flight.
func WriteBufferFor(flying int) int { return min(max(DefaultWriteBuffer, 2*flying), mostWriteBuffer) }

// pinnedMTU returns the UDP payload of SetMTU in bytes; 0: none.
func (c *Session) pinnedMTU() int {
	if s := c.settings(); s != nil {
		return s.mtu
	}
	return 0
}

// firstMTU returns the largest UDP payload, in bytes, before path MTU discovery
// has found another.
func (c *Session) firstMTU() int {
	if n := c.pinnedMTU(); n > 0 {
		return n
	}
	return c.shared.Config.MTU
}

// newCongestionControl returns a controller of the kind that was set.
func (c *Session) newCongestionControl() congestion.Control {
	if s := c.settings(); s != nil && s.congestion != nil {
		return s.congestion()
	}
	return c.shared.Config.CongestionControl()
}

// Apply configures a session's state machine, which is new. The settings have passed
// Validate.
func (c *Config) Apply(k *machine.KCP, overhead int) {
	limit, data := c.FastResendLimit, machine.StreamData
	if limit == 0 {
		limit = -1
	}
	if c.MessageMode {
		data = machine.MessageData
	}
	k.Configure(machine.Settings{
		MTU:        c.MTU - overhead,
		SendWindow: c.SendWindow, ReceiveWindow: c.ReceiveWindow,
		NoDelay:    c.NoDelay,
		MinRTO:     int(c.MinRTO.Milliseconds()),
		Interval:   int(c.Interval.Milliseconds()),
		FastResend: c.FastResend, FastResendLimit: limit,
		DeadLink:   c.DeadLink,
		Data:       data,
		Extensions: machine.SessionExtensions(uint32(longestRTO(c.PeerTimeout)), uint32(c.Redundancy*100)),
	})
	k.SetCongestionControl(c.CongestionControl())
}

// longestRTO returns the longest time-out of a segment in milliseconds. While the peer is
// silent it must be asked several times within the user time-out, or its silence would
// mean nothing.
func longestRTO(peerTimeout time.Duration) int {
	longest := SessionMaxRTO
	if peerTimeout > 0 {
		longest = max(min(longest, peerTimeout/4), time.Millisecond)
	}
	return int(longest.Milliseconds())
}
