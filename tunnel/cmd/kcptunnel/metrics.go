package main

import (
	"maps"
	"runtime"

	"github.com/arqnet/kcp/internal/version"
	"github.com/arqnet/kcp/tunnel"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// userMetric is a metric with a value for each user.
type userMetric struct {
	name, help string
	kind       prometheus.ValueType
	of         func(u *tunnel.UserFigures) float64
}

// userMetrics returns all of them.
func userMetrics() []userMetric {
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	return []userMetric{
		{"sessions", "Open sessions.", gauge, func(u *tunnel.UserFigures) float64 { return float64(u.Sessions) }},
		{"connections", "Open connections of TCP.", gauge, func(u *tunnel.UserFigures) float64 { return float64(u.Connections) }},
		{"flows", "Open flows of UDP.", gauge, func(u *tunnel.UserFigures) float64 { return float64(u.Flows) }},
		{"logins_total", "Sessions opened.", counter, func(u *tunnel.UserFigures) float64 { return float64(u.Logins) }},
		{"connections_opened_total", "Connections of TCP opened.", counter, func(u *tunnel.UserFigures) float64 { return float64(u.ConnectionsOpened) }},
		{"flows_opened_total", "Flows of UDP opened.", counter, func(u *tunnel.UserFigures) float64 { return float64(u.FlowsOpened) }},
		{"flows_evicted_total", "Flows of UDP ended to make room, as the user had too many.", counter, func(u *tunnel.UserFigures) float64 { return float64(u.FlowsEvicted) }},
		{"sent_bytes_total", "Bytes of connections and flows sent to clients.", counter, func(u *tunnel.UserFigures) float64 { return float64(u.Sent) }},
		{"received_bytes_total", "Bytes of connections and flows received from clients.", counter, func(u *tunnel.UserFigures) float64 { return float64(u.Received) }},
		{"refused_total", "Targets, and addresses to listen on, that were asked for and are not allowed.", counter, func(u *tunnel.UserFigures) float64 { return float64(u.Refused) }},
		{"failed_total", "Targets that could not be reached, and addresses that could not be listened on.", counter, func(u *tunnel.UserFigures) float64 { return float64(u.Failed) }},
		{"wrong_passwords_total", "Clients turned away with a wrong password or certificate.", counter, func(u *tunnel.UserFigures) float64 { return float64(u.WrongPasswords) }},
		{"lockouts_total", "Clients turned away without checking the password, because too many attempts had failed.", counter, func(u *tunnel.UserFigures) float64 { return float64(u.Lockouts) }},
	}
}

// turnedAwayReasons are those that are there from the beginning, as a rate needs a first
// value.
func turnedAwayReasons() []string {
	return []string{"wrong-identity", "attempts", "forbidden", "unknown-certificate", "no-identity", "version", "malformed", "no-hello", "full", "left"}
}

// server writes what a server does. How many series that are depends on the file of users
// alone.
func (s series) server(f tunnel.Figures) {
	for _, m := range userMetrics() {
		for i := range f.Users {
			d, values := s.desc(m.name, m.help+" By user. The empty name stands for clients that named no user of the file.", []string{"user", f.Users[i].User})
			s <- prometheus.MustNewConstMetric(d, m.kind, m.of(&f.Users[i]), values...)
		}
	}
	away := make(map[string]uint64)
	for _, reason := range turnedAwayReasons() {
		away[reason] = 0
	}
	maps.Copy(away, f.TurnedAway)
	for reason, n := range away {
		s.counter("clients_turned_away_total", "Clients that were not let in, by reason.", n, "reason", reason)
	}
	s.carried(&f.Carried)
}

// processCollectors show the process: its processor time, memory and descriptors, what
// Go's runtime does, and which build it is.
func processCollectors() []prometheus.Collector {
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kcptunnel_build_info", Help: "1, with the version of the program as a label.",
		ConstLabels: prometheus.Labels{"version": version.Number(), "goversion": runtime.Version()},
	})
	build.Set(1)
	return []prometheus.Collector{collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector(), build}
}
