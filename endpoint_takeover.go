package kcp

import (
	"context"
	"net"

	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/takeover"
	"github.com/arqnet/kcp/internal/udp"
)

// Socket takeover, at the end that begins (internal/takeover). It reads the sockets, and
// forwards packets of sessions that stayed in the processes before it.

// TakeOver takes over the sockets of the process at the other end of conn, a Unix stream
// socket, where Listener.HandOver is called, and returns a listener on them. The sessions
// stay in the other process, which gets their packets.
//
// config must be as in the other process in Cipher, Shards, SharedConvs, whether TLS and
// FEC are set, and whether legacy peers may open sessions. If it differs, the error wraps
// a *ConfigError, and nothing has changed there. SocketBuffer and Control have no effect.
//
// TakeOver gives up after 4 seconds, or with ctx.Err(). It works on Linux, between
// processes of the same user or root; elsewhere the error is errors.ErrUnsupported. It
// does not close conn.
func TakeOver(ctx context.Context, conn *net.UnixConn, config *Config) (*Listener, error) {
	if err := config.validateFor(true); err != nil {
		return nil, err
	}
	if err := config.listenable(); err != nil {
		return nil, opError("take over", nil, nil, err)
	}
	link, err := takeover.NewLink(ctx, conn, "the old process")
	if err != nil {
		return nil, opError("take over", nil, nil, err)
	}
	defer link.Close()
	l, err := takeOver(link, config)
	if err != nil {
		tellRefusal(link, err)
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, opError("take over", nil, nil, err)
	}
	return l, nil
}

// takeOver runs the successor's part of the exchange.
func takeOver(link *takeover.Link, config *Config) (*Listener, error) {
	a, err := takeover.Arrive(link, config.agrees)
	if err != nil {
		return nil, err
	}
	e := makeEndpoint(config, true, a.Sockets...)
	takeover.Adopt(&e.table.Gate, &a.State, e.config.TLS != nil && len(e.config.StatelessResetKey) == 0, e.now())
	l, err := e.Listen()
	if err == nil {
		err = a.Learn(e.inherit)
	}
	if err != nil {
		_ = e.Close()
		a.Close()
		return nil, err
	}
	e.takeover.Before.Start(a.Before)
	e.start()
	return l, nil
}

// agrees compares the predecessor's configuration with c.
func (c *Config) agrees(offer *takeover.Offer) error {
	own := c.withDefaults()
	scheme := protect.NewScheme(own.Cipher, own.TLS != nil, nil)
	if differs := offer.DiffersWith(own.offer(max(own.Shards, 1), scheme), scheme.Outside); differs != nil {
		return (*ConfigError)(differs)
	}
	return nil
}

// inherit takes over what is left of a session that has ended in another process. It
// answers for it in TIME-WAIT.
func (e *Endpoint) inherit(n takeover.Note) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case n.Kind == takeover.Used:
		e.table.Used.Add(n.Conv)
	case !e.closed:
		key, ended := n.Remember(e.Outside)
		e.rememberLocked(key, ended, n.Extended)
	}
}

// forward passes a packet on to the process before this one that has its session. It
// reports false if there is none.
func (e *Endpoint) forward(key session.Key, d *udp.Datagram, p *session.InPacket, in *readState) bool {
	if key.Peer != "" {
		return false
	}
	Packet := takeover.PacketOf(key, p.Kind, p.Data, e.config.SharedConvs)
	switch in.forwarder().Forward(&e.takeover.Before, d, Packet) {
	case takeover.Theirs:
		return true
	case takeover.Perhaps:
		return !e.hasConv(key.Conv)
	}
	return false
}

// forwarder returns what the reader has for predecessors.
func (in *readState) forwarder() *takeover.Forwarder {
	if in.forwards == nil {
		in.forwards = takeover.NewForwarder(in.shard)
	}
	return in.forwards
}

// hasConv reports whether a session of this process has a conversation id.
func (e *Endpoint) hasConv(conv uint32) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for range e.table.OfConv(conv) {
		return true
	}
	return false
}
