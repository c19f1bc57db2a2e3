package observe

import (
	"slices"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/stats"
	"github.com/prometheus/client_golang/prometheus"
)

// maxRTTs is how many sessions of an endpoint the round-trip times are taken
// of. More would not change quantiles.
const maxRTTs = 10000

// Describe implements prometheus.Collector.
func (s *Endpoints) Describe(to chan<- *prometheus.Desc) {
	for _, m := range metrics() {
		to <- m.desc()
	}
	to <- rttDesc()
	to <- rttMinDesc()
	to <- queueingDesc()
	to <- sendingDesc()
	to <- lossyDesc()
	to <- losingDesc()
}

// Collect implements prometheus.Collector. It takes the lock of each session for
// a moment, about a microsecond of each.
func (s *Endpoints) Collect(to chan<- prometheus.Metric) {
	seen := make(map[string]bool)
	for _, n := range s.set.All() {
		if seen[n.Name] {
			continue // Prometheus takes no metric twice
		}
		seen[n.Name] = true
		stats, totals := n.Endpoint.Stats(), n.Endpoint.Totals()
		for _, m := range metrics() {
			m.collect(n.Name, &stats, &totals, to)
		}
		rtt, least, queueing := rtts(n.Endpoint)
		collectShares(rttDesc(), n.Name, rtt, to)
		collectShares(rttMinDesc(), n.Name, least, to)
		collectShares(queueingDesc(), n.Name, queueing, to)
		s.losses.of(n.Endpoint).collect(n.Name, to)
	}
}

// metric is one metric: a value for each value of its label, if it has one.
type metric struct {
	name, help string
	label      string // besides "endpoint"; empty: none
	kind       prometheus.ValueType
	values     func(s *stats.Endpoint, t *stats.Totals) []value
}

// value is a figure of a metric, with the value of its label.
type value struct {
	label string
	n     float64
}

func (m *metric) desc() *prometheus.Desc {
	labels := []string{"endpoint"}
	if m.label != "" {
		labels = append(labels, m.label)
	}
	return prometheus.NewDesc("kcp_"+m.name, m.help, labels, nil)
}

func (m *metric) collect(endpoint string, s *stats.Endpoint, t *stats.Totals, to chan<- prometheus.Metric) {
	desc := m.desc()
	for _, v := range m.values(s, t) {
		labels := []string{endpoint}
		if m.label != "" {
			labels = append(labels, v.label)
		}
		to <- prometheus.MustNewConstMetric(desc, m.kind, v.n, labels...)
	}
}

// rtts returns the round-trip times of up to maxRTTs sessions that have one, the shortest
// of their paths, and by how much the first exceed these, all sorted.
func rtts(e *kcp.Endpoint) (all, least, queueing []time.Duration) {
	looked := 0
	for c := range e.Sessions() {
		if looked++; looked > maxRTTs {
			break
		}
		stats := c.Stats()
		if stats.RTT > 0 {
			all = append(all, stats.RTT)
		}
		if stats.RTT > 0 && stats.RTTMin > 0 {
			least = append(least, stats.RTTMin)
			queueing = append(queueing, max(stats.RTT-stats.RTTMin, 0))
		}
	}
	slices.Sort(all)
	slices.Sort(least)
	slices.Sort(queueing)
	return all, least, queueing
}

func rttMinDesc() *prometheus.Desc {
	return prometheus.NewDesc("kcp_session_rtt_min_seconds", "Quantiles, over the first 10000 open sessions, of the shortest "+
		"round-trip time of the path.", []string{"endpoint", "share"}, nil)
}

func queueingDesc() *prometheus.Desc {
	return prometheus.NewDesc("kcp_session_queueing_seconds", "Quantiles, over the first 10000 open sessions, of how much the round-trip time exceeds the shortest of "+
		"the path, mostly in queues.", []string{"endpoint", "share"}, nil)
}

func rttDesc() *prometheus.Desc {
	return prometheus.NewDesc("kcp_session_rtt_seconds", "Quantiles, over the first 10000 open sessions, of the smoothed "+
		"round-trip time.", []string{"endpoint", "share"}, nil)
}

// collectShares writes quantiles of sorted times.
func collectShares(desc *prometheus.Desc, endpoint string, all []time.Duration, to chan<- prometheus.Metric) {
	if len(all) == 0 {
		return
	}
	for _, q := range []struct {
		label string
		share float64
	}{{"0.5", 0.5}, {"0.9", 0.9}, {"0.99", 0.99}, {"1", 1}} {
		i := min(int(q.share*float64(len(all))), len(all)-1)
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, all[i].Seconds(), endpoint, q.label)
	}
}
