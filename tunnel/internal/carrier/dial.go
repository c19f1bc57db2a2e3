package carrier

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/arqnet/kcp"
	"golang.org/x/net/proxy"
)

// Dialer dials sessions over TCP.
type Dialer struct {
	Config *kcp.Config
	Net    net.Dialer
	Proxy  *url.URL // of http, https or socks5; nil: none
}

// defaultDialTimeout is that of package kcp.
const defaultDialTimeout = 10 * time.Second

// maxAnswer is how many bytes the answer of a proxy may have.
const maxAnswer = 16 << 10

// Dial returns a session with an address, whose handshake is over.
func (d *Dialer) Dial(ctx context.Context, address string) (*TCP, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(max(d.Config.DialTimeout, 0), defaultDialTimeout))
	defer cancel()
	conn, err := d.connect(ctx, address)
	if err != nil {
		return nil, err
	}
	config := *d.Config
	config.TLS = named(config.TLS, address)
	c := NewTCP(conn, &config, true)
	if err := c.handshake(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// named returns settings for the host of an address, unless they have a name.
func named(config *tls.Config, address string) *tls.Config {
	host, _, _ := net.SplitHostPort(address)
	config = config.Clone()
	config.ServerName = cmp.Or(config.ServerName, host)
	return config
}

// CheckProxy returns what is wrong with the address of a proxy.
func CheckProxy(u *url.URL) error {
	if !slices.Contains([]string{"http", "https", "socks5"}, u.Scheme) || u.Hostname() == "" || u.Port() == "" {
		return errors.New("want http://, https:// or socks5://, [USER:PASSWORD@], and HOST:PORT of the proxy")
	}
	return nil
}

// connect returns a connection with an address, through the proxy if there is one.
func (d *Dialer) connect(ctx context.Context, address string) (net.Conn, error) {
	if d.Proxy == nil {
		return d.Net.DialContext(ctx, "tcp", address)
	}
	password, _ := d.Proxy.User.Password()
	user := d.Proxy.User.Username()
	if d.Proxy.Scheme == "socks5" {
		var auth *proxy.Auth
		if user != "" {
			auth = &proxy.Auth{User: user, Password: password}
		}
		through, err := proxy.SOCKS5("tcp", d.Proxy.Host, auth, &d.Net)
		if err != nil {
			return nil, err
		}
		return through.(proxy.ContextDialer).DialContext(ctx, "tcp", address)
	}
	conn, err := d.Net.DialContext(ctx, "tcp", d.Proxy.Host)
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	if d.Proxy.Scheme == "https" {
		conn = tls.Client(conn, &tls.Config{ServerName: d.Proxy.Hostname()})
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	request := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: make(http.Header)}
	if user != "" {
		request.SetBasicAuth(user, password)
		request.Header["Proxy-Authorization"] = request.Header["Authorization"]
		request.Header.Del("Authorization")
	}
	if err = ask(conn, request); !stop() {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("proxy %s: %w", d.Proxy.Host, err)
	}
	return conn, nil
}

// ask has a proxy connect a connection with what the request names (RFC 9110 §9.3.6).
func ask(conn net.Conn, request *http.Request) error {
	if err := request.Write(conn); err != nil {
		return err
	}
	// What is read ahead is nothing: the server waits for the client's first words.
	response, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, maxAnswer)), request)
	switch {
	case err != nil:
		return fmt.Errorf("no answer of HTTP: %w", err)
	case response.StatusCode == http.StatusProxyAuthRequired:
		return errors.New("it wants another user and password: -proxy http://USER:PASSWORD@HOST:PORT")
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("it refuses %s with status %d; many let port 443 pass alone (-tcp-port)", request.Host, response.StatusCode)
	}
	return nil
}
