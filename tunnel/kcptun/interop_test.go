package kcptun

import (
	"fmt"
	"os/exec"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// theirs runs a program of Debian's package kcptun until the test ends.
func theirs(t *testing.T, c *Config, args ...string) {
	t.Helper()
	args = append(args, "--key", c.Key, "--crypt", c.Crypt, "--mode", c.Mode, "--smuxver", strconv.Itoa(c.SmuxVer),
		"--datashard", strconv.Itoa(c.DataShard), "--parityshard", strconv.Itoa(c.ParityShard), "--nocomp="+strconv.FormatBool(c.NoComp))
	cmd := exec.Command(args[0], args[1:]...)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// The program kcptun at the other end, in both roles: each cipher that Debian's
// version has, with and without error correction and compression.
func TestWithKcptun(t *testing.T) {
	for _, program := range []string{"kcptun-client", "kcptun-server"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("no program kcptun: Debian's package kcptun has it")
		}
	}
	at := testenv.Target(t, testenv.Echo)
	var passed, all atomic.Int64
	t.Run("all", func(t *testing.T) {
		n := 0
		for _, crypt := range Ciphers() {
			if crypt == "aes-128-gcm" || crypt == "null" {
				continue // newer than Debian's
			}
			for settings := range 8 {
				n++
				if testing.Short() && n%9 != 0 { // each of the eight, and most ciphers
					continue
				}
				all.Add(1)
				c := ServerDefaults()
				c.Crypt, c.NoComp, c.SmuxVer, c.Mode = crypt, settings&1 != 0, 1+n%2, []string{"normal", "fast", "fast2", "fast3"}[n%4]
				if settings&2 != 0 {
					c.DataShard, c.ParityShard = 0, 0
				}
				client := settings&4 != 0
				t.Run(fmt.Sprintf("%s client %v fec %v nocomp %v", crypt, client, c.DataShard > 0, c.NoComp), func(t *testing.T) {
					t.Parallel()
					withKcptun(t, c, client, at)
					passed.Add(1)
				})
			}
		}
	})
	t.Logf("%d of %d", passed.Load(), all.Load())
}

// withKcptun exchanges bytes with the program as client, or as server.
func withKcptun(t *testing.T, c Config, client bool, at string) {
	local := ""
	if client {
		c.Listen, c.Target = "127.0.0.1:0", at
		local = testenv.FreeAddress(t)
		theirs(t, &c, "kcptun-client", "--localaddr", local, "--remoteaddr", start(t, Serve, c))
	} else {
		server := testenv.FreeAddress(t)
		theirs(t, &c, "kcptun-server", "--listen", server, "--target", at)
		c.Listen, c.Target = "127.0.0.1:0", server
		local = start(t, Run, c)
	}
	for _, n := range []int{1000, 400_000} {
		exchange(t, local, n)
	}
}
