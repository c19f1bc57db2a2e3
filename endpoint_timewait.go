package kcp

import (
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/udp"
)

// timeWaitTime is how long stragglers of an ended session are recognised
// (TIME-WAIT, RFC 9293 §3.6.1).
const timeWaitTime = admission.TimeWait

// timeWait is the state of a session in TIME-WAIT: as much as it takes to
// answer a peer that does not know of the end yet.
type timeWait struct {
	una     seq    // all data of the peer before it has arrived
	token   uint32 // the peer's, which it expects in ABORT and TOKEN; 0: the peer gets no reply
	own     uint32 // this end's token
	aborted bool   // the session did not end in order
	dropped bool   // it ended before the application could have it
	shaking bool   // it ended within its TLS handshake, whose keys are those of protection
	mute    bool   // only another process had its keys; protection is the endpoint's

	protection protect.Protection // of the session, now guarded by Endpoint.mu
}

// expireTimeWaits forgets what is no longer in TIME-WAIT while no further session
// ends, twice its time after the last one at the latest. With the last entry goes
// the memory of the table: a map gives none back.
func (e *Endpoint) expireTimeWaits() {
	e.mu.Lock()
	defer e.mu.Unlock()
	empty := e.table.timeWaits.Expire(e.now())
	switch {
	case e.closed:
	case empty:
		e.table.forget()
	default:
		e.table.expiry.Reset(timeWaitTime)
	}
}

// forget clears TIME-WAIT, and stops its timer, which would keep a closed endpoint
// in memory.
func (t *sessionTable) forget() {
	if t.expiry != nil {
		t.expiry.Stop()
		t.expiry = nil
	}
	t.timeWaits.Clear()
}

// timeWaitForLocked returns the entry that a packet of no session belongs to.
// With an authenticating cipher the peer may have changed its address since: it
// still has to learn how its session has ended. Endpoint.mu is held.
func (e *Endpoint) timeWaitForLocked(key sessionKey, f initialPacket, now time.Duration) (timeWait, bool) {
	tw, ok := e.table.timeWaits.At(key, now)
	if e.config.SharedConvs {
		return tw, ok && !tw.begunAnew(f)
	}
	if !ok && e.protection.Authentic && f.hello.code == 0 {
		tw, ok = e.table.timeWaits.AtAnyAddress(key.Conv, now)
	}
	return tw, ok
}

// begunAnew reports whether a packet opens another session of the same address
// and conversation id, with Config.SharedConvs: a HELLO with a token of its own,
// or, after a session with a legacy peer, the first segment. An extended peer
// may still repeat the first segment of the old session.
func (tw *timeWait) begunAnew(f initialPacket) bool {
	if f.hello.code != 0 {
		return f.hello.ts != tw.token
	}
	return f.push && tw.token == 0
}

// shownBy reports whether a packet shows this end's token of the ended session.
// Any other packet may be of a later session with Config.SharedConvs, whose data
// the una of a reply would acknowledge.
func (tw *timeWait) shownBy(f initialPacket) bool {
	switch f.request.code {
	case sigConfirm:
		return f.request.sn == tw.own
	case sigFin, sigClose:
		return f.request.ts == tw.own
	}
	return false
}

// replyInTimeWaitLocked replies to a packet of an ended session. It answers the
// request in the packet, or acknowledges its data. If the session was aborted,
// it sends ABORT, whose una the peer ignores. It does not reply to a legacy
// peer, which would take the reply for the first packet of a new session. If
// the process that had the keys has ended, it says that the session is not
// known any more. Endpoint.mu is held.
func (e *Endpoint) replyInTimeWaitLocked(tw timeWait, key sessionKey, d *udp.Datagram, f initialPacket, p *inPacket) {
	h := header{conv: key.Conv, una: tw.una}
	reply := func(s ...signal) {
		if e.mayReplyLocked(&e.replies.budget, replyRate) {
			e.putSealedLocked(d, tw.protection.Sender(), h, s...)
		}
	}
	if f.hello.code != 0 {
		if tw.aborted && tw.dropped && tw.token == f.hello.ts { // the dialling peer has not had our WELCOME
			e.replyLocked(d, header{conv: key.Conv}, signal{sigAbort, tw.token, 0})
		}
		return
	}
	switch {
	case tw.protection.Fresh(&p.Packet, true) != protect.New:
		// Recorded and replayed.
	case tw.token == 0 && !tw.mute || !f.data && f.request.code == 0:
		// Two ends in TIME-WAIT that answered each other would never stop.
	case e.config.SharedConvs && !tw.aborted && !tw.shownBy(f):
		// It may be of a session that begins.
	case tw.mute: // a peer that numbers its packets takes nothing else without number
		if f.request.code != 0 {
			reply(signal{sigReset, f.request.sn, f.request.ts})
		}
	case tw.aborted:
		reply(signal{sigAbort, tw.token, 0})
	case f.request.code == sigPing && e.protection.Authentic:
		reply(f.request.answer(), signal{sigToken, tw.token, tw.own})
	case f.request.code != 0:
		reply(f.request.answer())
	case f.data:
		reply(e.infoSignal()) // for its una
	}
}
