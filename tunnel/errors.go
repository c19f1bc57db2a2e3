package tunnel

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/neterr"
)

// HelloError means that a server has turned the client away.
type HelloError struct {
	Code  string // as the protocol has it, such as "forbidden"
	Value string // what the code is about, such as the remote
}

func (e *HelloError) Error() string {
	switch helloCode(e.Code) {
	case helloVersion:
		return fmt.Sprintf("the server speaks version %s of the protocol, and the client %d: install the same kcptunnel at both ends", printable(e.Value), wireVersion)
	case helloMalformed:
		return "the server does not understand the client"
	case helloNoName:
		return "the server wants a user and a password (-auth), or a client certificate (-tls-cert) of its -client-ca"
	case helloWrong:
		return "wrong user or password: compare -auth of the client with the file of -auth at the server, which SIGHUP has it read again"
	case helloNoRules:
		return fmt.Sprintf("the server knows no user %s, the common name of the certificate: add it to the file of -auth there, without a colon", printable(e.Value))
	case helloForbidden:
		text := "the server does not allow " + printable(e.Value)
		if printable(e.Value) == e.Value {
			text += fmt.Sprintf(": add the rule %q for the user to the file of -auth there, and send it SIGHUP", "^"+unslashed.Replace(e.Value)+"$")
		}
		return text
	case helloAttempts:
		return fmt.Sprintf("too many failed attempts of this user from this address, of this or another client with an old password: try again in %s", printable(e.Value))
	}
	return fmt.Sprintf("the server refused the client (%s)", printable(e.Code))
}

// explained is an error in words for who runs the program: the likeliest cause first, and
// the flag that mends it.
type explained struct {
	text string
	error
}

func (e *explained) Error() string { return e.text }
func (e *explained) Unwrap() error { return e.error }

// theClient stands for the address of a peer that is no server.
const theClient = "the client"

// explain returns why there is no session with peer, a server, or theClient.
func explain(peer string, err error) error {
	var (
		away       *HelloError
		handshake  *kcp.HandshakeError
		unanswered *kcp.NoAnswerError
		lost       *kcp.PeerLostError
		closed     *kcp.PeerCloseError
		name       *net.DNSError
		op         *net.OpError
		text       string
	)
	_, port, _ := net.SplitHostPort(peer)
	or := func(socket error, likely string) string {
		if socket != nil {
			return hint(socket).Error()
		}
		return likely
	}
	switch {
	case err == nil || errors.As(err, &away):
		return err
	case errors.Is(err, kcp.ErrNoTLS):
		text = "the other end is no kcptunnel: it does not use TLS"
	case errors.As(err, &handshake):
		text = handshakeText(peer, handshake)
	case errors.As(err, &unanswered):
		text = fmt.Sprintf("no answer from %s in %v: %s", peer, unanswered.Waited.Round(100*time.Millisecond),
			or(unanswered.Socket, "is UDP port "+port+" open in the firewalls between, and does the server run?"))
	case errors.As(err, &lost) && lost.Idle:
		text = fmt.Sprintf("no data for %v, which is -idle-timeout of this end", lost.Silence.Round(time.Second))
	case errors.As(err, &lost):
		text = fmt.Sprintf("no sign of life from %s for %v (-peer-timeout): %s", peer, lost.Silence.Round(time.Second),
			or(lost.Socket, "its machine or the network is away"))
	case errors.As(err, &closed) && closed.Text != "":
		text = fmt.Sprintf("the other end has ended the session: %s", printable(closed.Text))
	case errors.Is(err, kcp.ErrRefused):
		text = fmt.Sprintf("%s refuses sessions: does the server run, on UDP port %s? If it does, it has as many as -max-sessions and -max-sessions-per-address allow", peer, port)
	case errors.Is(err, kcp.ErrReset):
		text = "the other end no longer knows the session: it was started again, or waited too long for this one (-peer-timeout)"
	case errors.As(err, &name) && name.IsNotFound:
		text = fmt.Sprintf("%s has no address: is the name right?", name.Name)
	case errors.As(err, &name):
		text = fmt.Sprintf("the address of %s is not known, as no name server answers: see /etc/resolv.conf: %s", name.Name, name.Err)
	case errors.As(err, &op) && op.Err != nil:
		text = hint(op.Err).Error()
	default:
		text = hint(err).Error()
	}
	return &explained{strings.TrimPrefix(text, "kcp: "), err}
}

