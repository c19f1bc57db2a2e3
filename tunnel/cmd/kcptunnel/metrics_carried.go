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

// desc returns the description of a metric of the tunnel.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("kcptunnel_"+name, help, labels, nil)
}

// value writes a value of a metric of the tunnel, with the values of its labels.
func value[T int | uint64 | int64](to chan<- prometheus.Metric, d *prometheus.Desc, kind prometheus.ValueType, n T, labels ...string) {
	to <- prometheus.MustNewConstMetric(d, kind, float64(n), labels...)
}

// carriedMetrics writes the descriptions of what both ends carry, or the values.
func carriedMetrics(f *tunnel.Carried, descs chan<- *prometheus.Desc, to chan<- prometheus.Metric) {
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	sent := desc("remote_sent_bytes_total", "Bytes sent to the other end, by user and remote.", "user", "remote")
	received := desc("remote_received_bytes_total", "Bytes received from the other end, by user and remote.", "user", "remote")
	open := desc("remote_connections", "Open connections and flows of UDP, by user and remote.", "user", "remote")
	opened := desc("remote_connections_opened_total", "Connections and flows of UDP opened, by user and remote.", "user", "remote")
	failed := desc("targets_failed_total", "Targets that could not be dialled here, by cause.", "cause")
	waiting := desc("waiting", "Connections that have not gone on for a second, by what they wait for: the target or application takes no data, or the path or the other end, or the opening is not answered.", "for")
	resolve := desc("resolve_seconds", "How long it took to look up the names of targets.")
	connect := desc("connect_seconds", "How long it took to connect with targets of TCP, without looking them up.")
	if f == nil {
		for _, d := range []*prometheus.Desc{sent, received, open, opened, failed, waiting, resolve, connect} {
			descs <- d
		}
		return
	}
	for _, r := range f.Remotes {
		value(to, sent, counter, r.Sent, r.User, r.Remote)
		value(to, received, counter, r.Received, r.User, r.Remote)
		value(to, open, gauge, r.Connections, r.User, r.Remote)
		value(to, opened, counter, r.Opened, r.User, r.Remote)
	}
	for cause, n := range f.TargetsFailed {
		value(to, failed, counter, n, cause)
	}
	for reason, n := range f.Waiting {
		value(to, waiting, gauge, n, reason)
	}
	for d, h := range map[*prometheus.Desc]tunnel.Histogram{resolve: f.Resolve, connect: f.Connect} {
		buckets := make(map[float64]uint64)
		for i, n := range h.Counts {
			buckets[h.Bounds[i]] = n
		}
		to <- prometheus.MustNewConstHistogram(d, h.Count, h.Sum, buckets)
	}
}

// clientCollector shows the figures of a client to Prometheus. How many series it has
// depends on its command line alone.
type clientCollector struct{ figures func() tunnel.ClientFigures }

func (clientCollector) descs() (connected, attempts, failed *prometheus.Desc) {
	return desc("connected", "1 if there is a session with the server, by server and transport.", "server", "transport"),
		desc("attempts_total", "Attempts to have a session, by server and transport.", "server", "transport"),
		desc("attempts_failed_total", "Attempts that failed, and sessions that were lost, by server, transport and cause.", "server", "transport", "cause")
}

// Describe implements prometheus.Collector.
func (c clientCollector) Describe(to chan<- *prometheus.Desc) {
	connected, attempts, failed := c.descs()
	to <- connected
	to <- attempts
	to <- failed
	carriedMetrics(nil, to, nil)
}

// Collect implements prometheus.Collector.
func (c clientCollector) Collect(to chan<- prometheus.Metric) {
	f := c.figures()
	connected, attempts, failed := c.descs()
	for _, s := range f.Servers {
		there := 0
		if s.Connected {
			there = 1
		}
		value(to, connected, prometheus.GaugeValue, there, s.Server, s.Transport)
		value(to, attempts, prometheus.CounterValue, s.Attempts, s.Server, s.Transport)
		for cause, n := range s.Failed {
			value(to, failed, prometheus.CounterValue, n, s.Server, s.Transport, cause)
		}
	}
	carriedMetrics(&f.Carried, nil, to)
}

// reloads says how the files were read: at the start, and later.
type reloads struct {
	failed atomic.Bool
	read   atomic.Int64 // seconds since 1970, of the last time that it went well
}

// newReloads returns the reloads of a process that has just read its files.
func newReloads() *reloads {
	r := new(reloads)
	r.note(true)
	return r
}

// note notes how a reload went.
func (r *reloads) note(ok bool) {
	r.failed.Store(!ok)
	if ok {
		r.read.Store(time.Now().Unix())
	}
}

func (*reloads) descs() (ok, at *prometheus.Desc) {
	return desc("config_last_reload_successful", "1 if the files could be read when they were read last."),
		desc("config_last_reload_success_timestamp_seconds", "When the files were read last, in seconds since 1970.")
}

// Describe implements prometheus.Collector.
func (r *reloads) Describe(to chan<- *prometheus.Desc) {
	ok, at := r.descs()
	to <- ok
	to <- at
}

// Collect implements prometheus.Collector.
func (r *reloads) Collect(to chan<- prometheus.Metric) {
	ok, at := r.descs()
	good := 1
	if r.failed.Load() {
		good = 0
	}
	value(to, ok, prometheus.GaugeValue, good)
	value(to, at, prometheus.GaugeValue, r.read.Load())
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
	pid := strings.TrimSuffix(filepath.Base(l.before), ".sock")
	label := "before"
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
