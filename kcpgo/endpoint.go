package kcp

import engine "github.com/arqnet/kcp"

// EndpointOf returns the endpoint of package github.com/arqnet/kcp on which a session or
// a listener is, for its figures. It is not in kcp-go's API.
func EndpointOf[T *UDPSession | *Listener](of T) *engine.Endpoint {
	switch of := any(of).(type) {
	case *UDPSession:
		return of.port.endpoint
	case *Listener:
		return of.port.endpoint
	}
	return nil
}

// SessionOf returns the session of package github.com/arqnet/kcp. It is not in kcp-go's
// API.
func SessionOf(s *UDPSession) *engine.Conn { return s.conn }

// Validated returns a channel that is closed when the peer of an accepted session has
// shown that it receives what is sent to its address, by an acknowledgement of that.
// Anybody may have forged or recorded what has arrived before. The channel is nil for a
// session that was dialled. It is not in kcp-go's API.
func Validated(s *UDPSession) <-chan struct{} { return s.validated }
