package observe

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/arqnet/kcp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v2"
)

// rule is a rule of Prometheus, to record a series or for an alert.
type rule struct {
	Record, Alert, Expr, For string
	Labels, Annotations      map[string]string
}

// rules returns all rules. What Prometheus does not know in their file is an error.
func rules(t *testing.T) (all []rule) {
	t.Helper()
	file, err := os.ReadFile("prometheus/kcp.rules.yml")
	require.NoError(t, err)
	var groups struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	require.NoError(t, yaml.UnmarshalStrict(file, &groups))
	for _, g := range groups.Groups {
		require.NotEmpty(t, g.Name)
		all = append(all, g.Rules...)
	}
	require.NotEmpty(t, all)
	return all
}

// series are label sets by the name of their metric.
type series map[string][]map[string]string

// exported returns all series of two endpoints with sessions between them.
func exported(t *testing.T) series {
	t.Helper()
	out := make(series)
	busy(t, 2, func(t *testing.T, s *Endpoints, _, _ *kcp.Endpoint, _ []*kcp.Conn) {
		r := prometheus.NewPedanticRegistry()
		require.NoError(t, r.Register(s))
		families, err := r.Gather()
		require.NoError(t, err)
		for _, f := range families {
			for _, m := range f.Metric {
				labels := make(map[string]string)
				for _, l := range m.Label {
					labels[l.GetName()] = l.GetValue()
				}
				out[f.GetName()] = append(out[f.GetName()], labels)
			}
		}
	})
	require.NotEmpty(t, out)
	return out
}

var (
	selector = regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*kcp_[a-zA-Z0-9_:]*|kcp_[a-zA-Z0-9_:]*)(\{[^}]*\})?`)
	matcher  = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
)

// scraped are the labels that Prometheus adds to every series.
var scraped = map[string]bool{"job": true, "instance": true}

// requireKnown wants each selector of an expression to name a series that is exported,
// with labels that it has, or one that a rule records.
func (all series) requireKnown(t *testing.T, where, expr string, recorded map[string]bool) (names []string) {
	t.Helper()
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		name := m[1]
		names = append(names, name)
		if recorded[name] {
			continue
		}
		require.Contains(t, all, name, "%s: no metric of the collector", where)
		require.True(t, all.matched(t, name, m[2]), "%s: no series %s%s", where, name, m[2])
	}
	require.NotEmpty(t, names, "%s: no series in %q", where, expr)
	return names
}

// matched reports whether a series of a name has what matchers say. Those with variables
// of a dashboard, and those of labels that Prometheus adds, match all.
func (all series) matched(t *testing.T, name, matchers string) bool {
	t.Helper()
	for _, labels := range all[name] {
		ok := true
		for _, m := range matcher.FindAllStringSubmatch(matchers, -1) {
			value, has := labels[m[1]]
			switch {
			case scraped[m[1]]:
			case !has:
				ok = false
			case strings.Contains(m[3], "$"):
			default:
				equal := value == m[3]
				if strings.HasSuffix(m[2], "~") {
					equal = regexp.MustCompile("^(?:" + m[3] + ")$").MatchString(value)
				}
				ok = ok && equal == strings.HasPrefix(m[2], "=")
			}
		}
		if ok {
			return true
		}
	}
	return false
}

// recordedBy returns the names that the rules record.
func recordedBy(all []rule) map[string]bool {
	names := make(map[string]bool)
	for _, r := range all {
		names[r.Record] = r.Record != ""
	}
	return names
}

// Rules are about series that the collector exports, and each alert says what it is about,
// and has a test.
func TestRulesOfPrometheus(t *testing.T) {
	all, live := rules(t), exported(t)
	recorded := recordedBy(all)
	unit, err := os.ReadFile("prometheus/kcp.rules_test.yml")
	require.NoError(t, err)
	for _, r := range all {
		live.requireKnown(t, r.Record+r.Alert, r.Expr, recorded)
		if r.Alert == "" {
			continue
		}
		require.Contains(t, []string{"critical", "warning", "info"}, r.Labels["severity"], r.Alert)
		require.NotEmpty(t, r.Annotations["summary"], r.Alert)
		require.Contains(t, r.Annotations["description"], "{{ $value", r.Alert)
		require.Contains(t, string(unit), "alertname: "+r.Alert+"\n        exp_alerts:", "its test")
	}
}

// promtool takes the rules, and their tests pass.
func TestRulesByPromtool(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed (Debian: apt-get install prometheus)")
	}
	for _, args := range [][]string{
		{"check", "rules", "kcp.rules.yml"}, {"test", "rules", "kcp.rules_test.yml"},
		{"check", "rules", "kcptunnel.rules.yml"}, {"test", "rules", "kcptunnel.rules_test.yml"},
	} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = "prometheus"
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}
