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
