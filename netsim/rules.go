package netsim

import (
	"fmt"
	"hash/fnv"
	"net/netip"
)

// SetLink sets the configuration of the direction from one place to another
// for the packets sent from now on. A place is "ip" for a host, "ip:port" for
// one of its sockets, or "" for any. If several apply to a packet, the one
// with the most exact from counts, and among those the one with the most exact
// to; SetLink("", "", cfg) replaces the default link.
//
// A place with a port takes its packets off the link that the host's sockets
// share, to one of their own with its own Rate, Queue and luck. The order of
// packets is kept over such a change. SetLink panics if a place cannot be
// parsed or cfg is not valid.
func (n *Network) SetLink(from, to string, cfg LinkConfig) {
	cfg.mustBeValid()
	rule := flow{mustParsePlace(from), mustParsePlace(to)}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.setRule(rule, cfg)
}

// setRule adds a rule. Links learn of it with the next packet.
func (n *Network) setRule(rule flow, cfg LinkConfig) {
	n.rules[rule] = cfg
	n.edition++
}

// Link returns the settings that are in force for the direction from one place
// to another, which are as for SetLink: from the most exact rule that covers
// it. With SetLink it changes some settings and keeps the rest. It panics if a
// place cannot be parsed.
func (n *Network) Link(from, to string) LinkConfig {
	rule := flow{mustParsePlace(from), mustParsePlace(to)}
	n.mu.Lock()
	defer n.mu.Unlock()
	_, cfg := n.match(rule)
	return cfg
}

// Cut parts two places, in both directions: what is sent from one to the other
// is lost, until Heal is called with the same two. What is underway still
// arrives. The places are as for SetLink; Cut("10.0.0.1", "") parts a host from
// all others, and from itself. A Cut is apart from the settings of the links, and
// several may overlap. It panics if a place cannot be parsed.
func (n *Network) Cut(a, b string) { n.setCut(a, b, true) }

// Heal undoes the Cut of the same two places, in whichever order.
func (n *Network) Heal(a, b string) { n.setCut(a, b, false) }

func (n *Network) setCut(a, b string, cut bool) {
	there := flow{mustParsePlace(a), mustParsePlace(b)}
	back := flow{there.to, there.from}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, f := range [...]flow{there, back} {
		if cut {
			n.cuts[f] = true
		} else {
			delete(n.cuts, f)
		}
	}
	n.edition++
}

func mustParsePlace(s string) netip.AddrPort {
	place, err := parsePlace(s)
	if err != nil {
		panic(err)
	}
	return place
}

func parsePlace(s string) (netip.AddrPort, error) {
	if s == "" {
		return netip.AddrPort{}, nil
	}
	if ip, err := netip.ParseAddr(s); err == nil {
		return host(unmapped(netip.AddrPortFrom(ip, 0))), nil
	}
	place, err := netip.ParseAddrPort(s)
	if err != nil {
		return place, fmt.Errorf("netsim: %q is neither an IP address nor one with a port: %w", s, err)
	}
	return unmapped(place), nil
}

// covers reports whether a flow is within f, where f may stand for several.
func (f flow) covers(o flow) bool { return covers(f.from, o.from) && covers(f.to, o.to) }

func covers(place, a netip.AddrPort) bool {
	return place == a || place == host(a) || place == netip.AddrPort{}
}

// route returns the way that a flow takes under the present rules.
func (n *Network) route(f flow) *route {
	r := n.routes[f]
	if r != nil && r.edition == n.edition {
		return r
	}
	key, cfg := n.match(f)
	c := n.links[key]
	if c == nil {
		c = &conduit[flow]{link: NewLink(cfg, n.linkSeed(key))}
		n.links[key] = c
	} else if c.link.cfg != cfg {
		c.link.SetConfig(cfg)
	}
	if r == nil {
		r = new(route)
		n.routes[f] = r
	} else if r.conduit != c {
		c.link.keepOrder(r.conduit.link.latest, r.conduit.link.ordered)
	}
	r.conduit, r.cut, r.edition = c, n.isCut(f), n.edition
	return r
}

// isCut reports whether a flow is between places that are parted.
func (n *Network) isCut(f flow) bool {
	for cut := range n.cuts {
		if cut.covers(f) {
			return true
		}
	}
	return false
}

// match returns the configuration for a flow and the key of the link it takes:
// the rule of the two hosts, narrowed to a port where the rule names one.
func (n *Network) match(f flow) (key flow, cfg LinkConfig) {
	for _, from := range [...]netip.AddrPort{f.from, host(f.from), {}} {
		for _, to := range [...]netip.AddrPort{f.to, host(f.to), {}} {
			if cfg, ok := n.rules[flow{from, to}]; ok {
				return flow{narrowed(f.from, from), narrowed(f.to, to)}, cfg
			}
		}
	}
	return flow{host(f.from), host(f.to)}, n.fallback
}

// linkSeed derives the seed of a link from the network's and the addresses.
func (n *Network) linkSeed(key flow) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %s", key.from, key.to)
	return mix(n.seed ^ h.Sum64())
}

// host returns the place of the whole host.
func host(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr(), 0) }

// narrowed returns the part of a link's key that an address has under a rule.
func narrowed(a, rule netip.AddrPort) netip.AddrPort {
	if rule.Port() != 0 {
		return a
	}
	return host(a)
}

// unmapped makes an IPv4 address of one in its IPv6 form, as the two are one
// place but differ as keys.
func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
