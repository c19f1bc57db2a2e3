package kcptun

import (
	"context"
	"crypto/pbkdf2"
	"crypto/sha1"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"strings"
	"time"

	engine "github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/fair"
	kcp "github.com/arqnet/kcp/kcpgo"
	"github.com/xtaci/smux"
)

// Config holds the settings of a Server or a Client, as kcptun names them. Both ends
// need the same Key, Crypt, DataShard, ParityShard, NoComp and SmuxVer.
type Config struct {
	// Listen is where a server listens for sessions, and a client for connections. A
	// server may have a range of up to 4096 ports, as in :3000-3009, with a socket each.
	Listen string
	// Target is where a server's connections go: host:port, or the path of a Unix
	// socket; and to which server a client's go. In a range of ports, each session of a
	// client takes one at random.
	Target string

	Key   string // password
	Crypt string // cipher, one of Ciphers

	// Mode is "normal", "fast", "fast2" or "fast3", which set the four numbers of
	// kcp-go's SetNoDelay, or "manual".
	Mode                                    string
	NoDelay, Interval, Resend, NoCongestion int

	// RateLimit is how many bytes a session sends in a second at most; 0: any number.
	RateLimit int
	// MTU is the size of the largest packet in bytes of UDP payload, 256 to 1500.
	MTU int
	// SndWnd and RcvWnd are the windows in packets.
	SndWnd, RcvWnd int
	// DataShard packets are followed by ParityShard packets of error correction. 0:
	// none.
	DataShard, ParityShard int
	// DSCP is the class of packets (RFC 2474), of 6 bits.
	DSCP int
	// NoComp leaves out the compression.
	NoComp bool
	// SockBuf is the size of the socket's buffers in bytes.
	SockBuf int
	// SmuxVer is the version of smux, 1 or 2.
	SmuxVer int
	// SmuxBuf is how many bytes a session may buffer, and StreamBuf a stream, with
	// version 2.
	SmuxBuf, StreamBuf int
	// FrameSize is the size of the largest frame of smux in bytes, up to 65535.
	FrameSize int
	// KeepAlive is the time between signs of life. It is up to a year (8760 h), as are
	// the other times.
	KeepAlive time.Duration
	// CloseWait is how long one direction of a connection goes on without bytes
	// behind the end of the other.
	CloseWait time.Duration
	// Conn is how many sessions a client has, up to 1024.
	Conn int
	// AutoExpire is after how long a client's session takes no more connections; 0:
	// it always does. It is closed after ScavengeTTL more; if that is negative, not at
	// all.
	AutoExpire, ScavengeTTL time.Duration
	// QuietConnections leaves connections out of the log.
	QuietConnections bool

	// Listening, if not nil, is called with the address where connections or sessions
	// are accepted from now on.
	Listening func(net.Addr)
	// Observe, if not nil, is called with the endpoint of each listener, or of each
	// session of a client, and what it returns when that ends. Endpoints.Add of package
	// observe is such a function.
	Observe func(name string, e *engine.Endpoint) (forget func())
	// Logger receives what happens; nil: nothing does.
	Logger *slog.Logger

	server ports                                             // that listens
	lookUp func(context.Context, string) (netip.Addr, error) // of the server's name
}

// PublicKey is the key that kcptun has if none is given, so everybody knows it.
const PublicKey = "it's a secrect"

// ServerDefaults returns kcptun's defaults of a server.
func ServerDefaults() Config {
	c := defaults()
	c.Listen, c.Target, c.SndWnd, c.RcvWnd = ":29900", "127.0.0.1:12948", 1024, 1024
	return c
}

// ClientDefaults returns kcptun's defaults of a client.
func ClientDefaults() Config {
	c := defaults()
	c.Listen, c.Target, c.SndWnd, c.RcvWnd = ":12948", "vps:29900", 128, 512
	return c
}

