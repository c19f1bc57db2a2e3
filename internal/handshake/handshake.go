// Package handshake drives the TLS 1.3 handshake of crypto/tls for a transport
// that protects its packets itself, through the interface that is meant for QUIC
// (RFC 9001 §4). It has no clock, socket or lock. Streams carry the bytes of the
// handshake between the ends.
package handshake

import (
	"context"
	"crypto/tls"
	"errors"
	"net/netip"
	"time"
)

// Level is the encryption level at which handshake bytes travel.
type Level uint8

const (
	Initial     Level = iota // not protected
	Handshake                // under the handshake secrets
	Application              // under the application secrets: tickets
	Levels      = 3
)

// TLS is one end of a handshake. Its methods run crypto/tls, and callbacks of
// the application's tls.Config, so they may take their time; they must not run
// concurrently, except for State. Close must be called at the end, and frees the
// goroutine that crypto/tls uses until the handshake is done.
type TLS struct {
	conn   *tls.QUICConn
	config *tls.Config
	server bool
	reads  Level // of the bytes that TLS waits for
	asked  bool  // client: the server has asked for a certificate
	done   bool

	cost  int   // of the key exchange and the certificates, as far as they have come
	leaf  any   // the key of the peer's certificate; nil: none has come
	payer payer // server: of the work
}

// payer is whom the work of a server is charged to.
type payer struct {
	allowance *Allowance // nil: nothing is allowed
	network   netip.Addr
	now       time.Duration
}

// Secret is a secret that TLS has agreed on.
type Secret struct {
	Level Level
	Seals bool   // of what this end sends; false: of what it receives
	Suite uint16 // cipher suite
	Bytes []byte
}

// Step is what a call has brought about.
type Step struct {
	Out     [Levels][]byte // to be sent to the peer, by level
	Secrets []Secret
	Params  []byte // the peer's transport parameters; nil: not yet
	Done    bool   // the handshake has completed with this step
	Err     error  // the handshake has failed; wraps a tls.AlertError
}

// Client returns the dialling end. params are its transport parameters. The
// config must name the server, or not want to verify it; it is not changed.
func Client(config *tls.Config, params []byte) *TLS {
	t := new(TLS)
	config = config.Clone()
	certify := config.GetClientCertificate
	config.GetClientCertificate = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		t.asked = true
		if certify != nil {
			return certify(info)
		}
		for i := range config.Certificates {
			if info.SupportsCertificate(&config.Certificates[i]) == nil {
				return &config.Certificates[i], nil
			}
		}
		return new(tls.Certificate), nil
	}
	t.config = config
	t.conn = tls.QUICClient(&tls.QUICConfig{TLSConfig: config})
	t.conn.SetTransportParameters(params)
	return t
}

// Server returns the listening end. The config must have a certificate, and is not
// changed.
func Server(config *tls.Config, params []byte) *TLS {
	t := &TLS{server: true, config: config}
	if choose := config.GetConfigForClient; choose != nil {
		_, _ = config.DecryptTicket(nil, tls.ConnectionState{}) // so that config has keys, which the copy is to have
		config = config.Clone()
		config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := choose(hello)
			if chosen != nil {
				t.config = chosen
			}
			return chosen, err
		}
	}
	t.conn = tls.QUICServer(&tls.QUICConfig{TLSConfig: config})
	t.conn.SetTransportParameters(params)
	return t
}

// Start begins the handshake. It is called once, before Handle.
func (t *TLS) Start() Step {
	if err := t.conn.Start(context.Background()); err != nil {
		return Step{Err: alerted(err)}
	}
	return t.collect(nil)
}

// Handle takes bytes of the peer, which are of the level reads. They are whole
// messages.
func (t *TLS) Handle(data []byte) Step {
	reads := t.reads
	level := [Levels]tls.QUICEncryptionLevel{
		tls.QUICEncryptionLevelInitial, tls.QUICEncryptionLevelHandshake, tls.QUICEncryptionLevelApplication,
	}[reads]
	for reads < Application && wholeMessages(data) > 0 && messageSize(data) < len(data) {
		if err := t.handle(level, data[:messageSize(data)]); err != nil {
			return t.collect(err)
		}
		data = data[messageSize(data):]
	}
	return t.collect(t.handle(level, data))
}

// handle has TLS take a message, unless it would take long. Behind the last one there may
// be bytes that are none.
func (t *TLS) handle(level tls.QUICEncryptionLevel, message []byte) error {
	dear := false
	if t.reads < Application && wholeMessages(message) > 0 {
		var err error
		switch message[0] {
		case typeClientHello:
			err = t.checkHello(message)
		case typeCertificate:
			err = t.checkCertificates(message)
		case typeCertificateVerify:
			dear, err = t.checkSignature()
		}
		if err != nil {
			return err
		}
	}
	err := t.conn.HandleData(level, message)
	if dear {
		p := &t.payer
		p.allowance.charge(p.network, p.now, err == nil, t.verifies())
	}
	return err
}

// SendTicket makes the server send a ticket, with which the client may resume
// (RFC 8446 §4.6.1). It is called once, after the handshake. It does nothing if
// the config has no tickets.
func (t *TLS) SendTicket() Step {
	return t.collect(t.conn.SendSessionTicket(tls.QUICSessionTicketOptions{}))
}

// collect takes the events of TLS.
func (t *TLS) collect(err error) (s Step) {
	for err == nil {
		e := t.conn.NextEvent()
		switch e.Kind {
		case tls.QUICNoEvent:
			return s
		case tls.QUICSetReadSecret, tls.QUICSetWriteSecret:
			level, ok := levelOf(e.Level)
			if !ok {
				continue // 0-RTT is not used
			}
			seals := e.Kind == tls.QUICSetWriteSecret
			if !seals {
				t.reads = level
			}
			s.Secrets = append(s.Secrets, Secret{level, seals, e.Suite, append([]byte(nil), e.Data...)})
		case tls.QUICWriteData:
			if level, ok := levelOf(e.Level); ok {
				s.Out[level] = append(s.Out[level], e.Data...)
			}
		case tls.QUICTransportParameters:
			s.Params = append([]byte{}, e.Data...)
		case tls.QUICHandshakeDone:
			t.done, s.Done = true, true
			if v := t.conn.ConnectionState().Version; v < tls.VersionTLS13 {
				err = errors.New("handshake: TLS below version 1.3")
			}
		}
	}
	return Step{Out: s.Out, Err: alerted(err)}
}

// levelOf returns the level of crypto/tls's. ok is false for 0-RTT.
func levelOf(l tls.QUICEncryptionLevel) (Level, bool) {
	switch l {
	case tls.QUICEncryptionLevelInitial:
		return Initial, true
	case tls.QUICEncryptionLevelHandshake:
		return Handshake, true
	case tls.QUICEncryptionLevelApplication:
		return Application, true
	}
	return 0, false
}

// Close ends a handshake that has not completed, and waits for its goroutine.
// It may be called again.
func (t *TLS) Close() {
	if !t.done {
		t.done = true
		_ = t.conn.Close() // reports only that it was closed early
	}
}
