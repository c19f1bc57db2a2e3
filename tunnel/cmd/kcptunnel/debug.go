package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/arqnet/kcp/internal/pages"
	"github.com/arqnet/kcp/observe"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/urfave/cli/v3"
)

// look is what there is to see of a process: over HTTP at the address of -debug, and on
// the socket for the command status.
type look struct {
	log        *slog.Logger
	endpoints  observe.Endpoints
	collectors []prometheus.Collector // besides the endpoints and the process
	status     func() *processStatus  // nil: a command without it
	inherited  net.Listener           // of the process before; nil: there is none
	before     string                 // the socket of the process before; empty: there is none

	addr     string // of -debug
	listener net.Listener
	socket   string // empty: there is none
}

// serve serves what there is to see, as the flags say. With hide it gives up the address,
// and with stop the socket as well.
func (l *look) serve(c *cli.Command) (hide, stop func(), err error) {
	l.addr = c.String("debug")
	host, _, _ := net.SplitHostPort(l.addr) // the flag has looked at it
	handler, err := l.handler(host)
	if err != nil {
		return nil, nil, err
	}
	hidden, closed, removed := func() {}, func() {}, func() {}
	if l.addr != "" {
		if l.listener = l.inherited; l.listener == nil {
			if l.listener, err = net.Listen("tcp", l.addr); err != nil {
				return nil, nil, fmt.Errorf("-debug: %w", err)
			}
		}
		hidden, closed = serveHTTP(l.listener, &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: time.Minute})
		l.log.Info("live page", "url", fmt.Sprintf("http://%v/", l.listener.Addr()), "metrics", fmt.Sprintf("http://%v/metrics", l.listener.Addr()))
	}
	if l.status != nil {
		if removed, err = l.serveStatus(c.String(statusFlag), handler); err != nil {
			closed()
			return nil, nil, err
		}
	}
	return hidden, func() { closed(); removed() }, nil
}

// handler returns what serves the page, the metrics, the status and the health.
func (l *look) handler(host string) (http.Handler, error) {
	registry := prometheus.NewRegistry()
	for _, c := range append(append(processCollectors(), &l.endpoints), l.collectors...) {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/", l.endpoints.Handler(host))
	all := prometheus.Gatherers{registry, prometheus.GathererFunc(l.gatherBefore)}
	mux.Handle("/metrics", promhttp.HandlerFor(all, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	if l.status != nil {
		mux.HandleFunc("/status", l.showStatus)
		mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
			if why := l.status().unhealthy(); why != "" {
				http.Error(w, why, http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "ok")
		})
	}
	return pages.Only(mux, host), nil
}

// serveHTTP serves what comes to a listener until hide is called, which lets answers end
// that are under way, or stop, which does not.
func serveHTTP(l net.Listener, server *http.Server) (hide, stop func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // until it is closed
	}()
	hidden := func() { // Shutdown would drop requests that it has not read
		_ = l.Close()
		<-done
		server.SetKeepAlivesEnabled(false)
	}
	return hidden, func() { hidden(); _ = server.Close() }
}

// Variables of the environment of a process that takes the place of another.
const (
	debugEnv  = "KCPTUNNEL_DEBUG"  // the address of -debug, whose listener is inherited
	beforeEnv = "KCPTUNNEL_BEFORE" // the socket of the process before
)

// inherit takes over what pass has passed, with the listener as this file.
func (l *look) inherit(fd uintptr, addr string) {
	passed := os.Getenv(debugEnv)
	l.before = os.Getenv(beforeEnv)
	_, _ = os.Unsetenv(debugEnv), os.Unsetenv(beforeEnv)
	if passed == "" {
		return
	}
	file := os.NewFile(fd, "debug")
	defer file.Close() // FileListener makes a copy
	if passed == addr {
		l.inherited, _ = net.FileListener(file)
	}
}

// pass returns what a process gets that takes the place of this one: variables of the
// environment, and a file, which may be nil.
func (l *look) pass() (env []string, file *os.File, err error) {
	env = []string{beforeEnv + "=" + l.socket}
	tcp, ok := l.listener.(*net.TCPListener)
	if !ok {
		return env, nil, nil
	}
	if file, err = tcp.File(); errors.Is(err, net.ErrClosed) { // another process has it
		return env, nil, nil
	}
	return append(env, debugEnv+"="+l.addr), file, err
}
