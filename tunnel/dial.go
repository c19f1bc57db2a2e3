package tunnel

import (
	"context"
	"errors"
	"net"
	"net/http/httptrace"
	"net/netip"
	"time"

	"github.com/arqnet/kcp/tunnel/internal/carrier"
)

// dial connects with what the opening of a stream asks for, if that is allowed. It ends
// with the stream: a peer that resets streams has nothing dialled for them
// (CVE-2023-44487). It sets the target of the opening to what it dials: the target of a
// reverse remote is not in what the peer has sent.
func (s *session) dial(ctx context.Context, stream carrier.Stream, network string, o *opening) (net.Conn, error) {
	target, err := s.role.admit(*o)
	if err != nil {
		return nil, err
	}
	o.target = target
	if at, err := netip.ParseAddrPort(target); err == nil && network == "udp" && s.connect == nil {
		conn, err := net.DialUDP(network, nil, net.UDPAddrFromAddrPort(at)) // it does not wait
		if err != nil {
			return nil, &dialError{dialRefusal(err), err}
		}
		return conn, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.dialTimeout)
	defer cancel()
	conn, err := whileStream(ctx, stream, func(ctx context.Context) (net.Conn, error) {
		return s.connectAny(ctx, network, addresses(target))
	})
	if errors.Is(err, context.Canceled) { // nobody waits for it any more
		return nil, context.Canceled
	}
	if err != nil {
		return nil, &dialError{dialRefusal(err), err}
	}
	return conn, nil
}

// connectAny connects with the first of the addresses that it can, when it is the
// user's turn.
func (s *session) connectAny(ctx context.Context, network string, all []string) (conn net.Conn, err error) {
	if err := s.account.beginDial(ctx); err != nil {
		return nil, err
	}
	defer s.account.endDial()
	connect := s.connect
	if connect == nil {
		connect = new(net.Dialer).DialContext
	}
	began, resolve := time.Now(), time.Duration(0)
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{ // package net calls it, of names alone
		DNSDone: func(httptrace.DNSDoneInfo) { resolve = time.Since(began) },
	})
	for _, at := range all {
		if conn, err = connect(traced, network, at); err == nil {
			break
		}
	}
	s.dialled(network, all[0], resolve, time.Since(began)-resolve, err)
	return conn, err
}

// whileStream calls f with a context that ends with ctx, and with the stream.
func whileStream[T any](ctx context.Context, stream carrier.Stream, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := stream.Done()
	go func() {
		select {
		case <-done:
			cancel()
		case <-ctx.Done():
		}
	}()
	return f(ctx)
}
