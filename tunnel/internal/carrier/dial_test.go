package carrier

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
	"github.com/things-go/go-socks5"
)

// connectProxy returns the address of a proxy for "me:secret" that connects with one
// address only.
func connectProxy(t *testing.T, only string) string {
	t.Helper()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header["Authorization"] = r.Header["Proxy-Authorization"]
		user, password, _ := r.BasicAuth()
		switch {
		case r.Method != http.MethodConnect || user+password != "mesecret":
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		case r.Host != only:
			w.WriteHeader(http.StatusForbidden)
			return
		}
		out, err := net.Dial("tcp", r.Host)
		require.NoError(t, err)
		in, _, err := http.NewResponseController(w).Hijack()
		require.NoError(t, err)
		_, _ = io.WriteString(in, "HTTP/1.1 200 OK\r\n\r\n")
		go func() {
			_, _ = io.Copy(in, out)
			_ = in.Close()
		}()
		_, _ = io.Copy(out, in)
		_ = out.Close()
	}))
	t.Cleanup(proxy.Close)
	return strings.TrimPrefix(proxy.URL, "http://")
}

// Proxies connect the client with the server, or say what is wrong.
func TestProxies(t *testing.T) {
	config := settings(t)
	at := testenv.Target(t, func(conn *net.TCPConn) {
		c := NewTCP(conn, config, false)
		if hello, err := c.AcceptStream(t.Context()); err == nil {
			_, _ = io.Copy(hello, hello)
		}
	})
	through := connectProxy(t, at)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	socks := socks5.NewServer(socks5.WithCredential(socks5.StaticCredentials{"me": "secret"}))
	go func() { _ = socks.Serve(l) }()
	silent := testenv.Target(t, func(conn *net.TCPConn) { _, _ = io.WriteString(conn, strings.Repeat("x", 2*maxAnswer)) })
	for _, c := range []struct{ proxy, address, fails string }{
		{"http://me:secret@" + through, at, ""},
		{"socks5://me:secret@" + l.Addr().String(), at, ""},
		{"http://me:wrong@" + through, at, "it wants another user and password"},
		{"http://" + through, at, "-proxy http://USER:PASSWORD@HOST:PORT"},
		{"http://me:secret@" + through, "127.0.0.1:1", "status 403; many let port 443 pass alone"},
		{"http://" + silent, at, "no answer of HTTP"},
		{"socks5://me:wrong@" + l.Addr().String(), at, "socks connect"},
		{"http://127.0.0.1:1", at, "proxy: "},
	} {
		u, err := url.Parse(c.proxy)
		require.NoError(t, err)
		require.NoError(t, CheckProxy(u))
		d := Dialer{Config: config, Proxy: u}
		conn, err := d.Dial(t.Context(), c.address)
		if c.fails != "" {
			require.ErrorContains(t, err, c.fails)
			require.NotContains(t, err.Error(), "secret")
			continue
		}
		require.NoError(t, err)
		hello, err := conn.OpenStream(t.Context(), nil)
		require.NoError(t, err)
		_, err = io.WriteString(hello, "hello")
		require.NoError(t, err)
		echo := make([]byte, 5)
		_, err = io.ReadFull(hello, echo)
		require.NoError(t, err)
		require.Equal(t, "hello", string(echo))
		require.NoError(t, conn.Close())
	}
	for _, text := range []string{"ftp://host:1", "http://host", "//host:1", "socks5://:1080"} {
		u, err := url.Parse(text)
		require.NoError(t, err)
		require.Error(t, CheckProxy(u), text)
	}
}
