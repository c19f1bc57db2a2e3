package main

import (
	"encoding/csv"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// The modes of kcptun have the live page, and metrics of their sessions and listeners.
// -snmplog writes a row of counters, which has what was counted since the row before.
func TestKcptunDebug(t *testing.T) {
	dir := t.TempDir()
	table := &snmpTable{path: dir + "/2006.log"}
	_, before := counters()
	s := start(t, "kcptun-server", "-l", "127.0.0.1:0", "-t", testenv.Target(t, testenv.Echo), "-key", "k", "-debug", "127.0.0.1:0")
	c := start(t, "kcptun-client", "-l", "127.0.0.1:0", "-r", s.err.Find(t, `listening address=(\S+)`), "-key", "k", "-conn", "2",
		"-debug", "127.0.0.1:0", "-snmplog", dir+"/own", "-snmpperiod", "1")
	local := c.err.Find(t, `listening address=(\S+)`)
	var sum uint64
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i := range 4 {
		says(t, local)
		require.NoError(t, table.write(now.Add(time.Duration(i)*time.Hour)))
	}
	shown := scrape(t, s)
	require.Contains(t, shown, `kcp_sessions{endpoint="server 1"} 2`)
	require.Contains(t, shown, `kcptun_snmp_total{counter="InSegs"} `)
	require.Contains(t, shown, "\nkcptun_sessions ")
	require.Contains(t, shown, "\nprocess_open_fds ")
	shown = scrape(t, c)
	require.Contains(t, shown, `kcp_sessions{endpoint="client 1"} 1`)
	require.Contains(t, shown, `kcp_sessions{endpoint="client 2"} 1`)

	read := func(path string) (rows [][]string) {
		if text, err := os.ReadFile(path); err == nil {
			rows, _ = csv.NewReader(strings.NewReader(string(text))).ReadAll() // it may be half written
		}
		return rows
	}
	testenv.Await(t, func() bool { return len(read(dir+"/own")) >= 2 })
	rows := read(dir + "/2026.log")
	require.Len(t, rows, 5)
	require.Equal(t, "Unix,BytesSent,BytesReceived", strings.Join(rows[0][:3], ","))
	for i, row := range rows[1:] {
		require.Len(t, row, len(rows[0]))
		require.Equal(t, fmt.Sprint(now.Unix()+int64(i)*3600), row[0])
		n, err := strconv.ParseUint(row[1], 10, 64)
		require.NoError(t, err)
		require.Positive(t, n)
		sum += n
	}
	require.Equal(t, table.last["BytesSent"], sum)
	require.Greater(t, sum, before["BytesSent"])
	require.ErrorContains(t, (&snmpTable{path: dir + "/none/x"}).write(now), "none")
}
