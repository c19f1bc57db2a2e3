package kcp

import (
	"errors"
	"sync/atomic"

	engine "github.com/arqnet/kcp"
	"github.com/arqnet/kcp/compat"
)

// OOBCallBackType is a handler of out-of-band packets. What it is given is valid
// during the call.
type OOBCallBackType func([]byte)

// SetOOBHandler makes the session call callback with each out-of-band packet
// that arrives; nil makes it drop them, as before the first call. It fails if
// the session has no error correction, whose header they have.
//
// callback is called on the goroutine that reads the socket, so it must return
// soon. It may call SendOOB.
func (s *UDPSession) SetOOBHandler(callback OOBCallBackType) error {
	if !s.port.fec {
		return errNoFEC
	}
	s.handleOOB(callback)
	return nil
}

// handleOOB counts out-of-band packets, and passes them to callback, if there is
// one.
func (s *UDPSession) handleOOB(callback OOBCallBackType) {
	compat.HandleDatagrams(s.conn, func(b []byte) {
		atomic.AddUint64(&DefaultSnmp.OOBPackets, 1)
		if callback != nil {
			callback(b)
		}
	})
}

// oobID is the conversation id in an out-of-band packet, in bytes.
const oobID = 4

// GetOOBMaxSize returns the largest out-of-band packet in bytes, or 0 if the
// session has no error correction. As in kcp-go it is what fits into SetMtu's size, which
// the path may not take, unless packets that large were found to be lost.
func (s *UDPSession) GetOOBMaxSize() int {
	if !s.port.fec {
		return 0
	}
	return s.conn.Stats().PathMTU.MTU - s.port.overhead - oobID
}

// SendOOB sends data as one packet out of band: it may be lost, overtake others,
// and is not repeated. It copies data and does not wait. It fails if data is
// larger than GetOOBMaxSize, if the session has no error correction, and after
// Close.
func (s *UDPSession) SendOOB(data []byte) error {
	if !s.port.fec {
		return errNoFEC
	}
	err := s.conn.SendDatagram(data)
	if errors.Is(err, engine.ErrMessageTooLarge) {
		return errLargeOOB
	}
	return sessionError(err)
}
