package kcp

import (
	"fmt"
	"net"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/compatibility"
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/pacing"
	"github.com/arqnet/kcp/internal/streams"
)

// rareState is what most sessions do without. Conn.mu guards it.
type rareState struct {
	dropped  Drops
	settings *connSettings     // nil: as in Config
	decoded  *fec.DecoderStats // final statistics of inputState.decoder; nil: none
	receipts receipts
	capped   *cappedOutput    // nil: the rate is not capped
	awaiting streams.Awaiting // messages of Conn.SendMessage that await a receipt
	messages bool             // SendMessage was called with options
	failed   bool             // failMessages was called: no more of them are delivered
	measure  *measurement     // nil: nothing of it is needed
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
// Config. The state machine has the others. Conn.mu guards them.
type connSettings struct {
	messageMode bool
	writeBuffer int                       // bytes; 0: not set
	mtu         int                       // bytes, the envelope included; 0: Config.MTU, and discovery goes on
	congestion  func() congestion.Control // nil: Config.CongestionControl
}

// ownSettings returns the session's own settings. At first they equal those of
// Config.
func (c *session) ownSettings() *connSettings {
	r := c.rarely()
	if r.settings == nil {
		cfg := &c.shared.config
		r.settings = &connSettings{messageMode: cfg.MessageMode}
	}
	return r.settings
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
	return c.shared.config.MessageMode
}

// writeBuffer returns the size of the write buffer in bytes.
func (c *session) writeBuffer() int {
	if c.rare != nil && c.rare.settings != nil && c.rare.settings.writeBuffer > 0 {
		return c.rare.settings.writeBuffer
	}
	if c.shared.fixedWriteBuffer {
		return c.shared.config.WriteBuffer
	}
	size := defaultWriteBuffer
	if all := c.shared.load.written.Load(); all > writePressure {
		size = c.scarceWriteBuffer(all)
	}
	if s := c.cappedOutput(); s != nil {
		size = min(size, pacing.WriteBuffer(s.rate, defaultWriteBuffer))
	}
	return size
}

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
	return c.shared.config.MTU
}

// newCongestionControl returns a controller of the kind that was set.
func (c *session) newCongestionControl() congestion.Control {
	if s := c.settings(); s != nil && s.congestion != nil {
		return s.congestion()
	}
	return c.shared.config.CongestionControl()
}

// unsettable reports whether settings have no effect any more, with the error
// of their setters: net.ErrClosed after Close or Abort, and nil if the session
// has ended otherwise.
func (c *Conn) unsettable() (bool, error) {
	if c.closing.Caller != closing.Uses {
		return true, c.opError("set", net.ErrClosed)
	}
	return c.closing.Phase >= closing.Ended, nil
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
	if least := room + minMTU; n != 0 && (n < least || n > maxUDPPayload) {
		return &ConfigError{"MTU", n, fmt.Sprintf("must be in [%d, %d], or 0 for that of Config", least, maxUDPPayload)}
	}
	c.mu.Lock()
	defer c.unlock()
	if done, err := c.unsettable(); done {
		return err
	}
	c.ownSettings().mtu = n
	c.plpmtu.Restart()
	c.outgoing.dropProbe()
	c.kcp.configure(machineSettings{mtu: c.firstMTU() - room})
	if c.hs.capabilities&capPMTU != 0 {
		c.enablePieces()
	}
	return nil
}

// SetWindow sets the windows in segments, in place of Config.SendWindow and
// Config.ReceiveWindow: 1 to 65535 each, 0 leaves one as it is. A receive window below
// 128 is raised to 128. The peer learns of a smaller one with the next packet, and
// retransmits what it has sent beyond. Errors are a *ConfigError for a window out of
// range, which changes nothing, and net.ErrClosed after Close or Abort. A session that
// has ended ignores it.
func (c *Conn) SetWindow(send, receive int) error {
	for _, w := range []struct {
		field string
		value int
	}{{"SendWindow", send}, {"ReceiveWindow", receive}} {
		if w.value < 0 || w.value > maxWindow {
			return &ConfigError{w.field, w.value, fmt.Sprintf("must be in [1, %d], or 0 to leave it", maxWindow)}
		}
	}
	c.mu.Lock()
	defer c.unlock()
	if done, err := c.unsettable(); done {
		return err
	}
	c.kcp.configure(machineSettings{sendWindow: send, receiveWindow: receive})
	if c.readable() {
		c.step.ready |= readers // a message that the old window could not hold
	}
	c.step.ready |= writers
	c.push() // what the new windows allow, or a window update
	return nil
}

// SetNoDelay sets how segments are retransmitted, in place of Config.NoDelay,
// Config.Interval and Config.FastResend. NoDelayDefault leaves the mode as it is, and 0
// the others. interval is 10 ms to 5 s, in whole milliseconds. fastResend is a number of
// acknowledgements; negative means no fast retransmission. Another mode also sets its
// minimum retransmission time-out, unless Config.MinRTO is set. Errors are a
// *ConfigError for a value out of range, which changes nothing, and net.ErrClosed after
// Close or Abort. A session that has ended ignores it.
func (c *Conn) SetNoDelay(mode NoDelay, interval time.Duration, fastResend int) error {
	if mode > NoDelayTurbo {
		return &ConfigError{"NoDelay", mode, "must be one of the NoDelay modes"}
	}
	const least, most = minInterval * time.Millisecond, maxInterval * time.Millisecond
	if interval != 0 && (interval < least || interval > most) {
		return &ConfigError{"Interval", interval, fmt.Sprintf("must be in [%v, %v], or 0 to leave it", least, most)}
	}
	c.mu.Lock()
	defer c.unlock()
	if done, err := c.unsettable(); done {
		return err
	}
	c.kcp.configure(machineSettings{
		noDelay: mode, minRTO: int(c.ep.config.MinRTO.Milliseconds()),
		interval: int(interval.Milliseconds()), fastResend: min(fastResend, maxInt32),
	})
	return nil
}

