package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/livepage"
)

// debugServer serves the live page of -debug. A nil debugServer serves nothing,
// which is what a command without -debug has.
type debugServer struct {
	set     livepage.Set
	handler http.Handler
	srv     atomic.Pointer[http.Server]
}

// debugOption returns the flag -debug.
func (s *settings) debugOption() option {
	return option{"debug", "ADDR", "serve a page with live figures of the sessions over\nHTTP, such as 127.0.0.1:6060, without a password", setFunc(func(addr string) error {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return errors.New("want HOST:PORT, such as 127.0.0.1:6060")
		}
		s.debug = addr
		return nil
	})}
}

// serveDebug starts the server of -debug, and prints where the page is. It
// returns nil without -debug.
func (s *settings) serveDebug(std streams, command string) (*debugServer, error) {
	if s.debug == "" {
		return nil, nil
	}
	d := new(debugServer)
	host, _, _ := net.SplitHostPort(s.debug) // debugOption has looked at it
	d.handler = d.set.Handler(host)
	addr, err := d.listen(s.debug)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(std.err, "%s: live page at http://%v/\n", command, addr)
	return d, nil
}

// listen serves the page, until close.
func (d *debugServer) listen(addr string) (net.Addr, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	srv := &http.Server{Handler: d.handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	d.srv.Store(srv)
	go func() { _ = srv.Serve(l) }()
	return l.Addr(), nil
}

// show adds an endpoint to the page.
func (d *debugServer) show(name string, e *kcp.Endpoint) {
	if d != nil {
		d.set.Add(name, e)
	}
}

// close ends the server.
func (d *debugServer) close() {
	if d != nil {
		_ = d.srv.Load().Close()
	}
}
