package observe

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// panel is a panel of a dashboard of Grafana; a row has the title of those below it.
type panel struct {
	ID         int
	Type       string
	Title      string
	Datasource struct{ UID string }
	GridPos    struct{ X, Y, W, H int }
	Targets    []struct{ RefID, Expr, LegendFormat string }
}

// dashboard is what the test knows of a dashboard.
type dashboard struct {
	UID, Title string
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
	Panels []panel
}

// readDashboard returns the dashboard.
func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	file, err := os.ReadFile("grafana/kcp.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(file, &d))
	return d
}

// The dashboard shows series that the collector exports, of what its variables choose,
// and its panels have places of their own.
func TestDashboard(t *testing.T) {
	d, live := readDashboard(t), exported(t)
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
		if v.Type == "query" {
			live.requireKnown(t, v.Name, v.Definition, nil)
		}
	}
	require.Equal(t, []string{"datasource", "job", "instance", "endpoint"}, variables)
	ids := make(map[int]bool)
	shown := make(map[string]bool)
	taken := make(map[[2]int]string)
	for _, p := range d.Panels {
		require.False(t, ids[p.ID], p.Title)
		ids[p.ID] = true
		at := p.GridPos
		require.LessOrEqual(t, at.X+at.W, 24, p.Title)
		for x := at.X; x < at.X+at.W; x++ {
			for y := at.Y; y < at.Y+at.H; y++ {
				require.Empty(t, taken[[2]int{x, y}], "%s covers it", p.Title)
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		require.Equal(t, "${datasource}", p.Datasource.UID, p.Title)
		require.NotEmpty(t, p.Targets, p.Title)
		for i, q := range p.Targets {
			require.Equal(t, string(rune('A'+i)), q.RefID, p.Title)
			require.NotEmpty(t, q.LegendFormat, p.Title)
			if n := strings.Count(q.Expr, "kcptunnel_"); n > 0 { // whose names the tunnel's tests know
				require.Equal(t, n, strings.Count(q.Expr, `{job=~"$job",instance=~"$instance"}`), "%s: %s", p.Title, q.Expr)
				continue
			}
			for _, name := range live.requireKnown(t, p.Title, q.Expr, nil) {
				shown[name] = true
			}
			chosen := `job=~"$job",instance=~"$instance",endpoint=~"$endpoint"`
			require.Equal(t, strings.Count(q.Expr, "kcp_"), strings.Count(q.Expr, chosen), "%s: %s", p.Title, q.Expr)
		}
	}
	for _, r := range rules(t) { // what there is an alert on can be looked at
		for _, m := range selector.FindAllStringSubmatch(r.Expr, -1) {
			require.True(t, shown[m[1]] || strings.Contains(m[1], ":"), "no panel shows %s", m[1])
		}
	}
}

// promtool can parse every expression of the dashboard.
func TestDashboardByPromtool(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed (Debian: apt-get install prometheus)")
	}
	var file strings.Builder
	file.WriteString("groups:\n- name: dashboard\n  rules:\n")
	var all []string
	for _, p := range readDashboard(t).Panels {
		for _, q := range p.Targets {
			all = append(all, strings.ReplaceAll(q.Expr, "$__rate_interval", "5m"))
		}
	}
	slices.Sort(all)
	for _, expr := range slices.Compact(all) { // promtool refuses duplicates
		quoted, err := json.Marshal(expr)
		require.NoError(t, err)
		file.WriteString("  - record: shown\n    expr: " + string(quoted) + "\n")
		file.WriteString("    labels: {expr: " + string(quoted) + "}\n")
	}
	path := t.TempDir() + "/dashboard.yml"
	require.NoError(t, os.WriteFile(path, []byte(file.String()), 0o600))
	out, err := exec.Command(promtool, "check", "rules", path).CombinedOutput()
	require.NoError(t, err, "%s", out)
}
