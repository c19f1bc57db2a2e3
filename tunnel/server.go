package tunnel

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/tunnel/internal/carrier"
	"github.com/arqnet/kcp/tunnel/internal/lobby"
)

// ServerConfig holds the settings of a Server.
type ServerConfig struct {
	// Addr is where to listen, as host:port of UDP.
	Addr string
	// Socket, if not nil, is the socket to use in place of Addr, such as one of
	// systemd's. The server does not close it.
	Socket net.PacketConn
	// TCP is where to listen for TLS over TCP as well, as host:port, for clients that no
	// UDP reaches. Empty means the address of UDP if nobody else listens there, or
	// nowhere with Socket; "none" means nowhere.
	TCP string
	// TCPSocket, if not nil, is the socket to use in place of TCP, such as one of
	// systemd's.
	TCPSocket net.Listener
	// TakeOver, if it is set, is how the server takes over the socket of another
	// process, which calls HandOver, in place of Addr. KCP has to be as there.
	TakeOver Handover
	// Reload, if not nil, is called by Server.Reload, of this server or of one that has
	// taken its place: it reads files again and calls SetUsers and SetCertificate.
	Reload func()
	// Certificate is what the server shows: from LoadKey, or of an authority.
	Certificate tls.Certificate
	// ClientCAs, if not nil, are the authorities of client certificates, which take
	// the place of passwords. The common name of a certificate is the user's name.
	ClientCAs *x509.CertPool
	// Users are those who may connect, and what each may reach. Nobody else may.
	Users *Users
	// DialTimeout is how long a target may take to answer: up to a year (8760 h),
	// default 10 s.
	DialTimeout time.Duration
	// UDPTimeout is after how long without packets a flow of UDP ends: up to a year,
	// default 2 min (RFC 4787, REQ-5).
	UDPTimeout time.Duration
	// Drain is how long connections may stay in this process after HandOver; then they
	// end with resets. Up to a year; 0: as long as they last.
	Drain time.Duration
	// KCP holds further settings of sessions; nil means the defaults. Its TLS,
	// HandshakeFailed, and MaxStreams if it is 0, are set by the server.
	KCP *kcp.Config
	// Logger receives what happens; nil: nothing does. It must not block for long: sessions
	// wait for it.
	Logger *slog.Logger

	failureDelay time.Duration // before a failed attempt is answered; 0: 1 s
	shutdown     time.Duration // how long ends in order may take; 0: shutdownTime
	aliveWait    time.Duration // how long a client may take to answer; 0: aliveWait
	connect      func(ctx context.Context, network, address string) (net.Conn, error)
}

const (
	defaultDialTimeout = 10 * time.Second
	defaultUDPTimeout  = 2 * time.Minute
	// defaultMaxStreams is how many connections and flows a session may have.
	defaultMaxStreams = 16384
	// defaultRedundancy has packets that leave anyway carry copies of what is small and
	// new, such as keystrokes, at most as many bytes as are sent otherwise.
	defaultRedundancy = 1
	// defaultKeepAlive is the silence after which an end asks for a sign of life.
	defaultKeepAlive = 10 * time.Second
	// shutdownTime is how long sessions may take to end in order.
	shutdownTime = 2 * time.Second
)

// Server is the end of a tunnel that clients connect to. All methods are safe for
// concurrent use.
type Server struct {
	config      ServerConfig
	log         *slog.Logger
	listener    *kcp.Listener
	session     *kcp.Config  // settings
	tcp         net.Listener // nil: there is none
	tcpAt       string       // its address, as configured
	guard       guard
	lobby       *lobby.Lobby // of clients that have not shown an identity
	verifier    *verifier
	tallies     tallies
	dials       dialTally
	accounts    accounts
	users       atomic.Pointer[Users]
	certificate atomic.Pointer[shown]
	clientCAs   atomic.Pointer[x509.CertPool] // nil: there are none
	claims      claims
	before      *control      // of the server before this one; nil: there is none
	passed      atomic.Bool   // HandOver was called
	left        chan struct{} // closed when no more sessions begin here after that
	ended       chan struct{} // closed when Serve has no more sessions
	superseded  atomic.Bool   // the server behind this one was replaced as well

	mu       sync.Mutex
	sessions map[*serverSession]bool
	begun    uint64 // sessions there have been
	cancel   func() // ends Serve; nil: before that
}

