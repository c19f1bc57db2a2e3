package recovery

// Shaper is a RateCap of all that a session sends: data, and datagrams beside them, which
// leave first up to half of the rate.
type Shaper struct {
	RateCap
	Overhead int // bytes of UDP payload that a packet has beside its segments
	packet   int // bytes of the largest packet, without overhead
	lead     int // by how many bytes datagrams are ahead of data
}

// NewShaper returns a cap without a rate; see the fields.
func NewShaper(overhead, packet int) *Shaper { return &Shaper{Overhead: overhead, packet: packet} }

// SetPacket sets the size of the largest packet.
func (c *Shaper) SetPacket(size int) { c.packet = size }

// Sent counts a packet of n bytes that the machine has put out. Without data it does
// not wait for the cap.
func (c *Shaper) Sent(n int, data bool) {
	n += c.Overhead
	if !data {
		c.Borrow(n)
		return
	}
	c.Spend(n)
	c.lead = max(c.lead-n, 0)
}

// Pass counts a packet of n bytes that the machine has not built, if the cap lets it
// leave now, in microseconds. c may be nil.
func (c *Shaper) Pass(n int, datagram bool, now int64) bool {
	if c == nil {
		return true
	}
	if !c.Ready(now, 0) {
		return false
	}
	c.Spend(n)
	if datagram {
		c.lead = min(c.lead+n, 2*c.packet)
	}
	return true
}

// Charge counts a packet of n bytes that the machine has not built and that does not wait
// for the cap. c may be nil.
func (c *Shaper) Charge(n int) {
	if c != nil {
		c.Borrow(n)
	}
}

// DatagramsFirst reports whether datagrams that wait for the cap leave before data. They
// do, up to half of the rate.
func (c *Shaper) DatagramsFirst() bool { return c.lead < c.packet }
