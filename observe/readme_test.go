package observe

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/arqnet/kcp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// table returns the table of README.md: a row for each metric that the collector exports.
func table(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	out.WriteString("| metric | type | labels besides `endpoint` | what it is |\n| --- | --- | --- | --- |\n")
	busy(t, 2, func(t *testing.T, s *Endpoints, _, _ *kcp.Endpoint, _ []*kcp.Conn) {
		r := prometheus.NewPedanticRegistry()
		require.NoError(t, r.Register(s))
		families, err := r.Gather()
		require.NoError(t, err)
		for _, f := range families {
			values := make(map[string][]string)
			for _, m := range f.Metric {
				for _, l := range m.Label {
					if n := l.GetName(); n != "endpoint" && !slices.Contains(values[n], l.GetValue()) {
						values[n] = append(values[n], l.GetValue())
					}
				}
			}
			label := ""
			for n, v := range values {
				label = fmt.Sprintf("`%s`: %s", n, strings.Join(v, ", "))
			}
			kind := strings.ToLower(f.GetType().String())
			fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", f.GetName(), kind, label, f.GetHelp())
		}
	})
	return out.String()
}

// README.md lists the metrics as the collector exports them.
func TestReadmeListsMetrics(t *testing.T) {
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	want := table(t)
	_, got, ok := strings.Cut(string(page), "\n## Metrics\n")
	require.True(t, ok)
	_, got, ok = strings.Cut(got, "\n| metric")
	require.True(t, ok)
	got, _, _ = strings.Cut("| metric"+got, "\n\n")
	require.Equal(t, want, strings.TrimRight(got, "\n")+"\n")
}