// shown is the certificate that a server shows.
type shown struct {
	certificate tls.Certificate
	fingerprint string
}

// Listen opens the socket of a server. Clients are answered by Serve.
func Listen(config *ServerConfig) (*Server, error) {
	s, settings, err := newServer(config)
	if err != nil {
		return nil, err
	}
	if s.listener, err = config.open(settings); err != nil {
		return nil, hint(err)
	}
	if config.TakeOver.Control != nil {
		s.before = newControl(config.TakeOver.Control)
	}
	s.session = settings
	if err := s.listenTCP(); err != nil {
		_ = s.Close()
		return nil, hint(err)
	}
	return s, nil
}

// Validate returns why Listen would refuse the settings, without opening a socket.
func (c *ServerConfig) Validate() error {
	_, _, err := newServer(c)
	return err
}

// newServer returns a server without a socket, and the settings of its sessions.
func newServer(config *ServerConfig) (*Server, *kcp.Config, error) {
	s := &Server{
		config: *config, log: config.Logger, guard: guard{now: time.Now}, verifier: newVerifier(),
		lobby: lobby.New(maxUnknown, maxUnknownEach),
		left:  make(chan struct{}), ended: make(chan struct{}), sessions: make(map[*serverSession]bool),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := config.checkUsers(config.Users); err != nil {
		return nil, nil, err
	}
	s.users.Store(config.Users)
	s.tallies.keep(config.Users)
	setDefault(&s.config.DialTimeout, defaultDialTimeout)
	setDefault(&s.config.UDPTimeout, defaultUDPTimeout)
	setDefault(&s.config.failureDelay, time.Second)
	setDefault(&s.config.shutdown, shutdownTime)
	setDefault(&s.config.aliveWait, aliveWait)
	s.accounts.udpTimeout = s.config.UDPTimeout
	if err := checkTimes(times{"DialTimeout": s.config.DialTimeout, "UDPTimeout": s.config.UDPTimeout, "Drain": s.config.Drain}); err != nil {
		return nil, nil, err
	}
	if err := s.SetCertificate(config.Certificate); err != nil {
		return nil, nil, err
	}
	settings, err := s.settings()
	if err == nil {
		err = settings.Validate()
	}
	return s, settings, err
}

// checkUsers returns why nobody could connect.
func (c *ServerConfig) checkUsers(users *Users) error {
	if users.Len() == 0 {
		return errors.New("tunnel: no users are given, so nobody could connect")
	}
	if !users.passwords() && c.ClientCAs == nil {
		return errors.New("tunnel: all users have certificates, but no authority is given for them")
	}
	return nil
}

// setDefault sets what is not set.
func setDefault[T comparable](v *T, to T) { *v = cmp.Or(*v, to) }

// withDefaults returns settings of sessions with the defaults of this package. They may
// be nil.
func withDefaults(given *kcp.Config) *kcp.Config {
	var c kcp.Config
	if given != nil {
		c = *given
	}
	setDefault(&c.Limits.MaxStreams, defaultMaxStreams)
	setDefault(&c.Redundancy, defaultRedundancy)
	setDefault(&c.KeepAlive, defaultKeepAlive)
	return &c
}

// times are settings by their names.
type times map[string]time.Duration

// maxTime is the longest time that may be set: nobody means more, and sums of it would
// come around.
const maxTime = 365 * 24 * time.Hour

// checkTimes returns an error for the first of them, by name, that is out of its range.
func checkTimes(all times) error {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if d := all[name]; d < 0 || d > maxTime {
			return fmt.Errorf("tunnel: %s is %v: must be in [0s, %v]", name, d, maxTime)
		}
	}
	return nil
}

