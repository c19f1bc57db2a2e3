package udp

// What the tests over a cable use: they stand outside of the package, as testenv imports it.
var (
	Combinations = combinations
	NewConn      = newConn
	Prepare      = prepare
	AddrOf       = addrOf
	WriteAll     = writeAll
	To           = to
)
