package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/arqnet/kcp/internal/pages"
	"github.com/arqnet/kcp/observe"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// serveDebug serves the live page and metrics at an address, which may be empty: then
// it serves nothing. It returns the endpoints to show. The metrics are about the
// endpoints, of the process, and of the other collectors.
func serveDebug(addr string, log *slog.Logger, others ...prometheus.Collector) (*observe.Endpoints, func(), error) {
	endpoints := new(observe.Endpoints)
	if addr == "" {
		return endpoints, func() {}, nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, nil, fmt.Errorf("-debug: %w", err)
	}
	registry := prometheus.NewRegistry()
	for _, c := range append(append(processCollectors(), endpoints), others...) {
		if err := registry.Register(c); err != nil {
			_ = l.Close()
			return nil, nil, err
		}
	}
	host, _, _ := net.SplitHostPort(addr) // the flag has looked at it
	mux := http.NewServeMux()
	mux.Handle("/", endpoints.Handler(host))
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: pages.Only(mux, host), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // until close
	}()
	log.Info("live page", "url", fmt.Sprintf("http://%v/", l.Addr()), "metrics", fmt.Sprintf("http://%v/metrics", l.Addr()))
	return endpoints, func() {
		_ = server.Close()
		<-done
	}, nil
}
