package cluster

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// MaxDatagram is the size of the largest unreliable message, in bytes.
const MaxDatagram = PacketSize

// Defaults and bounds of a Node.
const (
	defaultMaxMessage     = 1 << 20
	defaultReceiveBuffer  = 16 << 20
	defaultSendBuffer     = 4 << 20
	defaultRejoinInterval = 5 * time.Second
	maxEvents             = 256 // that wait to be read
	maxLost               = 64  // dead nodes that are looked for
	joinsAtOnce           = 3   // addresses that one round of rejoining tries
)

// Errors of messages, besides ErrNodeGone and net.ErrClosed.
var (
	// ErrNotMember means that no member has that name.
	ErrNotMember = errors.New("cluster: no such member")
	// ErrMessageTooLarge means that a message has more than Config.MaxMessage bytes, or
	// a datagram more than MaxDatagram.
	ErrMessageTooLarge = errors.New("cluster: message too large")
)

// Config holds the settings of a Node. It must not be changed while it is in use.
type Config struct {
	TransportConfig
	// Advertise is the address that other nodes are told, an IP address and a port. "" is
	// the socket's; see Transport.FinalAdvertiseAddr.
	Advertise string
	// Seeds are addresses of some nodes, IP addresses and ports. Those that are not
	// members are asked to let this node join, again and again.
	Seeds []string
	// RejoinInterval is how often Seeds, and members that have died, are asked. Default
	// 5 s.
	RejoinInterval time.Duration
	// Memberlist holds memberlist's settings; nil means memberlist.DefaultLANConfig.
	// Start sets Name, Transport, Events, addresses and UDPBufferSize. Without a Logger
	// or LogOutput nothing is logged.
	Memberlist *memberlist.Config
	// MaxMessage is the size of the largest reliable message, in bytes. Default 1 MiB. It
	// should be the same for all nodes.
	MaxMessage int
	// ReceiveBuffer is how many bytes of messages wait for Receive. Default 16 MiB. When
	// it is full, senders of reliable messages wait, and datagrams are dropped.
	ReceiveBuffer int
	// SendBuffer is how many bytes of reliable messages to one member may be on their
	// way. Default 4 MiB. When it is full, Send waits.
	SendBuffer int
}

// EventKind is what an Event tells.
type EventKind string

const (
	Joined  EventKind = "joined"
	Left    EventKind = "left" // said so
	Died    EventKind = "died" // was not heard of
	Changed EventKind = "changed"
)

// Event tells that another node has become a member, has ceased to be one, or has
// changed its address or metadata.
type Event struct {
	Kind   EventKind
	Member Member
}

// Member is a node that is believed to be alive.
type Member struct {
	Name string
	Addr netip.AddrPort
}

// Node is this process's part of the cluster. All methods are safe for concurrent use.
type Node struct {
	// The fields above mu are immutable, or synchronize themselves.
	config     Config // with defaults
	transport  *Transport
	list       *memberlist.Memberlist
	advertised netip.AddrPort // Config.Advertise; zero: none
	instance   uint64         // of this process, at random
	numbers    atomic.Uint64  // of reliable messages, to all members together
	arrived    queue
	events     chan Event
	ctx        context.Context
	cancel     context.CancelFunc
	running    sync.WaitGroup // goroutines of links and rejoin; Add only under mu
	closing    sync.Once
	closeErr   error // of the first Close

	// mu guards the fields below. Under it no other lock is taken, and memberlist, which
	// may hold its own when it calls, is not called.
	mu      sync.Mutex
	members map[string]Member
	leaving map[string]bool  // members that have said so
	links   map[string]*link // of members to which something was sent
	inboxes map[string]*inbox
	lost    []netip.AddrPort // of members that have died, the latest last
	closed  bool
}

// Start starts a node. It returns at once: Events tells when members are found.
func Start(c *Config) (*Node, error) {
	n := &Node{
		config: c.withDefaults(), events: make(chan Event, maxEvents),
		members: make(map[string]Member), leaving: make(map[string]bool),
		links: make(map[string]*link), inboxes: make(map[string]*inbox),
	}
	seeds, err := n.seeds()
	if err != nil {
		return nil, err
	}
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, err
	}
	n.instance, n.arrived.limit = binary.BigEndian.Uint64(id[:]), n.config.ReceiveBuffer
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.transport, err = newTransport(&n.config.TransportConfig, handlers{n.datagram, n.receiveMessages, n.goodbye})
	if err != nil {
		n.cancel()
		return nil, err
	}
	conf, err := n.memberlistConfig()
	if err == nil {
		err = n.transport.start(n.transport.accept)
	}
	if err == nil {
		n.list, err = memberlist.Create(conf)
	}
	if err != nil {
		n.cancel()
		_ = n.transport.Shutdown() // the error that matters is err
		return nil, err
	}
	n.running.Go(func() { n.rejoin(seeds) })
	return n, nil
}

func (c *Config) withDefaults() Config {
	d := *c
	for _, f := range []struct {
		field *int
		value int
	}{{&d.MaxMessage, defaultMaxMessage}, {&d.ReceiveBuffer, defaultReceiveBuffer}, {&d.SendBuffer, defaultSendBuffer}} {
		if *f.field <= 0 {
			*f.field = f.value
		}
	}
	if d.RejoinInterval <= 0 {
		d.RejoinInterval = defaultRejoinInterval
	}
	return d
}

