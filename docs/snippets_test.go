package docs

import (
	"context"
	"crypto/aes"
	"crypto/pbkdf2"
	"crypto/sha1"
	"crypto/tls"
	"errors"
	"expvar"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/crypt"
)

// TestSnippets checks that every piece of Go in the pages, in README and in the
// package's documentation stands in the code of this folder or in the programs of
// examples/echo, grpc, http and transfer, line by line, so that it compiles. A line of three dots stands for what is left out.
func TestSnippets(t *testing.T) {
	var code strings.Builder
	sources, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	sources = append(sources, "../examples/echo/server/main.go", "../examples/echo/client/main.go",
		"../examples/http/main.go", "../examples/transfer/owners.go", "../examples/grpc/main.go", "../examples/grpc/credentials.go")
	for _, source := range sources {
		text, err := os.ReadFile(source)
		require.NoError(t, err)
		code.WriteString(unindented(string(text)))
	}
	pages, err := filepath.Glob("*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	for _, page := range append(pages, "../README.md", "../kcp.go") {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		snippets := markdownSnippets(string(text))
		if strings.HasSuffix(page, ".go") {
			snippets = commentSnippets(string(text))
		}
		for _, snippet := range snippets {
			require.True(t, strings.Contains(code.String(), unindented(snippet)), "%s has a snippet that is not in the code:\n%s", page, snippet)
		}
	}
}

// leftOut is what stands for lines that are not shown.
var leftOut = regexp.MustCompile(`(?m)^\s*\.\.\.\n`)

// markdownSnippets returns what stands between lines that are left out in the
// blocks of Go of a page.
func markdownSnippets(text string) (snippets []string) {
	for _, block := range strings.Split(text, "```go\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		snippets = append(snippets, leftOut.Split(block, -1)...)
	}
	return snippets
}

// commentSnippets is markdownSnippets for the comment of a package. Blank lines
// part snippets, too.
func commentSnippets(text string) (snippets []string) {
	block := ""
	for _, line := range strings.SplitAfter(text, "\n") {
		if code, ok := strings.CutPrefix(line, "//\t"); ok {
			block += code
		} else if block != "" {
			snippets = append(snippets, leftOut.Split(block, -1)...)
			block = ""
		}
	}
	return snippets
}

// TestLinks checks that what the pages refer to exists: files, and headings in
// these pages.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]*)(#[^)]*)?\)`)
	notWord := regexp.MustCompile(`[^a-z0-9 -]`)
	pages, err := filepath.Glob("*.md")
	require.NoError(t, err)
	for _, page := range append(pages, "../README.md", "../WIRE.md") {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			target := page
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(page), m[1])
				_, err := os.Stat(target)
				require.NoError(t, err, page)
			}
			if m[2] == "" {
				continue
			}
			linked, err := os.ReadFile(target)
			require.NoError(t, err)
			var anchors []string
			for _, line := range strings.Split(string(linked), "\n") {
				if head := strings.TrimLeft(line, "#"); head != line {
					head = notWord.ReplaceAllString(strings.ToLower(strings.TrimSpace(head)), "")
					anchors = append(anchors, "#"+strings.ReplaceAll(head, " ", "-"))
				}
			}
			require.Contains(t, anchors, m[2], "%s: %s", page, m[0])
		}
	}
}

// unindented returns text without the white space at the beginnings of lines,
// after a newline.
func unindented(text string) string {
	var b strings.Builder
	b.WriteString("\n")
	for _, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		b.WriteString(strings.TrimLeft(line, "\t ") + "\n")
	}
	return b.String()
}

// restarting is a code for CloseWithError.
const restarting = 1

func _(addr string) error {
	key, err := pbkdf2.Key(sha1.New, "it's a secrect", []byte("kcp-go"), 4096, 32)
	if err != nil {
		return err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return err
	}
	config := kcp.Config{
		Cipher:        crypt.CFB(block),
		FEC:           kcp.FEC{Data: 10, Parity: 3},
		MTU:           1350,
		SendWindow:    1024,
		ReceiveWindow: 1024,
	}
	conn, err := kcp.Dial("udp", addr, &config)
	_ = conn
	return err
}

