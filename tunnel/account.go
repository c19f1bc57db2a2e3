package tunnel

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/tunnel/internal/carrier"
	"github.com/arqnet/kcp/tunnel/internal/flowtable"
)

const (
	// maxDials is how many targets are dialled at a time for one user. Further
	// connections wait for their turn, and hold no descriptor meanwhile.
	maxDials = 256
	// maxConns is how many connections one user may have, if it is not known how many
	// descriptors the process may have.
	maxConns = 16384
	// maxFlows is how many flows of UDP one user may have, if the process may have
	// enough descriptors: all flows of a user have a quarter of them at most.
	maxFlows = 1536
	// maxEnding is how many more flows there may be that are about to begin, or were
	// ended and still have a socket; a quarter of the others if those are fewer.
	maxEnding = 256
	// maxPacketBytes is how many bytes of one user's UDP packets may wait.
	maxPacketBytes = 4 << 20
	// unansweredTimeout is how long a flow lives without an answer, as in Linux
	// (nf_conntrack_udp_timeout).
	unansweredTimeout = 30 * time.Second
	// fullEvery is how often a record says that flows were ended to make room.
	fullEvery = time.Minute
)

// account is what one user has in all sessions, or, at a client, all servers and all
// local applications.
type account struct {
	begun   time.Time
	dials   chan struct{} // has an element for each dial in progress
	carried chan struct{} // has an element for each flow that is about to begin, is there, or ends
	conns   atomic.Int64  // dialled connections, and those that were accepted for the user
	most    int64         // of conns
	packets atomic.Int64  // bytes of UDP packets that wait
	unread  carrier.Account
	records fair.Records

	saidSlow, saidFailed fair.Limit // of records of targets

	sessions int // guarded by accounts.mu

	mu       sync.Mutex
	flows    *flowtable.Table[flow]
	timer    *time.Timer // ends idle flows
	evicted  int         // flows that were ended to make room
	saidFull fair.Limit  // of records of that
}

// newAccount returns an account whose flows live for udpTimeout without packets.
func newAccount(udpTimeout time.Duration) *account {
	flows := maxFlows
	a := &account{begun: time.Now(), dials: make(chan struct{}, maxDials), most: maxConns}
	if n := udp.Descriptors(); n > 0 {
		flows, a.most = min(flows, n/4), int64(n/2)
	}
	a.carried = make(chan struct{}, flows+min(maxEnding, flows/4+1))
	a.flows = flowtable.New[flow](flows, min(unansweredTimeout, udpTimeout), udpTimeout)
	a.timer = time.AfterFunc(time.Hour, a.expire)
	a.timer.Stop() // until there is a flow
	return a
}

// accounts are the accounts of the users who have sessions.
type accounts struct {
	udpTimeout time.Duration

	mu    sync.Mutex
	users map[string]*account
}

// enter returns the account of a user for one more session.
func (all *accounts) enter(user string) *account {
	all.mu.Lock()
	defer all.mu.Unlock()
	a := all.users[user]
	if a == nil {
		a = newAccount(all.udpTimeout)
		if all.users == nil {
			all.users = make(map[string]*account)
		}
		all.users[user] = a
	}
	a.sessions++
	return a
}

// leave forgets the account of a user with the last session.
func (all *accounts) leave(user string) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if a := all.users[user]; a != nil {
		if a.sessions--; a.sessions == 0 {
			delete(all.users, user)
		}
	}
}

// errTooMany is why a user's connection is refused, for the log.
var errTooMany = errors.New("the user has as many connections as one may: half of this process's file descriptors")

// addConn counts a connection. It reports false if the user has too many.
func (a *account) addConn() bool {
	if a.conns.Add(1) > a.most {
		a.conns.Add(-1)
		return false
	}
	return true
}

// removeConn takes addConn back.
func (a *account) removeConn() { a.conns.Add(-1) }

// beginDial waits until the user has room for a dial in progress. endDial gives it back.
func (a *account) beginDial(ctx context.Context) error {
	select {
	case a.dials <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *account) endDial() { <-a.dials }

// beginFlow waits until there is room for a flow that is about to begin: there is when
// others have ended. endFlow gives it back.
func (a *account) beginFlow() { a.carried <- struct{}{} }

func (a *account) endFlow() { <-a.carried }

// keepPacket counts n bytes of a packet that waits. It reports false if there are too
// many. dropPacket takes it back.
func (a *account) keepPacket(n int) bool {
	if a.packets.Add(int64(n)) > maxPacketBytes {
		a.packets.Add(int64(-n))
		return false
	}
	return true
}

func (a *account) dropPacket(n int) { a.packets.Add(int64(-n)) }

// now is the time of the table of flows.
func (a *account) now() time.Duration { return time.Since(a.begun) }

// add adds a flow. If there are too many, it ends another one.
func (a *account) add(f *flow) {
	a.mu.Lock()
	evicted := a.flows.Add(&f.place, a.now())
	say, total := false, 0
	if evicted != nil {
		a.evicted++
		total = a.evicted
		_, say = a.saidFull.Allow(a.now(), fullEvery, 1)
	}
	limit := a.flows.Len()
	a.armLocked()
	a.mu.Unlock()
	if evicted == nil {
		return
	}
	evicted.Owner.s.evicted.Add(1)
	evicted.Owner.s.tally.evict()
	evicted.Owner.end(codeIdle)
	if say {
		f.s.log.Warn("too many flows of UDP: those without an answer end first, then the longest idle", "limit", limit, "ended", total)
	}
}

// pass notes that a packet of a flow passes.
func (a *account) pass(f *flow, answer bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.flows.Pass(&f.place, answer, a.now())
}

// remove removes a flow, if it is still there.
func (a *account) remove(f *flow) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.flows.Remove(&f.place)
	if a.flows.Len() == 0 {
		a.timer.Stop()
	}
}

// armLocked has expire run when the first flow is idle for too long. A packet that passes
// does not change that: expire looks again.
func (a *account) armLocked() {
	if due, ok := a.flows.Due(); ok {
		a.timer.Reset(due - a.now())
	}
}

// expire ends the flows that are idle for too long.
func (a *account) expire() {
	for {
		a.mu.Lock()
		e := a.flows.Expire(a.now())
		if e == nil {
			a.armLocked()
			a.mu.Unlock()
			return
		}
		a.mu.Unlock()
		e.Owner.end(codeIdle)
	}
}
