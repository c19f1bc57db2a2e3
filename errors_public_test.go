package kcp

import (
	"context"
	"errors"
	"net"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/trace"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What an application can only call has no fields that it could read or set.
func TestOpaqueTypesHaveNoFields(t *testing.T) {
	t.Parallel()
	for _, of := range []reflect.Type{
		reflect.TypeFor[Conn](), reflect.TypeFor[Stream](), reflect.TypeFor[Endpoint](),
		reflect.TypeFor[Listener](), reflect.TypeFor[Group](), reflect.TypeFor[KCP](),
	} {
		for _, f := range reflect.VisibleFields(of) {
			require.False(t, f.IsExported(), "%v.%s", of, f.Name)
		}
	}
}

// Each error that a session makes has its public type, its text, and what it wraps.
func TestPublicErrors(t *testing.T) {
	t.Parallel()
	broken, alert := errors.New("no route"), errors.New("bad\ncertificate")
	for _, c := range []struct {
		inside, want error
		text         string
		is           error // nil: it wraps nothing
	}{
		{&session.PeerLostError{Silence: 40500123456, Socket: broken}, &PeerLostError{Silence: 40500123456, Socket: broken},
			"kcp: peer lost: nothing received for 40.5s: no route", broken},
		{&session.PeerLostError{Silence: time.Minute, Idle: true}, &PeerLostError{Silence: time.Minute, Idle: true},
			"kcp: peer lost: no data exchanged for 1m0s", nil},
		{&session.PeerLostError{Silence: 1, Stalled: 2 * time.Second}, &PeerLostError{Silence: 1, Stalled: 2 * time.Second},
			"kcp: peer lost: no data accepted for 2s", nil},
		{&session.PeerCloseError{Code: 7, Text: "done"}, &PeerCloseError{Code: 7, Text: "done"},
			"kcp: session closed by the peer with code 7: done", syscall.EPIPE},
		{&session.PeerCloseError{Code: 7, Aborted: true}, &PeerCloseError{Code: 7, Aborted: true},
			"kcp: session aborted by the peer with code 7", syscall.ECONNRESET},
		{&session.HandshakeError{Err: alert}, &HandshakeError{Err: alert}, `kcp: TLS handshake: "bad\ncertificate"`, alert},
		{&session.HandshakeError{Remote: true, Err: broken}, &HandshakeError{Remote: true, Err: broken},
			"kcp: TLS handshake refused by the peer: no route", broken},
		{&session.StreamError{Code: 7, Remote: true}, &StreamError{Code: 7, Remote: true},
			"kcp: stream reset by the peer with code 7", nil},
		{&session.StreamError{Remote: true, Closed: true}, &StreamError{Remote: true, closed: true},
			"kcp: stream closed by the peer", ErrStreamClosed},
		{&session.StreamError{Code: StreamTooLarge}, &StreamError{Code: StreamTooLarge},
			"kcp: stream reset locally: message larger than the receive buffer", nil},
		{&session.SizeError{Size: 3, Limit: 2, Err: machine.ErrMessageTooLarge}, &SizeError{3, 2, ErrMessageTooLarge, ""},
			"kcp: message of 3 bytes is larger than 2", ErrMessageTooLarge},
		{&session.SizeError{Size: 3, Limit: 2, Err: session.ErrDatagramTooLarge, Means: "what fits"}, &SizeError{3, 2, session.ErrDatagramTooLarge, "what fits"},
			"kcp: datagram of 3 bytes is larger than 2, what fits", ErrMessageTooLarge},
	} {
		err := publicError(c.inside)
		require.Equal(t, c.want, err)
		require.EqualError(t, err, c.text)
		if c.is == nil {
			require.NoError(t, errors.Unwrap(err))
		} else {
			require.ErrorIs(t, err, c.is)
		}
	}
}

// heard is the errors that an application gets of a session.
type heard struct {
	t   *testing.T
	all []error
}

// get notes an error, and wants none of its chain to be of package session, but for those
// that are only a text.
func (h *heard) get(call string, err error) {
	if err == nil {
		return
	}
	h.all = append(h.all, err)
	for e := err; e != nil; e = errors.Unwrap(e) {
		of := reflect.TypeOf(e)
		for of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		inside := strings.HasSuffix(of.PkgPath(), "/internal/session") && of != reflect.TypeFor[session.DetailedError]()
		assert.False(h.t, inside, "%s: %T: %v", call, e, err)
	}
}

// use has all calls of a session and a stream of it fail.
func (h *heard) use(c *Conn, s *Stream) {
	b, ctx := make([]byte, 1), context.Background()
	_, err := c.Read(b)
	h.get("Read", err)
	_, err = c.ReadMessage(b)
	h.get("ReadMessage", err)
	_, err = c.Write(b)
	h.get("Write", err)
	_, err = c.TryWrite(b)
	h.get("TryWrite", err)
	h.get("SendDatagram", c.SendDatagram(b))
	_, err = c.ReceiveDatagram(ctx)
	h.get("ReceiveDatagram", err)
	_, err = c.OpenStream(ctx, nil)
	h.get("OpenStream", err)
	_, err = c.AcceptStream(ctx)
	h.get("AcceptStream", err)
	_, err = s.Read(b)
	h.get("Stream.Read", err)
	_, err = s.Write(b)
	h.get("Stream.Write", err)
	h.get("Stream.Err", s.Err())
	h.get("Stream.CloseWrite", s.CloseWrite())
	h.get("Flush", c.Flush(ctx))
	_, err = c.Ping(ctx)
	h.get("Ping", err)
	h.get("CloseWrite", c.CloseWrite())
	h.get("Err", c.Err())
	h.get("Close", c.Close())
}

// However a session ends, all calls, hooks and receipts have public errors.
func TestErrorsThatApplicationsGet(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		end  func(w *world, b *Conn, s *Stream)
		want any // for errors.As
	}{
		{"closed with a reason", func(_ *world, b *Conn, _ *Stream) { go b.CloseWithError(7, "done") }, new(*PeerCloseError)},
		{"aborted with a reason", func(_ *world, b *Conn, _ *Stream) { _ = b.Abort(7, "done") }, new(*PeerCloseError)},
		{"lost", func(w *world, _ *Conn, _ *Stream) { testenv.Outage(w.net, serverAddr, 0, 0) }, new(*PeerLostError)},
		{"stream reset", func(_ *world, b *Conn, s *Stream) { _ = s.Reset(7); time.Sleep(time.Second); _ = b.Abort(0, "") }, new(*StreamError)},
		{"stream closed", func(_ *world, b *Conn, s *Stream) { _ = s.CancelRead(0); time.Sleep(time.Second); _ = b.Abort(0, "") }, new(*StreamError)},
	} {
		inWorld(t, 1, netsim.LinkConfig{Delay: 10 * time.Millisecond}, func(t *testing.T, w *world) {
			h := &heard{t: t}
			config := &Config{MessageMode: true, PeerTimeout: 10 * time.Second}
			traced := *config
			traced.Tracer = func(*Conn) *Trace {
				return &Trace{
					State:   func(_ trace.SessionState, err error) { h.get("Trace.State", err) },
					Dropped: func(_ int, err error) { h.get("Trace.Dropped", err) },
				}
			}
			a, b, _ := w.pair(&traced, config)
			h.get("WriteMessage", a.WriteMessage(make([]byte, 1<<20), nil))
			h.get("SendDatagram", a.SendDatagram(make([]byte, 1<<16)))
			require.ErrorAs(t, h.all[0], new(*SizeError))
			require.ErrorAs(t, h.all[1], new(*SizeError))
			s, err := a.OpenStream(context.Background(), nil)
			require.NoError(t, err)
			_, err = s.Write([]byte{1})
			require.NoError(t, err)
			theirs, err := b.AcceptStream(context.Background())
			require.NoError(t, err)
			_, err = theirs.Write(make([]byte, 1))
			require.NoError(t, err)
			done := make(chan error, 1)
			testenv.Outage(w.net, serverAddr, 0, 1<<30)
			require.NoError(t, a.WriteMessage([]byte{1}, &MessageOptions{Done: func(err error) { done <- err }}))
			c.end(w, b, theirs)
			<-a.Done()
			h.get("MessageOptions.Done", <-done)
			h.use(a, s)
			found := false
			for _, err := range h.all {
				found = found || errors.As(err, c.want)
			}
			require.True(t, found, "%s: %v", c.name, h.all)
			require.NotErrorIs(t, a.Err(), net.ErrClosed)
		})
	}
}
