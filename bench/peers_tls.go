package main

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
)

// overTLS reports whether the connections speak TLS because the mode says so.
func (s settings) overTLS() bool { return s.mode == overTLS || s.mode == tickets }

// sharedTLS returns TLS settings that both ends can have.
func sharedTLS(s settings) (*tls.Config, error) {
	config, client, err := selfSigned()
	if err != nil {
		return nil, err
	}
	config.RootCAs, config.ServerName = client.RootCAs, client.ServerName
	if s.mode == tickets {
		config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	}
	return config, nil
}

// tlsPeer is crypto/tls over the kernel's TCP.
type tlsPeer struct {
	net.Listener
	config *tls.Config
}

func newTLSPeer(s settings) (*tlsPeer, error) {
	config, err := sharedTLS(s)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp4", loopback)
	if err != nil {
		return nil, err
	}
	return &tlsPeer{l, config}, nil
}

func (p *tlsPeer) Accept() (io.ReadWriteCloser, error) {
	c, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return tls.Server(c, p.config), nil
}

func (p *tlsPeer) Dial() (io.ReadWriteCloser, error) {
	c, err := net.Dial("tcp4", p.Addr().String())
	if err != nil {
		return nil, err
	}
	conn := tls.Client(c, p.config)
	if err := conn.Handshake(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return conn, nil
}
