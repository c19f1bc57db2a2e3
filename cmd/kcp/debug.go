package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/pages"
)

// debugServer serves the live page of -debug. A nil debugServer serves nothing,
// which is what a command without -debug has.
type debugServer struct {
	set pages.Set
	srv *http.Server
}

// debugOption returns the flag -debug.
func (s *settings) debugOption() option {
	return option{"debug", "ADDR", "serve a page with live figures of the sessions over\nHTTP, such as 127.0.0.1:6060, without a password", func(addr string) error {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return errors.New("want HOST:PORT, such as 127.0.0.1:6060")
		}
		s.debug = addr
		return nil
	}}
}

// serveDebug starts the server of -debug, and prints where the page is. It
// returns nil without -debug.
func (s *settings) serveDebug(std streams, command string) (*debugServer, error) {
	if s.debug == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", s.debug)
	if err != nil {
		return nil, err
	}
	d := new(debugServer)
	host, _, _ := net.SplitHostPort(s.debug) // debugOption has looked at it
	d.srv = &http.Server{Handler: d.set.Handler(host), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	go func() { _ = d.srv.Serve(l) }()
	fmt.Fprintf(std.err, "%s: live page at http://%v/\n", command, l.Addr())
	return d, nil
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
		_ = d.srv.Close()
	}
}
