package kcp

// Sizes of packets in bytes.
const (
	maxPacket = 1500 // largest UDP payload, as in kcp-go
	leastMTU  = 50   // least packet of the engine, without what cipher and FEC add
)
