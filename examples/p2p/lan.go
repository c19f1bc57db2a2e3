package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"log"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/mdns"
	"github.com/miekg/dns"

	"github.com/arqnet/kcp"
)

// On a LAN the ends find each other by DNS-SD (RFC 6763) over multicast DNS (RFC 6762),
// without a server. Each end is an instance of the service, with its card in the TXT
// record, and asks for the others once a second. Nothing is cached, so an end that has
// gone is known no longer than that.

const (
	lanService  = "_kcp-p2p._udp"
	lanInterval = time.Second
)

// beacon announces an end on a LAN.
type beacon struct {
	interfaces []net.Interface
	instance   string
	txt        []string
	servers    []*mdns.Server
}

// quiet is for the library, which logs what others send.
func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

var errNoInterface = errors.New("no network interface is up that can multicast")

// newBeacon answers the questions of others at all interfaces, until close.
func newBeacon(at []netip.AddrPort, txt []string) (*beacon, error) {
	if len(at) == 0 {
		return nil, errNoInterface
	}
	random := make([]byte, 8)
	_, _ = rand.Read(random) // it never fails
	b := &beacon{instance: "p2p-" + hex.EncodeToString(random), txt: txt}
	var ips []net.IP
	for _, a := range at {
		ips = append(ips, a.Addr().AsSlice())
	}
	zone, err := mdns.NewMDNSService(b.instance, lanService, "", b.instance+".local.", int(at[0].Port()), ips, txt)
	if err != nil {
		return nil, err
	}
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, i := range all {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagMulticast == 0 || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		s, err := mdns.NewServer(&mdns.Config{Zone: zone, Iface: &i, Logger: quiet()})
		if err == nil {
			b.interfaces, b.servers = append(b.interfaces, i), append(b.servers, s)
		}
	}
	if len(b.servers) == 0 {
		return nil, errNoInterface
	}
	return b, nil
}

// close says goodbye, and answers no more.
func (b *beacon) close() {
	for _, i := range b.interfaces {
		goodbye(&i, b.instance)
	}
	for _, s := range b.servers {
		_ = s.Shutdown()
	}
}

// goodbye tells programs that cache records that this one has gone: its record with a
// time to live of zero (RFC 6762 §10.1). The library has no such call.
func goodbye(i *net.Interface, instance string) {
	name := lanService + ".local."
	m := &dns.Msg{MsgHdr: dns.MsgHdr{Response: true, Authoritative: true}, Answer: []dns.RR{&dns.PTR{
		Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypePTR, Class: dns.ClassINET}, Ptr: instance + "." + name,
	}}}
	packet, err := m.Pack()
	if err != nil {
		return
	}
	for network, group := range map[string]string{"udp4": "224.0.0.251:5353", "udp6": "[ff02::fb%" + i.Name + "]:5353"} {
		to, err := net.ResolveUDPAddr(network, group)
		if err != nil {
			continue
		}
		// Answers come from port 5353 (RFC 6762 §6), which several sockets share.
		c, err := net.ListenMulticastUDP(network, i, to)
		if err != nil {
			continue
		}
		_, _ = c.WriteToUDP(packet, to) // those who miss it notice later
		_ = c.Close()
	}
}

// look asks for other ends, and returns the cards of those that wait for this one.
func (b *beacon) look(ctx context.Context, s *secret, role string) []*card {
	var found []*card
	for _, i := range b.interfaces {
		entries := make(chan *mdns.ServiceEntry, 16) // the library drops what does not fit
		err := mdns.QueryContext(ctx, &mdns.QueryParam{
			Service: lanService, Timeout: lanInterval / time.Duration(len(b.interfaces)),
			Interface: &i, Entries: entries, Logger: quiet(),
		})
		close(entries)
		if err != nil {
			continue
		}
		for e := range entries {
			if strings.Contains(e.Name, b.instance) || !slices.Contains(e.InfoFields, "room="+s.room) {
				continue
			}
			if c, err := s.open(e.InfoFields[1:], role); err == nil {
				found = append(found, c)
			}
		}
	}
	return found
}

// meetOnLAN waits for the peer on the LAN, and opens a session with it.
func (n *node) meetOnLAN(ctx context.Context) (*kcp.Conn, error) {
	reachable, _ := hosts(addrPort(n.socket.LocalAddr()))
	me := &card{n.role, n.key, natNone, candidates(reachable, nil)}
	b, err := newBeacon(me.at, append([]string{"room=" + n.secret.room}, n.secret.seal(me)...))
	if err != nil {
		return nil, err
	}
	defer b.close()
	n.log.Printf("waiting for the peer on the LAN, at %v", me.at)
	pause := time.NewTicker(lanInterval)
	defer pause.Stop()
	for {
		if found := b.look(ctx, n.secret, other(n.role)); len(found) > 0 {
			return n.open(ctx, &peer{found[0], found[0].at, natNone})
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
