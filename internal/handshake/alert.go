package handshake

import (
	"crypto/tls"
	"errors"
	"fmt"
)

// Versions of the handshake, and what INFO announces of it.
const (
	Version = 2
	// VersionUnsealed is the version of peers that do not seal their packets in
	// the clear, and cannot open this end's.
	VersionUnsealed = 1

	// CapTLS in INFO announces that the sender speaks TLS, and nothing else.
	CapTLS = 2
)

// Alerts of TLS that are sent here (RFC 8446 §6), and one beyond them.
const (
	alertHandshakeFailure       = 40
	alertBadCertificate         = 42
	alertUnsupportedCertificate = 43
	alertUnknownCA              = 48
	alertDecodeError            = 50
	AlertProtocolVersion        = 70
	alertInternalError          = 80
	alertChanged                = 256 // the transport parameters contradict the signals in the clear
)

var (
	// ErrNoTLS means that the peer does not speak TLS, or that something on the
	// way has made it look so.
	ErrNoTLS = errors.New("kcp: the peer does not use TLS")
	// ErrChanged means that what the ends have said in the clear was changed on
	// the way.
	ErrChanged = errors.New("kcp: the handshake was changed on the way")
)

// UnsealedError returns the error of a handshake with a peer of VersionUnsealed.
func UnsealedError() error {
	return fmt.Errorf("the peer speaks version %d, this end %d: %w", VersionUnsealed, Version, tls.AlertError(AlertProtocolVersion))
}

// alerted returns err, and makes sure that it wraps a tls.AlertError.
func alerted(err error) error {
	var alert tls.AlertError
	if err == nil || errors.As(err, &alert) {
		return err
	}
	return errors.Join(err, tls.AlertError(alertInternalError))
}

// AlertOf returns the alert that tells the peer of err.
func AlertOf(err error) tls.AlertError {
	var alert tls.AlertError
	if errors.As(err, &alert) {
		return alert
	}
	return alertInternalError
}
