package container

// Serial number arithmetic of 32 bits (RFC 1982), for sequence numbers and for times that
// wrap around.

// Serial is a serial number. Two of them that are 2^31 apart have no order by RFC
// 1982; here the one that is compared is after the other.
type Serial uint32

// Diff returns the signed distance from b to a. At a distance of exactly 2^31
// it is negative. Use it only for times that the network cannot influence, and
// for samples that must be positive.
func (a Serial) Diff(b Serial) int32 { return int32(a - b) }

// Before reports whether a precedes b, by less than 2^31.
func (a Serial) Before(b Serial) bool { return b-a-1 < 1<<31-1 }

// After reports whether a follows b, by up to 2^31.
func (a Serial) After(b Serial) bool { return a-b-1 < 1<<31 }

// Within reports whether a lies in [from, to).
func (a Serial) Within(from, to Serial) bool { return a-from < to-from }
