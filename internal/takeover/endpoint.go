package takeover

import (
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/protect"
)

// What an endpoint knows of its sessions, as the exchange and the forwarding need it.

// PacketOf returns what tells whose session a packet of a kind may be of. shared is
// Packet.Shared. The result is valid as long as the data.
func PacketOf(key admission.Key, kind admission.Kind, data []byte, shared bool) *Packet {
	p := &Packet{Addr: key.Addr, Conv: key.Conv, Shared: shared}
	switch kind {
	case admission.Parity:
		p.Sort = Parity
	case admission.Clear:
		p.Sort = Clear
	case admission.Handshake, admission.Sealed:
		p.Sort = Sealed
	}
	p.First = func() (First, bool) {
		f, ok := admission.Parse(kind, data, key.Conv)
		return First{Hello: f.Hello.Code != 0, Push: f.Push}, ok
	}
	return p
}

// ProbeWith makes the probe of an offer with the predecessor's cipher.
func (o *Offer) ProbeWith(by protect.Protection) {
	head, tail := by.Overhead()
	o.Probe = make([]byte, head+len(ProbeText)+tail)
	copy(o.Probe[head:], ProbeText)
	if by.Seal(o.Probe, nil) != nil {
		o.Probe = nil
	}
}

// DiffersWith is Differs with the successor's cipher.
func (o *Offer) DiffersWith(own *Offer, by protect.Protection) *Difference {
	return o.Differs(own, func(packet []byte, content string) bool {
		p := protect.Packet{Data: packet}
		return by.Open(&p) == nil && string(p.Data) == content
	})
}

// StateOf returns the secrets of a gate, at a time since its epoch.
func StateOf[S any](g *admission.Gate[S], now time.Duration) *State {
	return &State{CookieSecret: g.Cookies.Secret(), CookieClock: g.Cookies.Clock(now), ResetSecret: g.ResetSecret}
}

// Adopt gives a gate the secrets of the predecessor's, with the secret of stateless
// resets if resets is set.
func Adopt[S any](g *admission.Gate[S], s *State, resets bool, now time.Duration) {
	g.Cookies.Adopt(s.CookieSecret, s.CookieClock-now)
	if resets {
		g.ResetSecret = s.ResetSecret
	}
}

// Notes returns the notes of all sessions of a gate and of processes before it, of
// TIME-WAIT, and of ids that were used. mute is as for EndOf.
func Notes[S any](g *admission.Gate[S], retained Retained, mute bool, now time.Duration) (notes []Note) {
	for _, s := range g.Sessions() {
		entry := g.EntryOf(s)
		notes = append(notes, Note{Kind: Owns, Addr: entry.Addr, Conv: entry.Conv, Extended: g.Hooks.Extended(s)})
	}
	notes = retained.AppendOwned(notes)
	for key, e := range g.TimeWaits.All(now) {
		n := EndOf(key, e, mute)
		if e.Mute { // another process has the keys
			n.Of = retained.KeeperOf(key.Addr, key.Conv)
		}
		notes = append(notes, n)
	}
	for conv := range g.Used.All {
		notes = append(notes, Note{Kind: Used, Conv: conv})
	}
	return notes
}

// EndOf returns the note of a session that has ended. mute says that the successor has no
// keys of it.
func EndOf(key admission.Key, e admission.Ended, mute bool) Note {
	return Note{
		Kind: Ended, Addr: key.Addr, Conv: key.Conv, Extended: e.Token != 0,
		End: End{Una: e.Una, Token: e.Token, Own: e.Own, Aborted: e.Aborted, Dropped: e.Dropped, Mute: mute},
	}
}

// Remember puts a session that has ended in another process into TIME-WAIT, in which it
// is answered for with the endpoint's protection.
func (n *Note) Remember(by protect.Protection) (admission.Key, admission.Ended) {
	return admission.MakeKey(n.Addr, nil, n.Conv), admission.Ended{
		Una: n.End.Una, Token: n.End.Token, Own: n.End.Own,
		Aborted: n.End.Aborted, Dropped: n.End.Dropped, Mute: n.End.Mute, Protection: by,
	}
}
