package tunnel

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp"
)

const (
	// maxUnknown is how many sessions may be there at a time whose clients have not
	// shown an identity, and maxUnknownEach how many of one network.
	maxUnknown     = 256
	maxUnknownEach = 32
	// strangerRecords is how many records of the log a second strangers may cause.
	strangerRecords = 10
)

// lobby bounds what clients cause that have not shown an identity. When it is full, the
// oldest session makes room of those whose networks have most: so strangers of few
// networks end each other's sessions, and not the sessions of users who are about to log
// in.
type lobby struct {
	mu       sync.Mutex
	visitors []*visitor // oldest first, at most maxUnknown

	second  time.Time // when the current one of records began
	records int
	leftOut int
}

// visitor is a session in the lobby.
type visitor struct {
	network netip.Prefix
	around  netip.Prefix // the network of its network, which one owner may have whole
	end     func()       // ends the session
	ended   atomic.Bool  // to make room
}

// errFull is why a session was ended to make room.
var errFull = errors.New("too many sessions have not authenticated yet")

// around returns the network that one owner may have whole: 24 bits of IPv4, 48 of IPv6.
func around(network netip.Prefix) netip.Prefix {
	bits := 24
	if network.Addr().Is6() {
		bits = 48
	}
	p, _ := network.Addr().Prefix(bits)
	return p
}

// enter takes in a session from addr, and ends another one if there is no room.
func (l *lobby) enter(addr net.Addr, end func()) *visitor {
	p := network(addr)
	v := &visitor{network: p, around: around(p), end: end}
	l.mu.Lock()
	oldest := l.makeRoomLocked(p)
	l.visitors = append(l.visitors, v)
	l.mu.Unlock()
	if oldest != nil {
		oldest.ended.Store(true)
		oldest.end()
	}
	return v
}

// makeRoomLocked removes and returns the session that makes room for one of a network,
// or nil. It looks at all: they are few beside the work of the handshake that each had.
func (l *lobby) makeRoomLocked(p netip.Prefix) (found *visitor) {
	each, wide := make(map[netip.Prefix]int), make(map[netip.Prefix]int)
	for _, v := range l.visitors {
		each[v.network]++
		wide[v.around]++
	}
	if each[p] < maxUnknownEach && len(l.visitors) < maxUnknown {
		return nil
	}
	for _, v := range l.visitors {
		switch {
		case each[p] >= maxUnknownEach && v.network != p:
		case found == nil, wide[v.around] > wide[found.around],
			wide[v.around] == wide[found.around] && each[v.network] > each[found.network]:
			found = v
		}
	}
	l.removeLocked(found)
	return found
}

// leave takes out a session, if it is still there.
func (l *lobby) leave(v *visitor) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeLocked(v)
}

func (l *lobby) removeLocked(v *visitor) {
	if i := slices.Index(l.visitors, v); i >= 0 {
		l.visitors = slices.Delete(l.visitors, i, i+1)
	}
}

// record reports whether a record may be logged now, and how many were left out
// before it.
func (l *lobby) record(now time.Time) (ok bool, leftOut int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.second) >= time.Second {
		l.second, l.records = now, 0
	}
	if l.records == strangerRecords {
		l.leftOut++
		return false, 0
	}
	l.records++
	leftOut, l.leftOut = l.leftOut, 0
	return true, leftOut
}

// warn logs what a stranger has caused, if there is room.
func (s *Server) warn(text string, args ...any) {
	ok, leftOut := s.lobby.record(time.Now())
	if !ok {
		return
	}
	if leftOut > 0 {
		args = append(args, "records left out before", leftOut)
	}
	s.log.Warn(text, args...)
}

// expectNothing ends a session if the client opens a further stream before stop is
// called: it has to wait for the answer to its hello, and could make the session hold
// much until then.
func expectNothing(ctx context.Context, conn *kcp.Conn) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if _, err := conn.AcceptStream(ctx); err == nil {
			_ = conn.Abort()
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}