// defaults returns the defaults of both.
func defaults() Config {
	return Config{
		Key: PublicKey, Crypt: "aes", Mode: "fast", Interval: 50, MTU: 1350, DataShard: 10, ParityShard: 3,
		SockBuf: 4194304, SmuxVer: 1, SmuxBuf: 4194304, StreamBuf: 2097152, FrameSize: 8192,
		KeepAlive: 10 * time.Second, CloseWait: 30 * time.Second, Conn: 1, ScavengeTTL: 10 * time.Minute,
	}
}

// Ciphers returns the names of ciphers.
func Ciphers() []string {
	var all []string
	for _, c := range ciphers() {
		all = append(all, c.name)
	}
	return all
}

// cipher is one that kcptun has.
type cipher struct {
	name string
	size int // bytes of its key
	make func(key []byte) (kcp.BlockCrypt, error)
}

func ciphers() []cipher {
	return []cipher{
		{"aes", 32, kcp.NewAESBlockCrypt},
		{"aes-128", 16, kcp.NewAESBlockCrypt},
		{"aes-192", 24, kcp.NewAESBlockCrypt},
		{"aes-128-gcm", 16, kcp.NewAESGCMCrypt},
		{"salsa20", 32, kcp.NewSalsa20BlockCrypt},
		{"blowfish", 32, kcp.NewBlowfishBlockCrypt},
		{"twofish", 32, kcp.NewTwofishBlockCrypt},
		{"cast5", 16, kcp.NewCast5BlockCrypt},
		{"3des", 24, kcp.NewTripleDESBlockCrypt},
		{"tea", 16, kcp.NewTEABlockCrypt},
		{"xtea", 16, kcp.NewXTEABlockCrypt},
		{"sm4", 16, kcp.NewSM4BlockCrypt},
		{"xor", 32, kcp.NewSimpleXORBlockCrypt},
		{"none", 32, kcp.NewNoneBlockCrypt},
		{"null", 0, nil}, // no header either
	}
}

// block returns the cipher with the key that kcptun derives from the password.
func (c *Config) block() (kcp.BlockCrypt, error) {
	for _, one := range ciphers() {
		if one.name != c.Crypt {
			continue
		}
		if one.make == nil {
			return nil, nil
		}
		key, err := pbkdf2.Key(sha1.New, c.Key, []byte("kcp-go"), 4096, 32)
		if err != nil {
			return nil, err
		}
		return one.make(key[:one.size])
	}
	return nil, mistake("crypt %q is not one of %s", c.Crypt, strings.Join(Ciphers(), ", "))
}

// SettingError is a mistake in a Config.
type SettingError struct{ text string }

func (e *SettingError) Error() string { return e.text }

// mistake returns a SettingError.
func mistake(format string, args ...any) error {
	return &SettingError{fmt.Sprintf(format, args...)}
}

// CheckServer returns what Serve would find wrong in the settings.
func CheckServer(c Config) error { return c.prepareServer() }

// CheckClient returns what Run would find wrong in the settings.
func CheckClient(c Config) error { return c.prepareClient() }

// prepareServer is prepare for a server.
func (c *Config) prepareServer() (err error) {
	if c.server, err = parsePorts(c.Listen); err != nil {
		return err
	}
	if n := len(c.server.all()); n > maxPorts {
		return mistake("%s are %d ports, more than %d", c.Listen, n, maxPorts)
	}
	return c.prepare()
}

// prepareClient is prepare for a client.
func (c *Config) prepareClient() (err error) {
	if c.server, err = parsePorts(c.Target); err != nil {
		return err
	}
	if c.server.first == 0 {
		return mistake("address %q: want the port of a server", c.Target)
	}
	if c.lookUp == nil {
		c.lookUp = lookUp
	}
	return c.prepare()
}

