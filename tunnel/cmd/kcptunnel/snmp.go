package main

import (
	"context"
	"encoding/csv"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	kcp "github.com/arqnet/kcp/kcpgo"
	"github.com/prometheus/client_golang/prometheus"
)

// levels are the columns of the table that are not counters.
var levels = map[string]bool{"CurrEstab": true, "MaxConn": true}

// snmpTable writes the counters of all sessions to a file, a row each period.
type snmpTable struct {
	path string // its last part is a layout of package time, as in snmp-20060102.log
	last map[string]uint64
}

// counters returns the counters of the process by their names, in the order of the table.
func counters() (names []string, values map[string]uint64) {
	names, values = kcp.DefaultSnmp.Header(), make(map[string]uint64)
	for i, text := range kcp.DefaultSnmp.ToSlice() {
		values[names[i]], _ = strconv.ParseUint(text, 10, 64)
	}
	return names, values
}

// run writes rows until ctx is done.
func (s *snmpTable) run(ctx context.Context, period time.Duration, log *slog.Logger) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if err := s.write(now); err != nil {
				log.Warn("cannot write the table of counters", "error", err)
			}
		}
	}
}

// write appends a row: the time, and what was counted since the row before. A new file
// gets the names first.
func (s *snmpTable) write(now time.Time) error {
	dir, name := filepath.Split(s.path)
	f, err := os.OpenFile(dir+now.Format(name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	w := csv.NewWriter(f)
	names, values := counters()
	if info, err := f.Stat(); err == nil && info.Size() == 0 {
		_ = w.Write(append([]string{"Unix"}, names...))
	}
	row := []string{strconv.FormatInt(now.Unix(), 10)}
	for _, name := range names {
		n := values[name]
		if !levels[name] {
			n -= s.last[name]
		}
		row = append(row, strconv.FormatUint(n, 10))
	}
	_ = w.Write(row)
	w.Flush()
	if w.Error() == nil {
		s.last = values
	}
	return w.Error()
}

// snmpCollector shows the same counters to Prometheus.
type snmpCollector struct{}

func snmpDescs() (counter, sessions *prometheus.Desc) {
	return prometheus.NewDesc("kcptun_snmp_total", "Counters of all sessions, as kcptun names them.", []string{"counter"}, nil),
		prometheus.NewDesc("kcptun_sessions", "Open sessions.", nil, nil)
}

// Describe implements prometheus.Collector.
func (snmpCollector) Describe(to chan<- *prometheus.Desc) {
	counter, sessions := snmpDescs()
	to <- counter
	to <- sessions
}

// Collect implements prometheus.Collector.
func (snmpCollector) Collect(to chan<- prometheus.Metric) {
	counter, sessions := snmpDescs()
	names, values := counters()
	for _, name := range names {
		if !levels[name] {
			to <- prometheus.MustNewConstMetric(counter, prometheus.CounterValue, float64(values[name]), name)
		}
	}
	to <- prometheus.MustNewConstMetric(sessions, prometheus.GaugeValue, float64(values["CurrEstab"]))
}