// settings returns the settings of sessions.
func (s *Server) settings() (*kcp.Config, error) {
	c := withDefaults(s.config.KCP)
	c.TLS = &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return &s.certificate.Load().certificate, nil
		},
		NextProtos: []string{protocol},
		MinVersion: tls.VersionTLS13,
	}
	if s.config.ClientCAs != nil {
		c.TLS.ClientCAs, c.TLS.ClientAuth = s.config.ClientCAs, tls.VerifyClientCertIfGiven
		s.clientCAs.Store(s.config.ClientCAs)
		base := c.TLS.Clone()
		c.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
			now := base.Clone()
			now.ClientCAs = s.clientCAs.Load()
			return now, nil
		}
	}
	if c.StatelessResetKey == nil {
		key, err := resetKey(&s.config.Certificate)
		if err != nil {
			return nil, err
		}
		c.StatelessResetKey = key
	}
	if log := new(fair.Records).Limited(s.log); c.Tracer == nil {
		c.Tracer = func(conn *kcp.Conn) *kcp.Trace {
			from := conn.RemoteAddr().String()
			return &kcp.Trace{Moved: func(to string) {
				log.Info("client moved", text("user", s.UserOf(conn)), "from", from, "to", to)
				from = to
			}}
		}
	}
	c.HandshakeFailed = func(remote net.Addr, err error) {
		s.warn("handshake failed", "client", remote, "error", explain(theClient, err))
	}
	return c, nil
}

// Addr returns the address of the server's socket.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// TCPAddr returns the address for TLS over TCP, or nil.
func (s *Server) TCPAddr() net.Addr {
	if s.tcp == nil {
		return nil
	}
	return s.tcp.Addr()
}

// Fingerprint returns the fingerprint of the server's key, for
// ClientConfig.Fingerprints.
func (s *Server) Fingerprint() string { return s.certificate.Load().fingerprint }

// SetCertificate puts another certificate in place of ServerConfig's. New
// sessions see it; those that there are go on.
func (s *Server) SetCertificate(certificate tls.Certificate) error {
	fingerprint, err := certificateFingerprint(&certificate)
	if err != nil {
		return err
	}
	warnOfTime(s.log, &certificate)
	s.certificate.Store(&shown{certificate, fingerprint})
	return nil
}

// SetClientCAs puts other authorities in place of ServerConfig.ClientCAs, of which
// there have to be some. Sessions end whose client certificates are of none of them,
// expired ones included. A certificate or an authority that only expires ends no session.
func (s *Server) SetClientCAs(authorities *x509.CertPool) error {
	if s.clientCAs.Load() == nil || authorities == nil {
		return errors.New("tunnel: the server has no authorities of clients to replace")
	}
	s.clientCAs.Store(authorities)
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.sessions {
		c.endIfRevoked()
	}
	return nil
}

// Endpoint returns the endpoint of the server's sessions, for figures.
func (s *Server) Endpoint() *kcp.Endpoint { return s.listener.Endpoint() }

// SetUsers puts other users in place of ServerConfig's, unless Listen would
// refuse them. Sessions end whose user is gone, or has another password or hash. In other
// sessions the new rules apply to what is opened from now on, and the server stops to
// listen where a user may no longer have it listen.
func (s *Server) SetUsers(users *Users) error {
	if err := s.config.checkUsers(users); err != nil {
		return err
	}
	s.users.Store(users)
	s.verifier.keep(users)
	s.tallies.keep(users)
	s.mu.Lock()
	for c := range s.sessions {
		c.endIfRevoked()
	}
	s.mu.Unlock()
	s.claims.revoke()
	return nil
}

// endIfRevoked ends the session if its identity is no longer valid.
func (c *serverSession) endIfRevoked() {
	if c.user() == nil || !c.certified() {
		const why = "the identity is no longer valid: the user was taken from the file of users, or has another password or authority"
		c.log.Info("session revoked", "reason", why)
		go c.close(closeRevoked, why)
	}
}

// Status is what there is at an end of a tunnel at one moment.
type Status struct {
	Sessions    int // established
	Connections int // connections and flows that are open
	Opened      int // connections and flows there have been
	Evicted     int // flows that were ended to make room, as a user had too many
}

