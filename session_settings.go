package kcp

import (
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
func (c *session) measurement() *measurement {
	if c.rare == nil {
		return nil
	}
	return c.rare.measure
}

// measures is measurement, which it allocates if there is none.
func (c *session) measures() *measurement {
	r := c.rarely()
	if r.measure == nil {
		r.measure = new(measurement)
	}
	return r.measure
}

// rarely returns the session's rareState, which it allocates.
func (c *session) rarely() *rareState {
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
}

// ownSettings returns the session's own settings. At first they equal
// Config's.
func (c *session) ownSettings() *connSettings {
	r := c.rarely()
	if r.settings == nil {
		cfg := &c.shared.config
		r.settings = &connSettings{messageMode: cfg.messageMode}
	}
	return r.settings
}

// setting is what of a session's settings a call changes.
type setting uint8

const (
	ofMTU         setting = iota // n bytes; 0: as in Config
	ofWindow                     // n segments to send, m to receive; 0: as they are
	ofTuning                     // machine
	ofCongestion                 // control, of which first is the next; nil: as in Config
	ofMessages                   // on
	ofWriteBuffer                // n bytes; 0: as in Config
	ofRate                       // n bytes a second; 0: none
	ofLinger                     // wait
	ofDatagrams                  // on: those that arrive are handed over; also of a session that was closed
)

// change is a call that changes settings.
type change struct {
	of      setting
	n, m    int
	on      bool
	machine machine.Settings
	control func() congestion.Control
	first   congestion.Control
	wait    time.Duration
}

// set changes settings. It does nothing if the session has ended, and fails with
// net.ErrClosed if it was closed or aborted at this end.
func (c *session) set(to *change) error {
	switch {
	case to.of == ofDatagrams:
		if to.on || c.in.datagrams != nil {
			c.datagramQueue().Handled = to.on
		}
	case c.closing.Caller != closing.Uses:
		return net.ErrClosed
	case to.of == ofLinger:
		c.closing.Linger = to.wait
	case c.closing.Phase < closing.Ended:
		c.change(to)
	}
	return nil
}

// change is set for a session that goes on.
func (c *session) change(to *change) {
	switch to.of {
	case ofMTU:
		c.ownSettings().mtu = to.n
		c.plpmtu.Restart()
		c.outgoing.dropProbe()
		c.kcp.Configure(machine.Settings{MTU: c.firstMTU() - c.shared.overhead.total})
		if c.hs.capabilities&capPMTU != 0 {
			c.enablePieces()
		}
		c.schedule(c.host.now())
	case ofWindow:
		c.in.fixedWindow = c.in.fixedWindow || to.m != 0
		c.kcp.Configure(machine.Settings{SendWindow: to.n, ReceiveWindow: to.m})
		if c.waiting().any {
			c.step.left.ready |= readers // a message that the old window could not hold
		}
		c.step.left.ready |= writers
		c.push() // what the new windows allow, or a window update
	case ofTuning:
		c.kcp.Configure(to.machine)
	case ofCongestion:
		c.ownSettings().congestion = to.control
		c.call(func() { c.kcp.SetCongestionControl(to.first) })
		c.push()
	case ofMessages:
		data := machine.StreamData
		if to.on {
			data = machine.MessageData
		}
		if to.on != c.messageMode() {
			c.ownSettings().messageMode = to.on
			c.kcp.Configure(machine.Settings{Data: data})
		}
	case ofWriteBuffer:
		c.ownSettings().writeBuffer = to.n
		c.step.left.ready |= writers
	case ofRate:
		c.setClock(c.host.now())
		c.capRate(to.n)
		c.step.left.ready |= writers // the write buffer may have room
		if c.streams != nil {
			c.streams.WakeWriter()
		}
		c.push()
	}
}

// settings returns the session's own settings; nil if it has none.
func (c *session) settings() *connSettings {
	if c.rare == nil {
		return nil
	}
	return c.rare.settings
}

// messageMode reports whether Write and WriteMessage send messages.
func (c *session) messageMode() bool {
	if c.rare != nil && c.rare.settings != nil {
		return c.rare.settings.messageMode
	}
	return c.shared.config.messageMode
}

// writeBuffer returns the size of the write buffer in bytes.
func (c *session) writeBuffer() int {
	if c.rare != nil && c.rare.settings != nil && c.rare.settings.writeBuffer > 0 {
		return c.rare.settings.writeBuffer
	}
	if c.shared.fixedWriteBuffer {
		return c.shared.config.writeBuffer
	}
	size := writeBufferFor(c.kcp.Sender().Flying())
	if all := c.shared.load.written.Load(); all > writePressure {
		size = c.scarceWriteBuffer(all)
	}
	if s := c.capped; s != nil {
		size = min(size, recovery.WriteBuffer(s.rate, defaultWriteBuffer))
	}
	return size
}

// writeBufferFor returns the size of the write buffer for the bytes in flight.
func writeBufferFor(flying int) int { return min(max(defaultWriteBuffer, 2*flying), mostWriteBuffer) }

// pinnedMTU returns the UDP payload of SetMTU in bytes; 0: none.
func (c *session) pinnedMTU() int {
	if s := c.settings(); s != nil {
		return s.mtu
	}
	return 0
}

// firstMTU returns the largest UDP payload, in bytes, before path MTU discovery
// has found another.
func (c *session) firstMTU() int {
	if n := c.pinnedMTU(); n > 0 {
		return n
	}
	return c.shared.config.mtu
}

// newCongestionControl returns a controller of the kind that was set.
func (c *session) newCongestionControl() congestion.Control {
	if s := c.settings(); s != nil && s.congestion != nil {
		return s.congestion()
	}
	return c.shared.config.congestionControl()
}

// apply configures a session's state machine, which is new. The settings have passed
// Validate.
func (c *sessionConfig) apply(k *machine.KCP, overhead int) {
	// While the peer is silent it must be asked several times within
	// PeerTimeout, or its silence would mean nothing.
	longest := sessionMaxRTO
	if c.peerTimeout > 0 {
		longest = max(min(longest, c.peerTimeout/4), time.Millisecond)
	}
	limit, data := c.fastResendLimit, machine.StreamData
	if limit == 0 {
		limit = -1
	}
	if c.messageMode {
		data = machine.MessageData
	}
	k.Configure(machine.Settings{
		MTU:        c.mtu - overhead,
		SendWindow: c.sendWindow, ReceiveWindow: c.receiveWindow,
		NoDelay:    c.noDelay,
		MinRTO:     int(c.minRTO.Milliseconds()),
		Interval:   int(c.interval.Milliseconds()),
		FastResend: c.fastResend, FastResendLimit: limit,
		DeadLink:   c.deadLink,
		Data:       data,
		Extensions: machine.SessionExtensions(uint32(longest.Milliseconds()), uint32(c.redundancy*100)),
	})
	k.SetCongestionControl(c.congestionControl())
}
