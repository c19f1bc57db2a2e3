package fair

import (
	"net/netip"

	"github.com/arqnet/kcp/internal/container"
)

// Who makes room in a full table: the oldest element of the longest queue (longest queue
// drop, Suter et al. 1998). Each network has a queue. So a stranger who fills the table
// ends what is the stranger's own, whatever addresses one owner may have. Nothing here
// loops over the table.

// LongestQueues holds the elements of a table by their networks. The zero value is empty.
// The owner's lock guards it, and the places of what is in it.
type LongestQueues[E any] struct {
	n       int
	sites   map[netip.Addr]*site
	subnets map[netip.Addr]*subnet
	order   ranking[site]
}

// Place is the place of an element, which carries it.
type Place struct {
	element any     // a pointer
	subnet  *subnet // nil: the element is in no queue
	links   container.Links[Place]
}

// subnet is the queue of a fair.Block.Subnet.
type subnet struct {
	addr     netip.Addr
	site     *site
	n        int
	elements container.List[Place] // oldest first
	links    container.Links[subnet]
}

// site is the queues of a fair.Block.Site.
type site struct {
	addr  netip.Addr
	n     int // elements of all
	order ranking[subnet]
	links container.Links[site]
}

func (p *Place) place() *container.Links[Place]   { return &p.links }
func (s *subnet) place() *container.Links[subnet] { return &s.links }
func (s *site) place() *container.Links[site]     { return &s.links }

// Look is what the owner of a table finds out about an element that may make room.
type Look uint8

const (
	Stays  Look = iota // it does not belong to the table any more, and makes no room
	Young              // it has to have its chance first
	Active             // it has done something since it was last looked at
	Idle               // it may make room
)

// looks is how many elements MakeRoom examines.
const looks = 16

// Len returns the number of elements.
func (q *LongestQueues[E]) Len() int { return q.n }

// Of returns the number of elements of a subnet.
func (q *LongestQueues[E]) Of(addr netip.Addr) int { return q.subnets[addr].len() }

func (s *subnet) len() int {
	if s == nil {
		return 0
	}
	return s.n
}

func (s *site) len() int {
	if s == nil {
		return 0
	}
	return s.n
}

// Add adds e, of a block, as the youngest. p is its place, which is in no queue.
func (q *LongestQueues[E]) Add(p *Place, e *E, of Block) {
	if q.sites == nil {
		q.sites, q.subnets = make(map[netip.Addr]*site), make(map[netip.Addr]*subnet)
	}
	at := q.sites[of.Site]
	if at == nil {
		at = &site{addr: of.Site}
		q.sites[of.Site] = at
	}
	in := q.subnets[of.Subnet]
	if in == nil {
		in = &subnet{addr: of.Subnet, site: at}
		q.subnets[of.Subnet] = in
	}
	p.element, p.subnet = e, in
	in.elements.Add((*Place).place, p, false)
	q.count(in, 1)
}

// Remove removes an element, if it is there.
func (q *LongestQueues[E]) Remove(p *Place) {
	in := p.subnet
	if in == nil {
		return
	}
	in.elements.Remove((*Place).place, p)
	p.element, p.subnet = nil, nil
	q.count(in, -1)
	if in.n == 0 {
		delete(q.subnets, in.addr)
	}
	if in.site.n == 0 {
		delete(q.sites, in.site.addr)
	}
	if q.n == 0 {
		*q = LongestQueues[E]{} // a map gives no memory back
	}
}

// count adds one element to the counts of a subnet, or takes one away.
func (q *LongestQueues[E]) count(in *subnet, by int) {
	q.n += by
	in.n += by
	in.site.n += by
	in.site.order.move((*subnet).place, in, in.n-by, in.n)
	q.order.move((*site).place, in.site, in.site.n-by, in.site.n)
}

// MakeRoom removes the element that makes room for a newcomer of a block, and returns it.
// It is the oldest of the longest queue of the site that has most. If that is the
// newcomer's own site, or has hardly more than it, the longest queue of the newcomer's
// site comes first. Where the newcomer's network would not be the smaller one even then,
// it competes with its equals, and an element makes room only after its chance,
// as look says. nil: none has, and the newcomer has to come again.
func (q *LongestQueues[E]) MakeRoom(of Block, look func(*E) Look) *E {
	for range looks {
		p, crowd := q.choose(of)
		if p == nil {
			return nil
		}
		switch state := look(p.element.(*E)); {
		case state == Stays || state == Active && !crowd:
			q.requeue(p)
		case state == Young && !crowd:
			return nil
		default:
			return q.take(p)
		}
	}
	return nil
}

// choose returns the place of who makes room for a newcomer, and whether its network has
// more than the newcomer's will have.
func (q *LongestQueues[E]) choose(of Block) (p *Place, crowd bool) {
	most := q.order.most()
	if most == nil {
		return nil, false
	}
	oldest := most.order.most().elements.First()
	own := q.sites[of.Site]
	if most.n > own.len()+1 {
		return oldest, true
	}
	if own == nil {
		return oldest, false
	}
	if longest := own.order.most(); longest.n > q.subnets[of.Subnet].len()+1 {
		return longest.elements.First(), true
	}
	return oldest, false
}

// MakeRoomWithin is MakeRoom for a newcomer whose subnet has its share: one of the subnet
// makes room, after its chance.
func (q *LongestQueues[E]) MakeRoomWithin(addr netip.Addr, look func(*E) Look) *E {
	for range min(looks, q.Of(addr)) {
		switch p := q.subnets[addr].elements.First(); look(p.element.(*E)) {
		case Young:
			return nil
		case Idle:
			return q.take(p)
		default:
			q.requeue(p)
		}
	}
	return nil
}

// requeue makes an element the youngest.
func (q *LongestQueues[E]) requeue(p *Place) {
	e, of := p.element.(*E), Block{Site: p.subnet.site.addr, Subnet: p.subnet.addr}
	q.Remove(p)
	q.Add(p, e, of)
}

// take removes and returns an element.
func (q *LongestQueues[E]) take(p *Place) *E {
	e := p.element.(*E)
	q.Remove(p)
	return e
}

// ranking orders networks by their numbers of elements.
type ranking[N any] struct {
	by []container.List[N] // by[n-1]: those with n, in the order in which they got there; the last is not empty
}

// most returns the network with most elements; nil: there is none.
func (r *ranking[N]) most() *N {
	if len(r.by) == 0 {
		return nil
	}
	return r.by[len(r.by)-1].First()
}

// move says that a network has so many elements, which were one more or one fewer.
func (r *ranking[N]) move(links func(*N) *container.Links[N], network *N, from, to int) {
	if from > 0 {
		r.by[from-1].Remove(links, network)
	}
	if to > len(r.by) {
		r.by = append(r.by, container.List[N]{})
	}
	if to > 0 {
		r.by[to-1].Add(links, network, false)
	}
	if last := len(r.by) - 1; r.by[last].First() == nil {
		r.by = r.by[:last]
	}
}
