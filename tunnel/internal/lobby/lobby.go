// Package lobby bounds the sessions of strangers, who have not shown yet who they are,
// or that there is anybody. When a lobby is full, one of the network that has most makes
// room (internal/fair). So strangers of few networks end each other's sessions,
// and leave the users alone who are about to come in.
package lobby

import (
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/fair"
)

// Lobby is such a bound. All methods are safe for concurrent use.
type Lobby struct {
	most, each int       // immutable
	opened     time.Time // the origin of times for records; immutable
	records    fair.Limit

	mu     sync.Mutex
	queues fair.LongestQueues[Visitor]
}

// Visitor is a session in a lobby.
type Visitor struct {
	end   func()
	ended atomic.Bool
	place fair.Place // guarded by Lobby.mu
}

// New returns a lobby with room for so many sessions, and for so many of one address, or
// one IPv6 network of 64 bits.
func New(most, each int) *Lobby { return &Lobby{most: most, each: each, opened: time.Now()} }

// Records is how many records of the log a second strangers may cause.
const Records = 10

// Warn logs what a stranger has caused, if there is room.
func (l *Lobby) Warn(log *slog.Logger, text string, args ...any) {
	leftOut, ok := l.records.Allow(time.Since(l.opened), time.Second/Records, Records)
	if !ok {
		return
	}
	if leftOut > 0 {
		args = append(args, fair.LeftOut, leftOut)
	}
	log.Warn(text, args...)
}

// Enter takes in a session from addr, which end ends. If there is no room it ends another
// one.
func (l *Lobby) Enter(addr net.Addr, end func()) *Visitor {
	v, of := &Visitor{end: end}, fair.BlockOfAddr(addr)
	any := func(*Visitor) fair.Look { return fair.Idle }
	var oldest *Visitor
	l.mu.Lock()
	if l.queues.Of(of.Subnet) >= l.each {
		oldest = l.queues.MakeRoomWithin(of.Subnet, any)
	} else if l.queues.Len() >= l.most {
		oldest = l.queues.MakeRoom(of, any)
	}
	l.queues.Add(&v.place, v, of)
	l.mu.Unlock()
	if oldest != nil {
		oldest.ended.Store(true)
		oldest.end()
	}
	return v
}

// Leave takes out a session, if it is still there.
func (l *Lobby) Leave(v *Visitor) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queues.Remove(&v.place)
}

// Len returns the number of sessions.
func (l *Lobby) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queues.Len()
}

// Ended reports whether the session was ended to make room.
func (v *Visitor) Ended() bool { return v.ended.Load() }
