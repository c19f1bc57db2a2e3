package netsim

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/udp"
)

const (
	relayMaxClients   = 1024
	relayMaxQueued    = 64 << 20 // bytes underway per direction
	relaySocketBuffer = 4 << 20
	relayBatch        = 256 // packets sent between two looks at the clock

	// relayPatience is how many reads may fail in a row before the next one is
	// put off by relayPause, so that a socket that is broken for good does not
	// take a whole core.
	relayPatience = 16
	relayPause    = 10 * time.Millisecond
)

// Relay is a UDP relay in real time whose two directions are Links: up from the
// clients to the target, down back to them. All clients share the two links,
// but each has an upstream socket of its own, so that the target sees one
// address per client.
//
// A relay serves the first 1024 client addresses; packets from others, and
// those beyond 64 MiB underway in one direction, are dropped and counted in
// Overflow. What the kernel drops, for lack of socket buffers, is not counted.
// Arrivals are late by the precision of the runtime's timers, about a
// millisecond.
//
// All methods are safe for concurrent use.
type Relay struct {
	listener *net.UDPConn
	front    udp.Conn // moves the packets of listener
	target   *net.UDPAddr
	up, down *pipe
	done     chan struct{}
	running  sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	clients map[relayKey]*relayClient
}

// relayKey is one client address, and the address of the relay that it sends to, if the
// relay listens on several. What is for the client leaves from there.
type relayKey struct {
	addr netip.AddrPort
	at   udp.Local
}

// relayClient is one client and the socket that speaks for it.
type relayClient struct {
	key      relayKey
	upstream atomic.Pointer[net.UDPConn]
}

// NewRelay starts a relay to target, a UDP address such as "127.0.0.1:4000". It
// listens on a free port of 127.0.0.1, or of ::1 if the target is IPv6. The
// seed makes the luck of the links, but as real packets come in their own time
// and order, two runs are not the same. The error is of a configuration that is
// not valid, of an address, of the system, or that there is no real time, in a
// bubble of testing/synctest.
func NewRelay(target string, up, down LinkConfig, seed uint64) (*Relay, error) {
	return ListenRelay("", target, up, down, seed)
}

// ListenRelay is NewRelay on a listening address of the caller's choice, such as
// ":4000". An empty one is as for NewRelay.
func ListenRelay(listen, target string, up, down LinkConfig, seed uint64) (*Relay, error) {
	if err := errors.Join(up.Validate(), down.Validate()); err != nil {
		return nil, err
	}
	if inBubble() {
		return nil, errors.New("netsim: a Relay has real sockets, which stop the clock of a bubble of testing/synctest: use a Network")
	}
	addr, err := net.ResolveUDPAddr("udp", target)
	if err != nil {
		return nil, fmt.Errorf("netsim: relay target: %w", err)
	}
	local := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}
	if addr.IP != nil && addr.IP.To4() == nil {
		local.IP = net.IPv6loopback
	}
	if listen != "" {
		if local, err = net.ResolveUDPAddr("udp", listen); err != nil {
			return nil, fmt.Errorf("netsim: relay address: %w", err)
		}
	}
	listener, err := net.ListenUDP("udp", local)
	if err != nil {
		return nil, fmt.Errorf("netsim: relay socket: %w", err)
	}
	enlargeBuffers(listener)
	r := &Relay{
		listener: listener,
		front:    udp.New(listener),
		target:   addr,
		done:     make(chan struct{}),
		clients:  make(map[relayKey]*relayClient),
	}
	r.up = newPipe(NewLink(up, mix(seed)), func(c *relayClient, packet []byte) error {
		_, err := c.upstream.Load().Write(packet)
		return err
	})
	r.down = newPipe(NewLink(down, mix(seed+1)), func(c *relayClient, packet []byte) error {
		_, err := r.front.WriteBatch([]udp.Datagram{{Buf: packet, Addr: c.key.addr, Local: c.key.at}})
		return err
	})
	r.running.Go(func() { r.up.run(r.done) })
	r.running.Go(func() { r.down.run(r.done) })
	r.running.Go(r.readClients)
	return r, nil
}

// enlargeBuffers asks for large socket buffers. The system may grant less,
// which costs packets under load but does not make it fail.
func enlargeBuffers(c *net.UDPConn) {
	_ = c.SetReadBuffer(relaySocketBuffer)
	_ = c.SetWriteBuffer(relaySocketBuffer)
}

// Addr returns the address to which clients send.
func (r *Relay) Addr() *net.UDPAddr { return r.listener.LocalAddr().(*net.UDPAddr) }

// Play adds a script for each direction, either of which may be nil. Their times
// count from this call. The error is about the first step that sets something
// out of range; then nothing is added to that direction.
func (r *Relay) Play(up, down Script) error {
	return errors.Join(r.up.play(up), r.down.play(down))
}

// Rebind gives every client another upstream socket, so that the target sees
// them at other addresses from now on, as when the binding of a NAT expires. What
// the target sends to the former addresses is lost.
func (r *Relay) Rebind() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return fmt.Errorf("netsim: relay: %w", net.ErrClosed)
	}
	for _, c := range r.clients {
		former := c.upstream.Load()
		if err := r.connect(c); err != nil {
			return fmt.Errorf("netsim: relay socket: %w", err)
		}
		if err := former.Close(); err != nil {
			return err
		}
	}
	return nil
}

// Stats returns what has become of the packets in each direction. Delivered
// counts those written to a socket, Unreachable those that a socket refused.
func (r *Relay) Stats() (up, down LinkStats) { return r.up.stats(), r.down.stats() }

