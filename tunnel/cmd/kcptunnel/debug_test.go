package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What -debug serves is no business of a page whose name resolves to its address (DNS
// rebinding): the page, its figures, and the metrics.
func TestDebugChecksTheHost(t *testing.T) {
	s := serve(t, everyone, "-debug", "127.0.0.1:0")
	base := strings.TrimSuffix(s.err.Find(t, `metrics=(\S+)`), "metrics")
	for _, path := range []string{"", "stats.json", "metrics"} {
		for host, want := range map[string]int{"": http.StatusOK, "localhost:1": http.StatusOK, "evil.example": http.StatusMisdirectedRequest} {
			r, err := http.NewRequest(http.MethodGet, base+path, nil)
			require.NoError(t, err)
			r.Host = host
			answer, err := http.DefaultClient.Do(r)
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
			require.Equal(t, want, answer.StatusCode, "%s for %q", path, host)
		}
	}
}
