package udp

// Queue is the state of a socket's receive buffer in the system.
type Queue struct {
	// Used is the bytes of memory that waiting datagrams take, as the system
	// counts them; -1 if the system does not tell.
	Used int
	// Limit is the size of the buffer, in the bytes of Used. The system drops
	// datagrams that arrive while it is exceeded.
	Limit int
	// Drops counts the datagrams dropped since the socket was opened, modulo
	// 2^32. It stays 0 if the system does not tell.
	Drops uint32
}

// ReadQueue reports false: only a socket of the system has a buffer that can be
// read.
func (*portable) ReadQueue(*Queue) bool { return false }

// ReadQueue sets q if s is a socket of the system.
func (s *single) ReadQueue(q *Queue) bool {
	c, ok := s.addrPortConn.(udpConn)
	return ok && c.meter.read(c.UDPConn, q)
}