// prepare checks the settings, and sets what Mode says.
func (c *Config) prepare() error {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Logger = new(fair.Records).Limited(c.Logger) // peers and applications cause records
	switch c.Mode {
	case "normal":
		c.NoDelay, c.Interval, c.Resend, c.NoCongestion = 0, 40, 2, 1
	case "fast":
		c.NoDelay, c.Interval, c.Resend, c.NoCongestion = 0, 30, 2, 1
	case "fast2":
		c.NoDelay, c.Interval, c.Resend, c.NoCongestion = 1, 20, 2, 1
	case "fast3":
		c.NoDelay, c.Interval, c.Resend, c.NoCongestion = 1, 10, 2, 1
	case "manual":
	default:
		return mistake("mode %q is not one of normal, fast, fast2, fast3, manual", c.Mode)
	}
	switch {
	case c.Key == "" && c.Crypt != "null" && c.Crypt != "none":
		return mistake("the key is empty")
	case c.MTU < 256 || c.MTU > 1500:
		return mistake("mtu %d is not from 256 to 1500", c.MTU)
	case c.RateLimit < 0 || int64(c.RateLimit) > math.MaxUint32:
		return mistake("ratelimit %d is not from 0 to %d", c.RateLimit, uint32(math.MaxUint32))
	case c.SndWnd < 1 || c.RcvWnd < 1:
		return mistake("windows of %d and %d packets: want 1 at least", c.SndWnd, c.RcvWnd)
	case c.DataShard < 0 || c.ParityShard < 0 || c.DataShard+c.ParityShard > 256:
		return mistake("%d data and %d parity shards: want 256 together at most", c.DataShard, c.ParityShard)
	case c.Conn < 1 || c.Conn > maxConn:
		return mistake("conn %d is not from 1 to %d", c.Conn, maxConn)
	case min(c.KeepAlive, c.AutoExpire) < 0 || max(c.KeepAlive, c.CloseWait, c.AutoExpire, c.ScavengeTTL) > maxTime:
		return mistake("keepalive, closewait and autoexpire are from 0 to %v, and scavengettl no more", maxTime)
	case c.CloseWait <= 0:
		c.CloseWait = time.Millisecond
	}
	if err := smux.VerifyConfig(c.smux()); err != nil {
		return mistake("smux: %v", err)
	}
	return nil
}

// maxTime is the longest time that may be set: sums of it do not come around.
const maxTime = 365 * 24 * time.Hour

// maxConn is the most sessions of a client.
const maxConn = 1024

// smux returns the settings of smux.
func (c *Config) smux() *smux.Config {
	s := smux.DefaultConfig()
	s.Version, s.MaxReceiveBuffer, s.MaxStreamBuffer, s.MaxFrameSize = c.SmuxVer, c.SmuxBuf, c.StreamBuf, c.FrameSize
	s.KeepAliveInterval, s.KeepAliveTimeout = c.KeepAlive, max(3*c.KeepAlive, 30*time.Second)
	return s
}

// tune applies the settings to a session.
func (c *Config) tune(s *kcp.UDPSession) {
	s.SetStreamMode(true)
	s.SetNoDelay(c.NoDelay, c.Interval, c.Resend, c.NoCongestion)
	s.SetWindowSize(c.SndWnd, c.RcvWnd)
	s.SetMtu(c.MTU)
	s.SetRateLimit(uint32(c.RateLimit))
}

// tuneSocket applies the settings to the socket of a session or a listener. A system
// may refuse them.
func (c *Config) tuneSocket(s socket) {
	for name, err := range map[string]error{
		"DSCP": s.SetDSCP(c.DSCP), "receive buffer": s.SetReadBuffer(c.SockBuf), "send buffer": s.SetWriteBuffer(c.SockBuf),
	} {
		if err != nil {
			c.Logger.Debug("the system did not grant the size", "what", name, "error", err)
		}
	}
}

// socket is a session of a client, or a listener.
type socket interface {
	SetDSCP(int) error
	SetReadBuffer(int) error
	SetWriteBuffer(int) error
}