// handshakeText says why a handshake has failed.
func handshakeText(peer string, err *kcp.HandshakeError) string {
	var key *FingerprintError
	var unknown *tls.CertificateVerificationError
	var host x509.HostnameError
	var alert tls.AlertError
	cause := printable(err.Err.Error())
	switch {
	case errors.As(err, &key):
		return key.Error() + " (-fingerprint): if the server was given another key, give this one; if not, another machine answers there"
	case outOfTime(err):
		return "a certificate is not valid now: renew it, or set the clocks of both ends: " + cause
	case errors.As(err, &unknown) && peer == theClient:
		return "the client's certificate is of no authority of -client-ca: " + cause
	case errors.As(err, &unknown) && len(unknown.UnverifiedCertificates) > 0:
		flag := "-tls-ca FILE of its authority"
		if errors.As(err, &host) {
			flag = "-tls-name NAME of its certificate"
		}
		return fmt.Sprintf("the server's certificate is not known: give -fingerprint %s if that is what the server prints, or %s: %s",
			Fingerprint(unknown.UnverifiedCertificates[0]), flag, cause)
	case errors.As(err, &alert) && uint8(alert) == 120: // RFC 7301 §3.2
		return "what answers is no kcptunnel, or of another version: " + cause
	case err.Remote && peer == theClient:
		return "the client does not take the certificate of this server: see -fingerprint or -tls-ca there: " + cause
	case err.Remote:
		return "the server does not take the certificate of this client: see -tls-cert here, and -client-ca there: " + cause
	}
	return "the TLS handshake failed: " + cause
}

// hint returns an error of a socket with what mends it, if that is known.
func hint(err error) error {
	text := ""
	switch {
	case neterr.OutOfDescriptors(err):
		text = "raise LimitNOFILE of the unit, or ulimit -n"
	case neterr.Is(err, syscall.EADDRINUSE):
		text = "another process has the port, which ss -lnup or ss -lntp shows"
	case neterr.Is(err, syscall.EACCES):
		text = "a port below 1024 takes CAP_NET_BIND_SERVICE, which the units in contrib grant"
	case neterr.Is(err, syscall.EADDRNOTAVAIL), neterr.Is(err, syscall.ENODEV):
		text = "no network interface of this machine has the address or the name now"
	case neterr.Is(err, syscall.ENETUNREACH), neterr.Is(err, syscall.EAFNOSUPPORT):
		text = "is the network up, and does this machine have IPv6 if the address is of that?"
	case neterr.Is(err, syscall.EPERM):
		text = "a firewall of this machine, or a sandbox, does not let packets out"
	default:
		return err
	}
	return &explained{err.Error() + ": " + text, err}
}

// TurnedAway reports whether Run has ended with err because the server has turned the
// client away, or is not the one that it should be. A certificate that is not valid yet,
// or no longer, does not count: the clock of either end may be wrong, or somebody forgot
// to renew it.
func TurnedAway(err error) bool {
	var hello *HelloError
	var handshake *kcp.HandshakeError
	return errors.As(err, &hello) || errors.As(err, &handshake) && !outOfTime(handshake)
}

// alertCertificateExpired is what a server says of a client's certificate that is not
// valid at the moment (RFC 8446 §6.2).
const alertCertificateExpired = tls.AlertError(45)

// outOfTime reports whether a handshake has failed because a certificate is not valid at
// the moment.
func outOfTime(err *kcp.HandshakeError) bool {
	var invalid x509.CertificateInvalidError
	var alert tls.AlertError
	return errors.As(err, &invalid) && invalid.Reason == x509.Expired ||
		err.Remote && errors.As(err, &alert) && alert == alertCertificateExpired
}
