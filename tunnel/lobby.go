package tunnel

import (
	"context"
	"net"
	"net/netip"
	"sync"
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

// lobby bounds what clients cause that have not shown an identity.
type lobby struct {
	mu      sync.Mutex
	unknown int
	each    map[netip.Prefix]int

	second  time.Time // when the current one of records began
	records int
	leftOut int
}

// enter reports whether there is room for a session from addr, and takes it.
func (l *lobby) enter(addr net.Addr) bool {
	p := network(addr)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unknown >= maxUnknown || l.each[p] >= maxUnknownEach {
		return false
	}
	if l.each == nil {
		l.each = make(map[netip.Prefix]int)
	}
	l.unknown++
	l.each[p]++
	return true
}

// leave gives the room back.
func (l *lobby) leave(addr net.Addr) {
	p := network(addr)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unknown--
	if l.each[p]--; l.each[p] == 0 {
		delete(l.each, p)
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
