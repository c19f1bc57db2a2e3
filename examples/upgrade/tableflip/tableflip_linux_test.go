package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/arqnet/kcp/examples/upgrade/internal/lab"
)

// The processes are this test binary.
func TestMain(m *testing.M) {
	if os.Getenv(lab.ServerEnv) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A player stays with its process while another one takes over. tableflip lets that one
// be replaced once the first has ended. Then it is the same again, twice.
func TestPlayersOutliveUpgrades(t *testing.T) {
	t.Parallel()
	s := lab.Start(t)
	newest, player := s.First, s.Join("ann", s.First)
	for i := range 3 {
		player.Chat()
		old := newest
		newest = s.Upgrades(old)
		s.Logged(`has taken over\n`)
		next := s.Join(fmt.Sprint("player ", i), newest)
		refuses(s, newest, "parent hasn't exited")
		s.Signal(old, unix.SIGHUP)
		s.Logged(`SIGHUP is for the process that serves\n`)
		s.Join("bob", newest).Leaves()
		next.Talks()
		player.Hush()
		player.Sees(1)
		player.Leaves()
		s.Ends(old)
		next.Talks()
		player = next
	}
	s.Signal(newest, unix.SIGTERM)
	require.Equal(t, "STOPPING=1", s.Notified())
	player.IsSentAway()
	s.Ends(newest)
}

// refuses checks that a process does not upgrade itself, and says why.
func refuses(s *lab.Service, pid int, why string) {
	s.Signal(pid, unix.SIGHUP)
	s.Reloading()
	s.Stays(pid, why)
	s.Logged("not upgraded: .*" + why)
}
