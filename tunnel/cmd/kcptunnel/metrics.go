package main

import (
	"maps"
	"runtime"

	"github.com/arqnet/kcp/internal/version"
	"github.com/arqnet/kcp/tunnel"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// turnedAwayReasons are those that are there from the beginning, as a rate needs a first
// value.
func turnedAwayReasons() []string {
	return []string{"wrong-identity", "attempts", "forbidden", "unknown-certificate", "no-identity", "version", "malformed", "no-hello", "full", "left"}
}

// server writes what a server does. How many series that are depends on the file of users
// alone.
func (s series) server(f tunnel.Figures) {
	const byUser = " By user. The empty name stands for clients that named no user of the file."
	for _, u := range f.Users {
		of := []string{"user", u.User}
		s.gauge("sessions", "Open sessions."+byUser, u.Sessions, of...)
		s.gauge("connections", "Open connections of TCP."+byUser, u.Connections, of...)
		s.gauge("flows", "Open flows of UDP."+byUser, u.Flows, of...)
		s.counter("logins_total", "Sessions opened."+byUser, u.Logins, of...)
		s.counter("connections_opened_total", "Connections of TCP opened."+byUser, u.ConnectionsOpened, of...)
		s.counter("flows_opened_total", "Flows of UDP opened."+byUser, u.FlowsOpened, of...)
		s.counter("flows_evicted_total", "Flows of UDP ended to make room, as the user had too many."+byUser, u.FlowsEvicted, of...)
		s.counter("sent_bytes_total", "Bytes of connections and flows sent to clients."+byUser, u.Sent, of...)
		s.counter("received_bytes_total", "Bytes of connections and flows received from clients."+byUser, u.Received, of...)
		s.counter("refused_total", "Targets, and addresses to listen on, that were asked for and are not allowed."+byUser, u.Refused, of...)
		s.counter("failed_total", "Targets that could not be reached, and addresses that could not be listened on."+byUser, u.Failed, of...)
		s.counter("wrong_passwords_total", "Clients turned away with a wrong password or certificate."+byUser, u.WrongPasswords, of...)
		s.counter("lockouts_total", "Clients turned away without checking the password, because too many attempts had failed."+byUser, u.Lockouts, of...)
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
