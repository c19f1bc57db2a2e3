package main

import (
	"bytes"
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/tunnel"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// collector shows figures to Prometheus. It says only then which series there are.
type collector func(s series)

// Describe implements prometheus.Collector.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) { c(to) }

// series are where a collector writes values, with pairs of labels and their values.
type series chan<- prometheus.Metric

// desc returns the description of a metric, and the values of its labels.
func (s series) desc(name, help string, pairs []string) (d *prometheus.Desc, values []string) {
	var labels []string
	for pair := range slices.Chunk(pairs, 2) {
		labels, values = append(labels, pair[0]), append(values, strings.ToValidUTF8(pair[1], "?"))
	}
	return prometheus.NewDesc("kcptunnel_"+name, help, labels, nil), values
}

func (s series) gauge(name, help string, n int, pairs ...string) {
	d, values := s.desc(name, help, pairs)
	s <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), values...)
}

func (s series) counter(name, help string, n uint64, pairs ...string) {
	d, values := s.desc(name, help, pairs)
	s <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), values...)
}

func (s series) histogram(name, help string, h tunnel.Histogram) {
	buckets := make(map[float64]uint64)
	for i, n := range h.Counts {
		buckets[h.Bounds[i]] = n
	}
	d, _ := s.desc(name, help, nil)
	s <- prometheus.MustNewConstHistogram(d, h.Count, h.Sum, buckets)
}

// carried writes what both ends carry.
func (s series) carried(f *tunnel.Carried) {
	for _, r := range f.Remotes {
		of := []string{"user", r.User, "remote", r.Remote}
		s.counter("remote_sent_bytes_total", "Bytes sent to the other end, by user and remote.", r.Sent, of...)
		s.counter("remote_received_bytes_total", "Bytes received from the other end, by user and remote.", r.Received, of...)
		s.gauge("remote_connections", "Open connections and flows of UDP, by user and remote.", r.Connections, of...)
		s.counter("remote_connections_opened_total", "Connections and flows of UDP opened, by user and remote.", r.Opened, of...)
	}
	for cause, n := range f.TargetsFailed {
		s.counter("targets_failed_total", "Targets that could not be dialled here, by cause.", n, "cause", cause)
	}
	for what, n := range f.Waiting {
		s.gauge("waiting", "Connections that have not gone on for a second, by what they wait for: the target or application takes no data, the path or the other end takes none, or the opening is not answered.", n, "for", what)
	}
	s.histogram("resolve_seconds", "How long it took to look up the names of targets.", f.Resolve)
	s.histogram("connect_seconds", "How long it took to connect with targets of TCP, without looking them up.", f.Connect)
}

// client writes what a client does. How many series that are depends on its command line
// alone.
func (s series) client(f tunnel.ClientFigures) {
	for _, one := range f.Servers {
		of := []string{"server", one.Server, "transport", one.Transport}
		s.gauge("connected", "1 if there is a session with the server, by server and transport.", number(one.Connected), of...)
		s.counter("attempts_total", "Attempts to have a session, by server and transport.", one.Attempts, of...)
		for cause, n := range one.Failed {
			s.counter("attempts_failed_total", "Attempts that failed, and sessions that were lost, by server, transport and cause.", n, append(of, "cause", cause)...)
		}
	}
	s.carried(&f.Carried)
}

// number returns 1 if yes is true, or 0.
func number(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// lastRead says how the files were read: at the start, and later.
type lastRead struct {
	failed atomic.Bool
	read   atomic.Int64 // seconds since 1970, of the last time that it went well
}

// note notes how it went.
func (r *lastRead) note(ok bool) {
	r.failed.Store(!ok)
	if ok {
		r.read.Store(time.Now().Unix())
	}
}

// collect writes how it went.
func (r *lastRead) collect(s series) {
	s.gauge("config_last_reload_successful", "1 if the files could be read when they were read last.", number(!r.failed.Load()))
	s.gauge("config_last_reload_success_timestamp_seconds", "When the files were read last, in seconds since 1970.", int(r.read.Load()))
}

// gatherBefore returns the metrics of the process before this one, while it has sessions,
// with its number as the label "before". It has those of the process before it among them.
func (l *look) gatherBefore() (all []*dto.MetricFamily, err error) {
	if l.before == "" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), statusWait/5)
	defer cancel()
	text, err := getStatus(ctx, l.before, "metrics")
	if err != nil {
		return nil, nil // it has ended
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	label, pid := "before", strings.TrimSuffix(filepath.Base(l.before), ".sock")
	for name, family := range families {
		if !strings.HasPrefix(name, "kcp") {
			continue // of the process itself
		}
		for _, m := range family.Metric {
			if !slices.ContainsFunc(m.Label, func(p *dto.LabelPair) bool { return p.GetName() == label }) {
				m.Label = append(m.Label, &dto.LabelPair{Name: &label, Value: &pid})
				slices.SortFunc(m.Label, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
			}
		}
		all = append(all, family)
	}
	return all, err
}
