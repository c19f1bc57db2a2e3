package observe_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/observe"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// A server with metrics for Prometheus, and the live page beside them.
func Example() {
	l, err := kcp.Listen("udp", "127.0.0.1:0", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()

	var endpoints observe.Endpoints
	endpoints.Add("game", l.Endpoint())
	registry := prometheus.NewRegistry()
	registry.MustRegister(&endpoints)

	mux := http.NewServeMux() // to be served on the loopback interface
	mux.Handle("/debug/kcp/", endpoints.Handler())
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))

	for _, path := range []string{"/debug/kcp/", "/debug/kcp/stats.json", "/metrics"} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost"+path, nil))
		fmt.Println(path, w.Code)
	}
	// Output:
	// /debug/kcp/ 200
	// /debug/kcp/stats.json 200
	// /metrics 200
}
