//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package udp

import (
	"net"
	"strconv"
	"sync"
	"time"
)

const (
	// zonesLast is for how long the table of interfaces is used.
	zonesLast = time.Minute
	// zonesRetry is the least time between two queries of the system, however
	// often an interface is unknown.
	zonesRetry = time.Second
)

// zones translates between names and numbers of interfaces, which are part of
// link-local addresses. It caches them, because asking the system costs many
// times as much as sending a datagram. The zero value is ready to use.
type zones struct {
	mu      sync.Mutex        // guards the fields below
	asked   time.Time         // of the last query
	byName  map[string]uint32 // nil before the first query
	byIndex map[uint32]string
}

// index returns the number of the interface with the given name. An unknown
// name is parsed as a number; if it is not one, the result is 0.
func (z *zones) index(name string) uint32 {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.refresh(zonesLast)
	index, ok := z.byName[name]
	if !ok {
		z.refresh(zonesRetry)
		if index, ok = z.byName[name]; !ok {
			n, _ := strconv.ParseUint(name, 10, 32)
			index = uint32(n)
		}
	}
	return index
}

// name returns the name of the interface with the given number, or the number
// in decimal if there is none.
func (z *zones) name(index uint32) string {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.refresh(zonesLast)
	name, ok := z.byIndex[index]
	if !ok {
		z.refresh(zonesRetry)
		if name, ok = z.byIndex[index]; !ok {
			name = strconv.FormatUint(uint64(index), 10)
		}
	}
	return name
}

// refresh queries the interfaces unless the last query was less than after ago.
// z.mu is held.
func (z *zones) refresh(after time.Duration) {
	if z.byName != nil && time.Since(z.asked) < after {
		return
	}
	z.asked = time.Now()
	interfaces, err := net.Interfaces()
	if err != nil && z.byName != nil {
		return
	}
	z.byName = make(map[string]uint32, len(interfaces))
	z.byIndex = make(map[uint32]string, len(interfaces))
	for _, i := range interfaces {
		z.byName[i.Name] = uint32(i.Index)
		z.byIndex[uint32(i.Index)] = i.Name
	}
}
