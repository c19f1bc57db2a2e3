// Command observe-user serves the metrics of a listener once, and prints a line of
// them.
package main

import (
	"fmt"
	"log"
	"net/http/httptest"
	"strings"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/observe"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

func main() {
	l, err := kcp.Listen("udp", "127.0.0.1:0", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	var endpoints observe.Endpoints
	endpoints.Add("test", l.Endpoint())
	registry := prometheus.NewRegistry()
	registry.MustRegister(&endpoints)

	w := httptest.NewRecorder()
	handler := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	handler.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "kcp_") {
			fmt.Print("observe: ", line)
			return
		}
	}
	log.Fatalf("no metric of kcp in %q", w.Body)
}
