package main

import (
	"context"
	"crypto/rand"
	"errors"

	"github.com/libp2p/zeroconf/v2"

	"github.com/arqnet/kcp"
)

// lanService is the service of DNS-SD (RFC 6763) by which ends find each other on a LAN.
const lanService = "_kcp-p2p._udp"

// meetOnLAN announces this end, with its card in the TXT record, waits for the peer's
// announcement, and opens a session with it.
func (n *node) meetOnLAN(ctx context.Context) (*kcp.Conn, error) {
	socket := addrPort(n.pc.LocalAddr())
	me := &card{n.role, n.key, natUnknown, addresses(socket)}
	beacon, err := zeroconf.Register("p2p-"+rand.Text()[:8], lanService, "local.", int(socket.Port()), n.secret.seal(me), nil)
	if err != nil {
		return nil, err
	}
	defer beacon.Shutdown() // says goodbye
	n.log.Printf("waiting for the peer on the LAN, at %v", me.at)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	entries := make(chan *zeroconf.ServiceEntry)
	failed := make(chan error, 1)
	go func() { failed <- zeroconf.Browse(ctx, lanService, "local.", entries) }()
	for e := range entries {
		if peer, err := n.secret.open(e.Text, n.role); err == nil { // others wait for somebody else
			return n.open(ctx, me, peer)
		}
	}
	return nil, errors.Join(<-failed, context.Cause(ctx))
}