// SetCongestionControl makes the session use the controller that f returns, in place of
// Config.CongestionControl; nil returns to that. What was learnt of the path is lost. f
// is called now, and again with the session's lock held if the session migrates (RFC
// 9000 §9). Neither f nor a controller may call the Conn.
//
// SetCongestionControl returns net.ErrClosed after Close or Abort. A session that has
// ended ignores it.
func (c *Conn) SetCongestionControl(f func() congestion.Control) error {
	first := f
	if f == nil {
		first = c.ep.config.CongestionControl
	}
	cc := first()
	c.mu.Lock()
	defer c.unlock()
	if done, err := c.unsettable(); done {
		return err
	}
	c.ownSettings().congestion = f
	c.call(func() { c.kcp.SetCongestionControl(cc) })
	c.push()
	return nil
}

// SetMessageMode sets whether Write and WriteMessage send messages, or a byte stream, in
// place of Config.MessageMode. The boundary behind the last message written before
// stays, and a Write that is waiting goes on in the new mode. How the session reads does
// not change, but in a Group it gets EventMessage in message mode, and EventData
// otherwise. Streams are not concerned.
//
// It returns net.ErrClosed after Close or Abort. A session that has ended ignores it.
func (c *Conn) SetMessageMode(on bool) error {
	c.mu.Lock()
	defer c.unlock()
	if done, err := c.unsettable(); done {
		return err
	}
	if on == c.messageMode() {
		return nil
	}
	c.ownSettings().messageMode = on
	data := streamData
	if on {
		data = messageData
	}
	c.kcp.configure(machineSettings{data: data})
	return nil
}

// SetWriteBuffer sets how many bytes may be written ahead of the peer's
// acknowledgements, in place of Config.WriteBuffer: 4096 to 1 GiB; 0 returns to
// Config.WriteBuffer. Write blocks until what waits is less. The default of
// Config.MaxLinger does not follow. Errors are a *ConfigError for a size out of range,
// which changes nothing, and net.ErrClosed after Close or Abort. A session that has
// ended ignores it.
func (c *Conn) SetWriteBuffer(bytes int) error {
	if bytes != 0 && (bytes < minWriteBuffer || bytes > maxConfigWriteBuffer) {
		return &ConfigError{"WriteBuffer", bytes, fmt.Sprintf("must be in [%d, %d], or 0 for that of Config", minWriteBuffer, maxConfigWriteBuffer)}
	}
	c.mu.Lock()
	defer c.unlock()
	if done, err := c.unsettable(); done {
		return err
	}
	c.ownSettings().writeBuffer = bytes
	c.step.ready |= writers
	return nil
}

// apply configures a session's state machine, which is new. The settings have passed
// Validate.
func (c *Config) apply(k *KCP) {
	// While the peer is silent it must be asked several times within
	// PeerTimeout, or its silence would mean nothing.
	longest := sessionMaxRTO
	if c.PeerTimeout > 0 {
		longest = max(min(longest, c.PeerTimeout/4), time.Millisecond)
	}
	limit, data := c.FastResendLimit, streamData
	if limit == 0 {
		limit = -1
	}
	if c.MessageMode {
		data = messageData
	}
	k.configure(machineSettings{
		mtu:        c.MTU - c.overhead().total,
		sendWindow: c.SendWindow, receiveWindow: c.ReceiveWindow,
		noDelay:    c.NoDelay,
		minRTO:     int(c.MinRTO.Milliseconds()),
		interval:   int(c.Interval.Milliseconds()),
		fastResend: c.FastResend, fastResendLimit: limit,
		deadLink: c.DeadLink,
		data:     data,
		extensions: Extensions{
			StrictRTT:         true,
			FreshFastAck:      true,
			FreshWindow:       true,
			PipeWindow:        true,
			PostponeTimeouts:  true,
			SendOrder:         true,
			RepeatAcks:        true,
			LimitToPeerWindow: true,
			SparseAcks:        true,
			MaxRTO:            uint32(longest.Milliseconds()),
			ProbeWait:         uint32(min(zeroWindowProbeWait, longest).Milliseconds()),
			MaxProbeWait:      uint32(longest.Milliseconds()),
			ThinAcks:          true,
			EarlyRetransmit:   true,
			TailProbe:         true,
			EarlyRepair:       true,
			OutageProbe:       uint32(min(zeroWindowProbeWait, longest).Milliseconds()),
			Redundancy:        uint32(c.Redundancy * 100),
			TakePieces:        true,
		},
	})
	k.SetCongestionControl(c.CongestionControl())
}

// What package compat and benchmarks use, and no package of others can.
var _ = compatibility.Connect(compatibility.Hooks{
	Set:       func(endpoint any, o compatibility.Options) { endpoint.(*Endpoint).compat = o },
	Validated: func(conn any) bool { return !conn.(*Conn).halfOpen() },
	Close:     func(conn any) ([][]byte, error) { return conn.(*Conn).closeKeeping(true) },
	Machine: func(config, k any) (mtu int) {
		c := config.(*Config).withDefaults()
		c.apply(k.(*KCP))
		return c.MTU
	},
})
