package kcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/dialling"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/internal/wire"
)

// Dialer dials sessions, each from a socket of its own. The zero value is ready to use.
// It is safe for concurrent use, as long as its fields do not change.
type Dialer struct {
	// Config holds the settings of the sessions; nil means the defaults. It
	// must not be changed while a session uses it.
	Config *Config
	// LocalAddr is the local address to dial from, a *net.UDPAddr. nil, or an unspecified
	// IP, lets the system choose. A session keeps a chosen one, even if the host gets
	// another.
	LocalAddr net.Addr
}

// DialOptions are the options of Endpoint.Dial; the zero value and nil: none.
type DialOptions struct {
	// Conv is the conversation id, for a peer that expects a certain one. nil draws one
	// at random. The ids of the sessions with one peer must differ. Forgers guess others
	// more easily.
	Conv *uint32
	// Quiet makes Dial return at once, and send nothing: HELLO leaves with the first
	// data, or with CloseWrite. A refusal is not an error: the session repeats its data
	// until Config.PeerTimeout has passed.
	Quiet bool
	// SimultaneousOpen is for a peer that dials too, with the same option, through NATs
	// (hole punching): one session comes of it. docs/peer-to-peer.md has errors and more.
	SimultaneousOpen bool
	// Candidates are up to 16 further addresses of the peer for that, the best first.
	Candidates []net.Addr
}

// Dial opens a session with the peer at address, from a socket of its own. network is
// "udp", "udp4" or "udp6"; address is "host:port". config may be nil, which means the
// defaults; an invalid one is a *ConfigError.
//
// It waits for the peer's answer, and has the errors of Endpoint.Dial. Config.DialTimeout
// does not bound the lookup of the name: the context of Dialer.DialContext does. The
// addresses of a name are tried in turn, each 250 ms after the one before (RFC 8305). If
// all fail, the error is that of the first.
//
// When the host's address or route changes, the socket sends from the new address, on
// Unix systems. It outlives the session by up to seven seconds, to answer
// retransmissions.
func Dial(network, address string, config *Config) (*Conn, error) {
	d := Dialer{Config: config}
	return d.dial(context.Background(), network, address)
}

// DialContext opens a session as Dial does; the result is a *Conn. It fits where
// net.Dialer's does. Once it has returned, ctx has no effect on the session. The networks
// "tcp", "tcp4" and "tcp6" mean UDP.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if network == "tcp" || network == "tcp4" || network == "tcp6" {
		network = "udp" + network[len("tcp"):]
	}
	c, err := d.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// dial is DialContext with a *Conn for a result.