// add adds what a session has.
func (t *Status) add(s *session) {
	t.Sessions++
	t.Connections += int(s.active.Load())
	t.Opened += int(s.opened.Load())
	t.Evicted += int(s.evicted.Load())
}

// Status returns what there is now.
func (s *Server) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	var t Status
	for c := range s.sessions {
		t.add(&c.session)
	}
	return t
}

// Close closes the sockets of a server on which Serve was not called.
func (s *Server) Close() error {
	s.closeTCP()
	return s.listener.Endpoint().Close()
}

// Serve answers clients until ctx is done, and closes the socket then. After HandOver it
// goes on until the last session here has ended. It returns nil then, and if ctx is done,
// and otherwise why the socket has failed. When it returns,
// everything has ended that it has begun.
func (s *Server) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	s.cancel = cancel
	s.mu.Unlock()
	var sessions sync.WaitGroup
	s.serveTCP(ctx, &sessions)
	var err error
	for {
		var conn *kcp.Conn
		if conn, err = s.listener.AcceptKCP(ctx); err != nil {
			break
		}
		sessions.Go(func() { s.serveConn(ctx, carrier.KCP{Conn: conn}) })
	}
	left := ctx.Err() == nil && s.passed.Load() && errors.Is(err, net.ErrClosed)
	if left {
		s.keepTCPFor(controlWait)
		s.await(ctx, &sessions)
	}
	ended := ctx.Err() != nil
	if ended {
		s.before.ask(request{What: wantEnd})
	}
	cancel()
	sessions.Wait()
	close(s.ended)
	limit, stop := context.WithTimeout(context.Background(), s.config.shutdown)
	defer stop()
	_ = s.listener.Endpoint().Shutdown(limit)
	if ended || left {
		return nil
	}
	return err
}

// serveConn serves a session from its beginning to its end.
func (s *Server) serveConn(ctx context.Context, conn carrier.Conn) {
	addr := conn.RemoteAddr()
	log := s.log.With("client", addr.String())
	visitor := s.lobby.Enter(addr, func() { _ = conn.Abort(closeRoom, errFull.Error()) })
	identity, err := s.welcome(ctx, conn)
	s.lobby.Leave(visitor)
	var told *turnedAway
	if errors.As(err, &told) {
		return // turnAway has recorded it
	}
	if visitor.Ended() {
		err = errFull
	}
	var handshake *kcp.HandshakeError
	if errors.As(err, &handshake) {
		s.warn("handshake failed", "client", addr, "error", handshake)
		return
	}
	if err != nil {
		s.recordAway(addr, err)
		return
	}
	account := s.accounts.enter(identity.name)
	defer s.accounts.leave(identity.name)
	if over, ok := conn.(*carrier.TCP); ok { // it has a descriptor, and yamux no bound for all streams
		if !account.addConn() {
			log.Info("session refused", "user", identity.name, "error", errTooMany)
			_ = conn.Abort(0, "")
			return
		}
		defer account.removeConn()
		over.CountFor(&account.unread)
	}
	c := &serverSession{server: s, identity: identity}
	c.session = session{
		role: c, conn: conn, log: account.records.Limited(log.With("user", identity.name)), begun: time.Now(), tally: s.tallies.begin(conn, identity.name), dials: &s.dials,
		account: account, dialTimeout: s.config.DialTimeout, shutdown: s.config.shutdown, connect: s.config.connect, failed: slog.LevelDebug,
	}
	s.mu.Lock()
	s.begun++
	c.number = s.begun
	s.sessions[c] = true
	s.mu.Unlock()
	defer s.tallies.end(conn, c.tally)
	c.log.Info("session begun", "transport", conn.Transport())
	c.endIfRevoked() // the users may have changed meanwhile
	select {
	case <-s.left: // it has waited while another server took over
		c.serving.Go(c.askToLeave)
	default:
	}
	err = c.serve(ctx, func(context.Context) {}, func() {
		s.mu.Lock()
		delete(s.sessions, c)
		s.mu.Unlock()
	})
	c.log.Info("session ended", "connections", c.opened.Load(), "reason", explain(theClient, err))
}
