package netpath

import "time"

// AskedPings is the last PINGs that wait for their answers. A PING that is sent again has
// other numbers, so an answer shows which it is to, and each is a sample of the round-trip
// time: what packet numbers do for QUIC (RFC 9002 §5.1).
type AskedPings struct {
	last [remembered]ask
	next uint8 // of last, modulo remembered
}

// remembered is how many PINGs are known. Their waits double up to 2 s, so the first of
// them may be answered after 5 s or later.
const remembered = 8

// ask is the numbers of a PING, and when it was sent; sn and ts 0: none.
type ask struct {
	sn, ts uint32
	at     time.Duration
}

// Sent takes a PING that is sent now. The one sent longest ago is forgotten for it.
func (a *AskedPings) Sent(sn, ts uint32, now time.Duration) {
	a.last[a.next%remembered] = ask{sn, ts, now}
	a.next = (a.next + 1) % remembered
}

// find returns the PING with these numbers; nil: none waits.
func (a *AskedPings) find(sn, ts uint32) *ask {
	if a == nil || sn == 0 && ts == 0 {
		return nil
	}
	for i := range a.last {
		if p := &a.last[i]; p.sn == sn && p.ts == ts {
			return p
		}
	}
	return nil
}

// Waits reports whether a PING with these numbers waits for its answer. a may be nil.
func (a *AskedPings) Waits(sn, ts uint32) bool { return a.find(sn, ts) != nil }

// Answered takes the answer to a PING, and returns when that was sent. It reports false if
// none with these numbers waits. a may be nil.
func (a *AskedPings) Answered(sn, ts uint32) (sent time.Duration, ok bool) {
	p := a.find(sn, ts)
	if p == nil {
		return 0, false
	}
	sent, *p = p.at, ask{}
	return sent, true
}

// Last returns when the last PING was sent; 0: it is answered, or there was none. a may be
// nil.
func (a *AskedPings) Last() time.Duration {
	if a == nil {
		return 0
	}
	return a.last[(a.next+remembered-1)%remembered].at
}

// After returns when the first PING was sent after a time that waits for its answer; ok is
// false if none does. a may be nil.
func (a *AskedPings) After(t time.Duration) (first time.Duration, ok bool) {
	if a == nil {
		return 0, false
	}
	for _, p := range a.last {
		if p.at > t && (!ok || p.at < first) {
			first, ok = p.at, true
		}
	}
	return first, ok
}
