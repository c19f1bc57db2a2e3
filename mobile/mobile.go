// Package mobile is a client for apps on phones, in the types that gomobile binds for
// Java, Kotlin, Objective-C and Swift. Times are milliseconds. Calls that wait, all but
// those of settings, belong on a thread of the background.
//
//	gomobile bind -target android github.com/arqnet/kcp/mobile
//
// The server is any of package kcp with Config.TLS and Config.MessageMode. docs/phones.md
// says what happens to sessions while a phone sleeps, moves, or is without a network.
package mobile

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/identity"
)

// Options say whom to dial, and how.
type Options struct {
	Address     string // host and port
	Fingerprint string // of the server's key, see package identity; several with spaces between
	ServerName  string // in its certificate, without Fingerprint; default the host of Address
	Protocol    string // application protocol (ALPN); empty: none

	// Milliseconds; 0 is the default of kcp.Config, and negative means never.
	DialTimeout, KeepAlive, PeerTimeout int
}

// NewOptions returns options that have to be filled in.
func NewOptions() *Options { return new(Options) }

// Session is a session with a server, which carries messages and datagrams.
type Session struct{ conn *kcp.Conn }

func millis(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// Dial opens a session.
func Dial(o *Options) (*Session, error) {
	config := &kcp.Config{
		MessageMode: true, TLS: &tls.Config{ServerName: o.ServerName},
		DialTimeout: millis(o.DialTimeout), KeepAlive: millis(o.KeepAlive), PeerTimeout: millis(o.PeerTimeout),
	}
	if o.Protocol != "" {
		config.TLS.NextProtos = []string{o.Protocol}
	}
	if keys := strings.Fields(o.Fingerprint); len(keys) > 0 {
		for _, key := range keys {
			if err := identity.Check(key); err != nil {
				return nil, err
			}
		}
		identity.Pin(config.TLS, keys...)
	}
	conn, err := kcp.Dial("udp", o.Address, config)
	if err != nil {
		return nil, err
	}
	return &Session{conn}, nil
}

// Send sends a message, and waits for room.
func (s *Session) Send(message []byte) error { return s.conn.WriteMessage(message, nil) }

// SendDatagram sends a message that may be lost.
func (s *Session) SendDatagram(message []byte) error { return s.conn.SendDatagram(message) }

// Receive waits for the next message. One thread at a time may call it.
func (s *Session) Receive() ([]byte, error) {
	for b := make([]byte, 4096); ; b = make([]byte, 4*len(b)) {
		if n, err := s.conn.ReadMessage(b); !errors.Is(err, io.ErrShortBuffer) {
			return b[:n], err
		}
	}
}

// ReceiveDatagram waits for the next datagram.
func (s *Session) ReceiveDatagram() ([]byte, error) {
	return s.conn.ReceiveDatagram(context.Background())
}

// Ping returns the round-trip time in milliseconds. Call it when the phone wakes, or has
// another network: a session that does not answer in time is over, and Abort ends it.
func (s *Session) Ping(timeout int) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), millis(timeout))
	defer cancel()
	rtt, err := s.conn.Ping(ctx)
	return int(rtt.Milliseconds()), err
}

// SetKeepAlive and SetPeerTimeout change the options of that name, such as when the app
// goes to the background.
func (s *Session) SetKeepAlive(time int) error   { return s.conn.SetKeepAlive(millis(time)) }
func (s *Session) SetPeerTimeout(time int) error { return s.conn.SetPeerTimeout(millis(time)) }

// Close ends the session, and waits until the server has all messages.
func (s *Session) Close() error { return s.conn.Close() }

// Abort ends the session at once.
func (s *Session) Abort() { _ = s.conn.Abort(0, "") }

// PeerCode returns the code with which the server has closed the session, of an error of
// Send or Receive; -1 if it has not.
func PeerCode(err error) int64 {
	var closed *kcp.PeerCloseError
	if errors.As(err, &closed) {
		return int64(closed.Code)
	}
	return -1
}

// Hopeless reports whether to dial again would meet the same error: the ends do not trust
// each other, or an option is wrong.
func Hopeless(err error) bool {
	var handshake *kcp.HandshakeError
	var setting *kcp.ConfigError
	return errors.As(err, &handshake) || errors.As(err, &setting) || errors.Is(err, kcp.ErrNoTLS)
}