// QueueDelays returns how long packets have waited for their turn at the Rate of
// each direction.
func (r *Relay) QueueDelays() (up, down Delays) { return r.up.queueDelays(), r.down.queueDelays() }

// Close closes all sockets, drops what is underway and waits for the relay's
// goroutines. Closing again does nothing.
func (r *Relay) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		r.running.Wait()
		return nil
	}
	r.closed = true
	close(r.done)
	err := r.listener.Close()
	for _, c := range r.clients {
		err = errors.Join(err, c.upstream.Load().Close())
	}
	r.mu.Unlock()
	r.running.Wait()
	return err
}

// readClients takes packets from the clients.
func (r *Relay) readClients() {
	batch := make([]udp.Datagram, 1)
	r.read(func() error {
		if _, err := r.front.ReadBatch(batch); err != nil {
			return err
		}
		d := &batch[0]
		if c := r.client(relayKey{d.Addr, d.Local}); c != nil {
			r.up.accept(c, d.Buf)
		} else {
			r.up.refuse(len(d.Buf))
		}
		return nil
	})
}

// readUpstream takes the target's answers to one client.
func (r *Relay) readUpstream(c *relayClient, upstream *net.UDPConn) {
	buf := make([]byte, 1<<16)
	r.read(func() error {
		n, err := upstream.Read(buf)
		if err == nil {
			r.down.accept(c, buf[:n])
		}
		return err
	})
}

// read repeats a read until the socket is closed. Other errors concern single
// packets: a target that is not running, for one, makes itself known as
// ECONNREFUSED, and may be started later.
func (r *Relay) read(once func() error) {
	failures := 0
	for {
		err := once()
		switch {
		case err == nil:
			failures = 0
			continue
		case errors.Is(err, net.ErrClosed):
			return
		}
		if failures++; failures > relayPatience {
			select {
			case <-r.done:
			case <-time.After(relayPause):
			}
		}
	}
}

// client returns the client of a key, a new one if need be, or nil if there can be
// no more.
func (r *Relay) client(key relayKey) *relayClient {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.clients[key]; c != nil || r.closed || len(r.clients) >= relayMaxClients {
		return c
	}
	c := &relayClient{key: key}
	if err := r.connect(c); err != nil {
		return nil
	}
	r.clients[key] = c
	return c
}

// connect gives a client a new socket that speaks for it.
func (r *Relay) connect(c *relayClient) error {
	upstream, err := net.DialUDP("udp", nil, r.target)
	if err != nil {
		return err
	}
	enlargeBuffers(upstream)
	c.upstream.Store(upstream)
	r.running.Go(func() { r.readUpstream(c, upstream) })
	return nil
}

// pipe is one direction of a relay: a link on the real clock, and the goroutine
// that sends what has come through.
type pipe struct {
	start time.Time
	write func(*relayClient, []byte) error
	wake  chan struct{} // the first parcel is another

	mu      sync.Mutex
	conduit conduit[*relayClient]
	parcels schedule[*relayClient]
}

func newPipe(link *Link, write func(*relayClient, []byte) error) *pipe {
	p := &pipe{start: time.Now(), write: write, wake: make(chan struct{}, 1)}
	p.conduit.link = link
	return p
}

func (p *pipe) play(script Script) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conduit.link.play(script, time.Since(p.start))
}

func (p *pipe) stats() LinkStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conduit.stats()
}

func (p *pipe) queueDelays() Delays {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conduit.link.QueueDelays()
}

// accept puts a packet on the link.
func (p *pipe) accept(c *relayClient, packet []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.parcels.bytes+len(packet) > relayMaxQueued {
		p.conduit.drop(len(packet), &p.conduit.local.Overflow)
		return
	}
	before, waiting := p.parcels.next()
	p.parcels.send(&p.conduit, time.Since(p.start), packet, c)
	if at, ok := p.parcels.next(); ok && (!waiting || at < before) {
		select {
		case p.wake <- struct{}{}:
		default: // it is about to look anyway
		}
	}
}

// refuse counts a packet for which there is no room.
func (p *pipe) refuse(size int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conduit.drop(size, &p.conduit.local.Overflow)
}

// run sends parcels as they fall due, until done is closed.
func (p *pipe) run(done <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var batch []*parcel[*relayClient]
	for {
		var wait time.Duration
		batch, wait = p.collect(batch[:0])
		if len(batch) > 0 {
			p.forward(batch)
			select {
			case <-done:
				return
			default:
				continue // sending took time: more may be due
			}
		}
		timer.Reset(wait)
		select {
		case <-done:
			return
		case <-p.wake:
		case <-timer.C:
		}
	}
}

// collect appends the parcels that are due to batch and returns how long it is
// until the next.
func (p *pipe) collect(batch []*parcel[*relayClient]) ([]*parcel[*relayClient], time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Since(p.start)
	for len(batch) < relayBatch {
		next := p.parcels.due(now)
		if next == nil {
			break
		}
		batch = append(batch, next)
	}
	at, ok := p.parcels.next()
	if !ok {
		return batch, time.Hour // wake comes sooner
	}
	return batch, max(at-now, 0)
}

// forward writes a batch to the sockets, without the lock.
func (p *pipe) forward(batch []*parcel[*relayClient]) {
	var delivered, refused Tally
	for _, q := range batch {
		err := p.write(q.dest, q.data)
		if err != nil {
			// A connected socket reports the fate of an earlier packet on the
			// next write, which then has not been sent.
			err = p.write(q.dest, q.data)
		}
		if err == nil {
			delivered.add(len(q.data))
		} else {
			refused.add(len(q.data))
		}
		p.parcels.release(q)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conduit.local.Delivered.merge(delivered)
	p.conduit.local.Unreachable.merge(refused)
}