// seeds returns Config.Seeds as addresses.
func (n *Node) seeds() ([]netip.AddrPort, error) {
	var all []netip.AddrPort
	for _, s := range n.config.Seeds {
		a, err := parseAddr(s)
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

// memberlistConfig returns memberlist's settings on the transport.
func (n *Node) memberlistConfig() (*memberlist.Config, error) {
	conf := memberlist.DefaultLANConfig()
	if c := n.config.Memberlist; c != nil {
		*conf = *c
	}
	conf.Name, conf.Transport, conf.Events = n.transport.Name(), n.transport, (*delegate)(n)
	conf.UDPBufferSize = PacketSize
	conf.BindAddr, conf.BindPort = n.transport.own.Addr().String(), int(n.transport.own.Port())
	conf.AdvertiseAddr, conf.AdvertisePort = "", conf.BindPort
	if n.config.Advertise != "" {
		a, err := parseAddr(n.config.Advertise)
		if err != nil {
			return nil, err
		}
		conf.AdvertiseAddr, conf.AdvertisePort, n.advertised = a.Addr().String(), int(a.Port()), a
	}
	if conf.Logger == nil && conf.LogOutput == nil {
		conf.Logger = log.New(io.Discard, "", 0)
	}
	return conf, nil
}

// Name returns the name of this node.
func (n *Node) Name() string { return n.transport.Name() }

// Addr returns the address of the socket.
func (n *Node) Addr() netip.AddrPort { return n.transport.Addr() }

// Stats returns the figures of the moment.
func (n *Node) Stats() Stats { return n.transport.Stats() }

// Members returns the other nodes that are believed to be alive, by name.
func (n *Node) Members() []Member {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.SortedFunc(maps.Values(n.members), func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
}

// Events returns the channel of events. At most 256 wait in it; further ones are
// dropped, and counted. Members has the state in any case.
func (n *Node) Events() <-chan Event { return n.events }

// Send sends a reliable message, and waits until the member has it in the queue for its
// Receive. Messages of this process to one member arrive in the order of their calls,
// each once. After any other error than ErrMessageTooLarge, ErrNotMember and
// net.ErrClosed the message may have arrived all the same: ErrNodeGone, or the error of
// ctx.
func (n *Node) Send(ctx context.Context, to string, b []byte) error {
	if len(b) > n.config.MaxMessage {
		return ErrMessageTooLarge
	}
	l, err := n.link(to)
	if err != nil {
		return err
	}
	return l.send(ctx, b)
}

// BroadcastError says which members may not have got a message.
type BroadcastError struct {
	Failed map[string]error // by name
}

func (e *BroadcastError) Error() string {
	names := slices.Sorted(maps.Keys(e.Failed))
	return fmt.Sprintf("cluster: not delivered to %s: %v", strings.Join(names, ", "), e.Failed[names[0]])
}

// Broadcast sends a reliable message to all members, at the same time, and waits until
// each has it. If one fails, the error is a *BroadcastError. This node does not get it.
func (n *Node) Broadcast(ctx context.Context, b []byte) error {
	if len(b) > n.config.MaxMessage {
		return ErrMessageTooLarge
	}
	var (
		mu     sync.Mutex // guards failed
		failed = make(map[string]error)
		all    sync.WaitGroup
	)
	for _, m := range n.Members() {
		all.Go(func() {
			if err := n.Send(ctx, m.Name, b); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed[m.Name] = err
			}
		})
	}
	all.Wait()
	if len(failed) > 0 {
		return &BroadcastError{failed}
	}
	return nil
}

// SendDatagram sends an unreliable message of up to MaxDatagram bytes, and does not
// wait.
func (n *Node) SendDatagram(to string, b []byte) error {
	if len(b) > MaxDatagram {
		return ErrMessageTooLarge
	}
	n.mu.Lock()
	m, ok := n.members[to]
	n.mu.Unlock()
	if !ok {
		return ErrNotMember
	}
	return n.transport.write(m.Addr, to, append([]byte{datagramMessage}, b...))
}

// BroadcastDatagram sends an unreliable message to all members.
func (n *Node) BroadcastDatagram(b []byte) error {
	if len(b) > MaxDatagram {
		return ErrMessageTooLarge
	}
	failed := make(map[string]error)
	for _, m := range n.Members() {
		if err := n.SendDatagram(m.Name, b); err != nil {
			failed[m.Name] = err
		}
	}
	if len(failed) > 0 {
		return &BroadcastError{failed}
	}
	return nil
}

// Receive waits for the next message. It fails with the error of ctx, and with
// net.ErrClosed after Close.
func (n *Node) Receive(ctx context.Context) (Message, error) { return n.arrived.get(ctx) }

// datagram takes an unreliable message.
func (n *Node) datagram(from string, b []byte) {
	if !n.arrived.offer(Message{From: from, Data: b}) {
		n.transport.counters.datagramsDropped.Add(1)
	}
}

// Join asks the nodes at these addresses to let this one join, and returns how many
// have. The error is the last one's, if none has.
func (n *Node) Join(addrs ...string) (int, error) { return n.list.Join(addrs) }

// Leave tells the members that this node leaves, so that they need not find out, and
// waits for that until timeout. Close comes next.
func (n *Node) Leave(timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	ctx, cancel := context.WithTimeout(n.ctx, timeout/2)
	defer cancel()
	n.sayGoodbye(ctx)
	return n.list.Leave(max(time.Until(deadline), time.Millisecond))
}

// Close ends the node. To other nodes it is as if it had died, unless Leave was called.
// A further call returns the same.
func (n *Node) Close() error {
	n.closing.Do(func() {
		n.mu.Lock()
		n.closed = true
		links := slices.Collect(maps.Values(n.links))
		n.mu.Unlock()
		for _, l := range links {
			l.end()
		}
		n.cancel()
		n.arrived.close()
		n.closeErr = n.list.Shutdown()
		n.running.Wait()
	})
	return n.closeErr
}
