package udp

import (
	"net"
	"strconv"
	"sync"
	"time"
)

const (
	// zonesLast is how long the names of interfaces are taken to last.
	zonesLast = time.Minute
	// zonesRetry is the least time between two looks at the interfaces, however
	// often there is one that is not known.
	zonesRetry = time.Second
)

// zones translates between names and numbers of interfaces, which are part of
// link-local addresses. It remembers them, since to ask the system costs many
// times as much as to send a datagram.
type zones struct {
	mu      sync.Mutex
	asked   time.Time
	byName  map[string]uint32
	byIndex map[uint32]string
}

// index returns the number of the interface with the given name. An unknown
// name is taken for the number itself, and 0 says that it is none either.
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
// where there is none.
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

// refresh asks for the interfaces if that was not done for so long. mu is held.
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
