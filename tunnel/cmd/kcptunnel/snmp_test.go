package main

import (
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/stretchr/testify/require"
)

// The modes of kcptun have the live page, metrics of their sessions and listeners, and
// the table of counters.
func TestKcptunDebug(t *testing.T) {
	at := echo(t)
	s := start(t, "kcptun-server", "-l", "127.0.0.1:0", "-t", at, "-key", "k", "-debug", "127.0.0.1:0")
	server := find(t, s.err, `listening address=(\S+)`)
	table := filepath.Join(t.TempDir(), "snmp-20060102.log")
	c := start(t, "kcptun-client", "-l", "127.0.0.1:0", "-r", server, "-key", "k", "-conn", "2",
		"-debug", "127.0.0.1:0", "-snmplog", table, "-snmpperiod", "1")
	local := find(t, c.err, `listening address=(\S+)`)
	for range 3 {
		says(t, local)
	}
	shown := scrape(t, s)
	require.Contains(t, shown, `kcp_sessions{endpoint="server 1"} 2`)
	require.Contains(t, shown, `kcptun_snmp_total{counter="InSegs"} `)
	require.Contains(t, shown, "\nkcptun_sessions ")
	require.Contains(t, shown, "\nprocess_open_fds ")
	shown = scrape(t, c)
	require.Contains(t, shown, `kcp_sessions{endpoint="client 1"} 1`)
	require.Contains(t, shown, `kcp_sessions{endpoint="client 2"} 1`)

	path := filepath.Join(filepath.Dir(table), time.Now().Format(filepath.Base(table)))
	var rows [][]string
	await.True(t, func() bool {
		text, err := os.ReadFile(path)
		if err != nil {
			return false
		}
		rows, err = csv.NewReader(strings.NewReader(string(text))).ReadAll()
		return err == nil && len(rows) >= 3
	})
	require.Equal(t, "Unix,BytesSent,BytesReceived", strings.Join(rows[0][:3], ","))
	for _, row := range rows {
		require.Len(t, row, len(rows[0]))
	}
}

// A row has what was counted since the row before.
func TestSnmpTable(t *testing.T) {
	dir := t.TempDir()
	s := &snmpTable{path: dir + "/2006.log"}
	_, before := counters()
	server := start(t, "kcptun-server", "-l", "127.0.0.1:0", "-t", echo(t))
	c := start(t, "kcptun-client", "-l", "127.0.0.1:0", "-r", find(t, server.err, `listening address=(\S+)`))
	local := find(t, c.err, `listening address=(\S+)`)
	var sum uint64
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i := range 4 {
		says(t, local)
		require.NoError(t, s.write(now.Add(time.Duration(i)*time.Hour)))
	}
	text, err := os.ReadFile(dir + "/2026.log")
	require.NoError(t, err)
	rows, err := csv.NewReader(strings.NewReader(string(text))).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 5)
	for i, row := range rows[1:] {
		require.Equal(t, fmt.Sprint(now.Unix()+int64(i)*3600), row[0])
		n, err := strconv.ParseUint(row[1], 10, 64)
		require.NoError(t, err)
		require.Positive(t, n)
		sum += n
	}
	require.Equal(t, s.last["BytesSent"], sum)
	require.Greater(t, sum, before["BytesSent"])
	require.ErrorContains(t, (&snmpTable{path: dir + "/none/x"}).write(now), "none")
}
