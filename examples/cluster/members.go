package cluster

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/hashicorp/memberlist"
)

// delegate is the Node as memberlist sees it. memberlist calls it with its own lock
// held, so it must neither block nor call memberlist.
type delegate Node

var _ memberlist.EventDelegate = (*delegate)(nil)

// NotifyJoin is called when a node has become a member.
func (d *delegate) NotifyJoin(m *memberlist.Node) { (*Node)(d).joined(m, Joined) }

// NotifyUpdate is called when a member's address or metadata has changed.
func (d *delegate) NotifyUpdate(m *memberlist.Node) { (*Node)(d).joined(m, Changed) }

// NotifyLeave is called when a member has left, or has died.
func (d *delegate) NotifyLeave(m *memberlist.Node) {
	(*Node)(d).gone(m)
}

// memberOf returns what of a memberlist's node matters here.
func memberOf(m *memberlist.Node) Member {
	ip, _ := netip.AddrFromSlice(m.Addr)
	return Member{Name: m.Name, Addr: netip.AddrPortFrom(ip.Unmap(), m.Port)}
}

func (n *Node) joined(node *memberlist.Node, kind EventKind) {
	m := memberOf(node)
	if m.Name == n.Name() {
		return
	}
	n.mu.Lock()
	n.members[m.Name] = m
	delete(n.leaving, m.Name)
	n.lost = slices.DeleteFunc(n.lost, func(a netip.AddrPort) bool { return a == m.Addr })
	l := n.links[m.Name]
	n.mu.Unlock()
	if l != nil {
		l.move(m.Addr)
	}
	n.tell(Event{kind, m})
}

func (n *Node) gone(node *memberlist.Node) {
	m := memberOf(node)
	if m.Name == n.Name() {
		return
	}
	kind := Died
	n.mu.Lock()
	if n.leaving[m.Name] {
		kind = Left
	}
	delete(n.leaving, m.Name)
	delete(n.members, m.Name)
	if kind == Died && !slices.Contains(n.lost, m.Addr) {
		if len(n.lost) == maxLost {
			n.lost = slices.Delete(n.lost, 0, 1)
		}
		n.lost = append(n.lost, m.Addr)
	}
	l := n.links[m.Name]
	delete(n.links, m.Name)
	n.mu.Unlock()
	if l != nil {
		l.end()
	}
	n.tell(Event{kind, m})
}

// goodbye is called when a node says that it leaves. memberlist knows that too, but does
// not tell.
func (n *Node) goodbye(from string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, member := n.members[from]; member {
		n.leaving[from] = true
	}
}

// sayGoodbye tells all members that this node leaves, and waits until they know, or
// until ctx is done.
func (n *Node) sayGoodbye(ctx context.Context) {
	var all sync.WaitGroup
	for _, m := range n.Members() {
		all.Go(func() {
			st, err := n.transport.open(ctx, m.Addr, m.Name, streamGoodbye)
			if err != nil {
				return // it will take this node for dead
			}
			stop := context.AfterFunc(ctx, func() { _ = st.Reset(0) })
			defer stop()
			_, _ = st.Read(make([]byte, 1)) // it ends when the other end has closed it
			_ = st.Close()
		})
	}
	all.Wait()
}

// tell puts an event into the channel, or drops it if nobody reads.
func (n *Node) tell(e Event) {
	select {
	case n.events <- e:
	default:
		n.transport.counters.eventsDropped.Add(1)
	}
}

// link returns the link to a member, and makes it if there is none.
func (n *Node) link(to string) (*link, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, net.ErrClosed
	}
	if l := n.links[to]; l != nil {
		return l, nil
	}
	m, ok := n.members[to]
	if !ok {
		return nil, ErrNotMember
	}
	l := &link{n: n, name: to, addr: m.Addr}
	l.ctx, l.cancel = context.WithCancel(n.ctx)
	n.links[to] = l
	n.running.Go(l.run)
	return l, nil
}

// rejoin asks seeds and members that have died to let this node join, as long as they
// are not members. That is how the halves of a network find each other again after they
// were apart for long.
func (n *Node) rejoin(seeds []netip.AddrPort) {
	for n.ctx.Err() == nil {
		missing := n.missing(seeds)
		rand.Shuffle(len(missing), func(i, j int) { missing[i], missing[j] = missing[j], missing[i] })
		for _, addr := range missing[:min(len(missing), joinsAtOnce)] {
			if n.ctx.Err() != nil {
				return
			}
			_, _ = n.list.Join([]string{addr.String()}) // again in the next round
		}
		pause(n.ctx, n.config.RejoinInterval)
	}
}

// missing returns the addresses of nodes that should be members, and are not.
func (n *Node) missing(seeds []netip.AddrPort) []netip.AddrPort {
	n.mu.Lock()
	defer n.mu.Unlock()
	there := map[netip.AddrPort]bool{n.transport.own: true, n.advertised: true}
	for _, m := range n.members {
		there[m.Addr] = true
	}
	var all []netip.AddrPort
	for _, a := range slices.Concat(seeds, n.lost) {
		if !there[a] {
			there[a] = true
			all = append(all, a)
		}
	}
	return all
}