func (d *Dialer) dial(ctx context.Context, network, address string) (*Conn, error) {
	if err := d.Config.validateFor(true); err != nil {
		return nil, err
	}
	if err := checkNetwork("dial", network); err != nil {
		return nil, err
	}
	addrs, port, err := d.resolve(ctx, network, address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	config := d.Config.named(address)
	if len(addrs) == 0 {
		return d.dialOne(ctx, config, network, address)
	}
	delay := dialling.AttemptDelay
	if d.wantsPort() {
		delay = 0 // one socket at a time can have the port
	}
	return dialling.Race(ctx, len(addrs), delay, func(ctx context.Context, i int) (*Conn, error) {
		return d.dialOne(ctx, config, network, net.JoinHostPort(addrs[i].String(), port))
	}, func(c *Conn) { _ = c.Abort(0, "") })
}

// resolve returns the addresses that dial tries in turn. There are none if one
// attempt is to have address as it is: it has no name, or the attempt does not show
// whether there is a peer.
func (d *Dialer) resolve(ctx context.Context, network, address string) (addrs []netip.Addr, port string, err error) {
	if address == "" {
		return nil, "", &net.AddrError{Err: "missing address"} // net.Dialer's has no type
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || d.Config != nil && d.Config.DialTimeout < 0 {
		return nil, "", nil // net.Dialer has the error, if it is one
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return nil, "", nil
	}
	found, err := withDescriptors(func() ([]netip.Addr, error) {
		return net.DefaultResolver.LookupNetIP(ctx, "ip"+strings.TrimPrefix(network, "udp"), host)
	})
	if err != nil {
		return nil, "", err
	}
	local, _ := d.LocalAddr.(*net.UDPAddr)
	for _, a := range found {
		a = a.Unmap()
		if local == nil || local.IP == nil || local.IP.IsUnspecified() || (local.IP.To4() != nil) == a.Is4() {
			addrs = append(addrs, a)
		}
	}
	return dialling.Interleave(addrs), port, nil
}

// dialOne dials one address, or the first of a name for which a socket can be opened.
func (d *Dialer) dialOne(ctx context.Context, config *Config, network, address string) (*Conn, error) {
	nd := net.Dialer{LocalAddr: d.LocalAddr}
	if config != nil {
		nd.Control = config.Control
	}
	socket, err := withDescriptors(func() (net.Conn, error) { return nd.DialContext(ctx, network, address) })
	if err != nil {
		return nil, err
	}
	if err := udp.Check(socket.(*net.UDPConn)); err != nil {
		_ = socket.Close() // the error that matters is err
		return nil, &net.OpError{Op: "dial", Net: network, Source: socket.LocalAddr(), Addr: socket.RemoteAddr(), Err: err}
	}
	e := newEndpoint(config, true, socket.(*net.UDPConn))
	e.mu.Lock()
	e.socket.connected = true
	e.socket.disposable = !d.wantsPort()
	e.mu.Unlock()
	e.keepConnected(socket.(*net.UDPConn), d.LocalAddr)
	unwound := true
	defer func() {
		if unwound { // by code of the application's
			_ = e.Close()
		}
	}()
	c, err := e.Dial(ctx, socket.RemoteAddr(), nil)
	unwound = false
	if err != nil {
		_ = e.Close() // the error that matters is err
		if errors.Is(err, errOwnAddress) && !d.wantsPort() {
			// The system has chosen the very port, which nobody else has.
			return nil, opError("dial", socket.LocalAddr(), socket.RemoteAddr(), ErrRefused)
		}
		return nil, err
	}
	return c, nil
}

// named returns c with the host of address as TLS.ServerName, if that is empty.
func (c *Config) named(address string) *Config {
	if c == nil || c.TLS == nil || c.TLS.ServerName != "" {
		return c
	}
	d := *c
	d.TLS = c.TLS.Clone()
	d.TLS.ServerName = session.ServerName(address)
	return &d
}

// wantsPort reports whether the caller has chosen the local port, and may want
// to use it again.
func (d *Dialer) wantsPort() bool {
	local, ok := d.LocalAddr.(*net.UDPAddr)
	return ok && local != nil && local.Port != 0
}

// checkNetwork returns the error of package net for a network that is not of UDP.
func checkNetwork(op, network string) error {
	switch network {
	case "udp", "udp4", "udp6":
		return nil
	}
	return &net.OpError{Op: op, Net: network, Err: net.UnknownNetworkError(network)}
}

// simultaneousOpen is a call of Dial whose peer dials too (RFC 9293 §3.5).
type simultaneousOpen = dialling.Open[session.Key, *Conn]

// tieNumber returns the number of a TIEBREAKER.
func tieNumber(s wire.Signal) uint64 { return uint64(s.TS)<<32 | uint64(s.SN) }

// helloOf returns what a packet with TIEBREAKER says.
func helloOf(p *admission.First) dialling.Hello {
	h := dialling.Hello{Conv: p.Key.Conv, Token: p.Hello.TS, Tie: tieNumber(p.Tie), Size: p.Size}
	h.Opens, h.Asks = p.Hello.Code != 0, p.Request.Code == wire.Ping
	return h
}

// pathChallenge returns the challenge of an address of a peer, at a time (RFC 9000
// §8.2). Only what was sent there has it.
func (e *Endpoint) pathChallenge(to session.Source, at time.Duration) wire.Signal {
	to.Local = udp.Local{} // a probe leaves before anything has come
	return e.challengeOf(to, 0, 0, at)
}

// answersPath reports whether a packet answers the challenge of the address that it comes
// from.
func (e *Endpoint) answersPath(first *admission.First, from session.Source, now time.Duration) bool {
	pong := first.Pong
	return pong.Code != 0 && (pong == e.pathChallenge(from, now).Answer() || pong == e.pathChallenge(from, now-admission.CookieTime).Answer())
}

// helloSignals is how many signals a HELLO with TIEBREAKER has at most: INFO and COOKIE,
// too. Without TIEBREAKER in its packet it would be that of any other dial.
const helloSignals = 4

// checkSimultaneous returns an error if SimultaneousOpen does not go with the other
// options, or the endpoint's Config.
func (e *Endpoint) checkSimultaneous(o *DialOptions) error {
	if o.Conv != nil || o.Quiet {
		return &OptionError{"DialOptions.SimultaneousOpen", true, "must not be combined with Conv or Quiet"}
	}
	if e.config.DialTimeout <= 0 {
		return &OptionError{"DialOptions.SimultaneousOpen", true, "needs Config.DialTimeout, as Dial has to wait"}
	}
	if n := len(o.Candidates); n > dialling.MaxCandidates {
		return &OptionError{"DialOptions.Candidates", n, fmt.Sprintf("must be at most %d", dialling.MaxCandidates)}
	}
	if most, least := e.config.MTU, e.shared.Overhead.Total+helloSignals*wire.HeaderSize; most < least {
		return &OptionError{"DialOptions.SimultaneousOpen", true, fmt.Sprintf("needs a Config.MTU of at least %d, so that one packet has all that goes with HELLO", least)}
	}
	return e.config.listenable()
}

// peerAddrs returns the addresses of a peer that a simultaneous open tries, addr first.
// Candidates that the socket cannot send to, or has itself, are left out: in another
// network a host may have the same address. So are those that no single peer has, and
// the addresses of open sessions: a peer may name addresses that are others'.
func (e *Endpoint) peerAddrs(addr net.Addr, candidates []net.Addr) (sources []session.Source, keys []session.Key) {
	_, own := addressOf(e.LocalAddr())
	for i, a := range append([]net.Addr{addr}, candidates...) {
		if i > 0 && e.checkAddress(a) != nil {
			continue
		}
		to, key := addressOf(a)
		if i > 0 && (to.Peer == nil && !isUnicast(to.Addr) || key == own) || slices.Contains(keys, key) {
			continue
		}
		sources, keys = append(sources, to), append(keys, key)
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	for _, c := range e.table.Slots() {
		if c == nil || c.session.HalfOpen() {
			continue // anybody may have opened it in the name of that address
		}
		key := c.session.Place().Key()
		key.Conv = 0
		if i := slices.Index(keys, key); i > 0 {
			sources, keys = slices.Delete(sources, i, i+1), slices.Delete(keys, i, i+1)
		}
	}
	return sources, keys
}

// addressOf returns an address as packets from there have it, and its key in a
// simultaneous open.
func addressOf(a net.Addr) (session.Source, session.Key) {
	ap, peer := udp.Split(a)
	if peer == nil {
		ap = udp.Unmap(ap)
	}
	return session.Source{Addr: ap, Peer: peer}, admission.MakeKey(ap, peer, 0)
}

// isUnicast reports whether a single peer may have an address.
func isUnicast(a netip.AddrPort) bool {
	ip := a.Addr()
	return a.Port() != 0 && !ip.IsUnspecified() && !ip.IsMulticast() && ip != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// openSimultaneously is Dial with SimultaneousOpen.
func (e *Endpoint) openSimultaneously(ctx context.Context, addr net.Addr, options *DialOptions) (*Conn, error) {
	if err := e.checkSimultaneous(options); err != nil {
		return nil, err
	}
	e.holdForDial(1)
	defer e.holdForDial(-1)
	sources, keys := e.peerAddrs(addr, options.Candidates)
	var probes sync.WaitGroup
	defer probes.Wait()
	within, decided := context.WithCancel(ctx)
	defer decided()
	o, others := e.opens.Begin(keys, e.shared.Env.Uint32(), decided)
	if o == nil {
		return nil, errOpening
	}
	defer o.End(dropLate)
	each(others, func(c *Conn) { c.endFor(session.CauseFailed, ErrReset) })
	key, called, hellos := keys[0], e.now(), 0
	for dials := 1; ; dials++ {
		key.Conv = e.shared.Env.Uint32()
		c, err := e.openSession(key, addr, false)
		if err != nil {
			return nil, err
		}
		drawTie(o, c, dials > 1)
		if dials == 1 && len(sources) > 1 {
			probes.Go(func() { e.probeCandidates(within, o, sources) })
		}
		err = e.connect(within, c, false, called)
		won, failed := o.Dialled(c, err == nil)
		if err == nil && won != c {
			c.endFor(session.CauseDiscarded, ErrReset)
			err = ErrReset
		}
		if hellos += c.lookAt().Hellos; won == nil && failed == nil && err == ErrReset && dials < maxDraws {
			if e.pauseUntil(within, called+opening.HelloTime(hellos)) {
				continue
			}
			won, failed = o.Dialled(nil, false)
		}
		switch {
		case won != nil:
			return won, nil
		case failed != nil:
			return nil, failed
		}
		return nil, tried(err, o, sources)
	}
}

// pauseUntil waits until a time since the epoch. It reports false if ctx ends first.
//
// An end that dials again goes on in the rhythm of HELLO: packets that make it dial again
// may be forged, and would have much sent to the address in whose name they come.
func (e *Endpoint) pauseUntil(ctx context.Context, at time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(at - e.now()):
		return true
	}
}

// tried returns err, which says what addresses were tried if it is a *NoAnswerError.
func tried(err error, o *simultaneousOpen, sources []session.Source) error {
	if none, ok := err.(*NoAnswerError); ok {
		for i, s := range sources {
			if o.Has(i) {
				none.Tried = append(none.Tried, s.NetAddr())
			}
		}
	}
	return err
}

// probeCandidates sends TIEBREAKER to the addresses of a peer until ctx is done: so NATs
// at this end let in what comes from there, and the peer sees which paths work.
func (e *Endpoint) probeCandidates(ctx context.Context, o *simultaneousOpen, to []session.Source) {
	for {
		now := e.now()
		probe, ask, aim, wait := o.Probe(now)
		if probe >= 0 {
			e.probe(o, to[probe], ask, wire.Signal{}, now)
			e.sendReplies(0)
		}
		if c, _, _, ok := o.Dials(); ok && aim >= 0 {
			c.do(func(s *session.Session) { s.Hasten(&to[aim], now) })
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// probe sends TIEBREAKER to an address of a peer, as far as the limit of replies allows:
// with a challenge of the address if ask is set, and with the answer to the peer's,
// unless its code is 0.
func (e *Endpoint) probe(o *simultaneousOpen, to session.Source, ask bool, answer wire.Signal, now time.Duration) {
	_, conv, tie, ok := o.Dials()
	if !ok {
		return // no number is drawn
	}
	e.reply(to, e.shared.Outside, wire.Header{Conv: conv, Wnd: machine.MinRcvWnd}, e.probeSignals(to, tie, ask, answer, now)...)
}

// probeSignals returns the signals of probe.
func (e *Endpoint) probeSignals(to session.Source, tie uint64, ask bool, answer wire.Signal, now time.Duration) []wire.Signal {
	signals := []wire.Signal{{Code: wire.Tiebreak, SN: uint32(tie), TS: uint32(tie >> 32)}}
	if answer.Code != 0 {
		signals = append(signals, answer)
	}
	if ask {
		signals = append(signals, e.pathChallenge(to, now))
	}
	return signals
}

// tell is probe for the sender of a packet, as v says, if what has come from its address
// pays for that.
func (e *Endpoint) tell(v *dialling.Verdict[session.Key, *Conn], first *admission.First, to session.Source, now time.Duration) {
	if !v.Tell {
		return
	}
	size, answer := wire.HeaderSize, wire.Signal{}
	if first.Request.Code == wire.Ping {
		size, answer = size+wire.HeaderSize, first.Request.Answer()
	}
	if v.Ask {
		size += wire.HeaderSize
	}
	key := first.Key
	key.Conv = 0
	if head, tail := e.shared.Outside.Overhead(); e.opens.Take(key, head+size+tail) {
		e.probe(v.Open, to, v.Ask, answer, now)
	}
}

// drawTie has c, which is about to be dialled, say in HELLO that its peer dials too.
// again says that another was dialled before.
func drawTie(o *simultaneousOpen, c *Conn, again bool) {
	c.mu.Lock()
	defer c.unlock()
	tie := wire.Signal{Code: wire.Tiebreak, SN: c.ep.shared.Env.Uint32(), TS: c.ep.shared.Env.Uint32()}
	if number, ok := o.Inherits(); ok {
		tie.SN, tie.TS = uint32(number), uint32(number>>32)
	}
	c.session.DialAnother(tie, again)
	o.Dial(c, c.Conv(), tieNumber(tie))
}

// dropLate ends sessions that have not come of a simultaneous open. One whose TLS
// handshake has failed goes on to tell its peer for a while.
func dropLate(conns []*Conn) {
	each(conns, func(c *Conn) { c.endFor(session.CauseLate, nil) })
}

// maxDraws is how many sessions an end dials at most, one after the other, in a
// simultaneous open.
const maxDraws = 16

// meet handles a packet of no session while there are simultaneous opens. It returns the
// session whose packet it is, as the peer has come by another path. done reports whether
// there is nothing more to do; otherwise it may open a session for o.
func (e *Endpoint) meet(first *admission.First, p *session.InPacket, now time.Duration) (c *Conn, o *simultaneousOpen, done bool) {
	key := first.Key
	key.Conv = 0
	if first.Tie.Code == 0 {
		if first.Kind == session.ParityPacket {
			return nil, nil, false // it names no conversation
		}
		v, mine := e.opens.Elsewhere(key, first.Key.Conv, p.Size, now)
		e.tell(&v, first, p.From, now)
		if v.Do == dialling.Move && v.Session.moveOpening(p.From) {
			return v.Session, nil, true
		}
		return nil, nil, mine && v.Do != dialling.Move
	}
	h := helloOf(first)
	h.Shows = e.answersPath(first, p.From, now)
	v := e.opens.Judge(key, h, now)
	e.tell(&v, first, p.From, now)
	switch v.Do {
	case dialling.Greet:
		var to *session.Source
		if v.Aim {
			to = &p.From
		}
		v.Session.do(func(s *session.Session) { s.Hasten(to, now) })
	case dialling.Again:
		v.Session.endFor(session.CauseFailed, ErrReset)
	case dialling.Accept:
		first.Expected, first.Crowded = true, v.Crowded
		return nil, v.Open, false
	case dialling.Move:
		if v.Session.moveOpening(p.From) {
			return v.Session, nil, true
		}
	case dialling.Ignore:
		return nil, nil, v.Open != nil
	}
	return nil, nil, true
}