func _(ctx context.Context, addr string) error {
	tlsConfig := &tls.Config{ServerName: "game.example.com", NextProtos: []string{"game"}}
	conn, err := kcp.Dial("udp", addr, &kcp.Config{TLS: tlsConfig})
	if err != nil {
		return err
	}
	stream, err := conn.OpenStream(ctx, &kcp.StreamOptions{Priority: 3})
	if err != nil {
		return err
	}
	_, err = stream.Write([]byte("hello"))
	return err
}

func _(addr string) (net.Conn, error) {
	conn, err := kcp.Dial("udp", addr, nil) // was net.Dial("tcp", addr)
	return conn, err
}

func _(addr string) (net.Listener, error) {
	l, err := kcp.Listen("udp", addr, nil) // was net.Listen("tcp", addr)
	return l, err
}

func gameConfig() kcp.Config {
	config := kcp.LowLatency()
	config.Redundancy = 1
	config.KeepAlive = 2 * time.Second
	config.PeerTimeout = 4 * time.Second
	return config
}

func _(ctx context.Context, conn *kcp.Conn) error {
	chat, err := conn.OpenStream(ctx, nil)
	if err != nil {
		return err
	}
	positions, err := conn.OpenStream(ctx, &kcp.StreamOptions{
		Priority:    2,                      // leaves before chat
		MaxLifetime: 100 * time.Millisecond, // then it is not sent any more
		Unordered:   true,
	})
	_, _ = chat, positions
	return err
}

// dialAll opens as many sessions as conns has room for.
func dialAll(ctx context.Context, e *kcp.Endpoint, server net.Addr, conns []*kcp.Conn) (err error) {
	results := make(chan error, len(conns))
	for i := range conns {
		go func() {
			var err error
			conns[i], err = e.Dial(ctx, server, nil)
			results <- err
		}()
	}
	for range conns {
		err = errors.Join(err, <-results)
	}
	return err
}

func _(l *kcp.Listener) {
	expvar.Publish("kcp", expvar.Func(func() any { return l.Endpoint().Stats() }))
}

func drain(l *kcp.Listener, patience time.Duration) {
	_ = l.Close() // no new sessions
	var ending sync.WaitGroup
	for conn := range l.Endpoint().Sessions() {
		ending.Go(func() { _ = conn.CloseWithError(restarting, "restarting") })
	}
	done := make(chan struct{})
	go func() { ending.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
	}
	_ = l.Endpoint().Close() // aborts the rest
}

func reconnect(ctx context.Context, addr string, config *kcp.Config) (*kcp.Conn, error) {
	d := kcp.Dialer{Config: config}
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		conn, err := d.DialContext(ctx, "udp", addr)
		if err == nil {
			return conn.(*kcp.Conn), nil
		}
		if ctx.Err() != nil || hopeless(err) {
			return nil, err
		}
		slog.Warn("no session yet", "server", addr, "error", err)
		// Up to twice as long, so that a thousand clients do not come at once.
		select {
		case <-time.After(wait + rand.N(wait)):
		case <-ctx.Done():
		}
	}
}

// hopeless reports whether dialling again meets the same error. err was returned by Dial,
// or is the one with which the session before has ended.
func hopeless(err error) bool {
	var closed *kcp.PeerCloseError
	var handshake *kcp.HandshakeError
	var alert tls.AlertError
	var setting *kcp.ConfigError
	var name *net.DNSError
	var address *net.AddrError
	var network net.UnknownNetworkError
	switch {
	case errors.As(err, &closed):
		return closed.Code != restarting
	case errors.As(err, &handshake):
		return !(handshake.Remote && errors.As(err, &alert) && alert == internalError)
	case errors.As(err, &name):
		return name.IsNotFound
	}
	return errors.Is(err, kcp.ErrNoTLS) || errors.Is(err, kcp.ErrTLSRequired) || errors.Is(err, net.ErrClosed) ||
		errors.As(err, &setting) || errors.As(err, &address) || errors.As(err, &network)
}

// internalError is the alert of a server that cannot load its certificate, for instance
// (RFC 8446 §6.2).
const internalError tls.AlertError = 80
