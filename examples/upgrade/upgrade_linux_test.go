package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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

// Players stay with their processes while three more come, and each new player is with
// the newest. An old process ends with its last player.
func TestPlayersOutliveUpgrades(t *testing.T) {
	t.Parallel()
	s := lab.Start(t)
	newest := s.First
	players := []*lab.Player{s.Join("ann", newest)}
	for i := range 3 {
		for _, p := range players {
			p.Chat()
		}
		newest = s.Upgrades(newest)
		require.Equal(t, fmt.Sprint(newest), s.Logged(`process (\d+) has taken over\n`))
		players = append(players, s.Join(fmt.Sprint("player ", i), newest))
		for _, p := range players[:i+1] {
			p.Hush()
		}
	}
	for _, p := range players {
		p.Talks()
		p.Sees(1)
	}
	for _, i := range []int{1, 0, 2} {
		players[i].Leaves()
		s.Ends(players[i].Server)
		for _, p := range players[3:] {
			p.Talks()
		}
	}
	s.Lives(newest)
	s.Signal(newest, unix.SIGTERM)
	require.Equal(t, "STOPPING=1", s.Notified())
	players[3].IsSentAway()
	s.Ends(newest)
}

// A program that does not start, or does not take over, leaves all as it was.
func TestProgramsThatFail(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ program, why string }{
		"no program": {"nothing\x00that runs", "exec format error"},
		"ends":       {"#!/bin/sh\nexit 3\n", "the new process has ended: exit status 3"},
		"is slow":    {"#!/bin/sh\nexec sleep 100\n", "the new process is too slow: .*timeout"},
		"is mute":    {"#!/bin/sh\nprintf t >&4\nexec sleep 100\n", "hand over .*does not answer .*; .* too slow"},
		"is another": {"#!/bin/sh\nprintf t >&4\nexit 4\n", "hand over .*exit status 4"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := lab.Start(t, "-start", "6s")
			old := s.Join("ann", s.First)
			s.Replace(test.program)
			old.Chat()
			s.Signal(s.First, unix.SIGHUP)
			s.Reloading()
			s.Stays(s.First, test.why)
			s.Logged("not upgraded: .*" + test.why)
			old.Hush()
			s.Join("bob", s.First).Leaves()
			s.Restore()
			newest := s.Upgrades(s.First)
			s.Join("joe", newest).Talks()
			old.Talks()
			old.Leaves()
			s.Ends(s.First)
		})
	}
}

// The file of -pid leads SIGHUP to the process that serves, as often as it is sent: with
// players in the first process, and processes between that have ended, to which the first
// passes nothing on.
func TestSignalsByFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pid")
	s := lab.Start(t, "-pid", file)
	ann := s.Join("ann", s.First)
	for range 4 {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		old, err := strconv.Atoi(strings.TrimSpace(string(text)))
		require.NoError(t, err)
		newest := s.Upgrades(old)
		if old != s.First {
			s.Ends(old)
		}
		s.Join("bob", newest).Leaves()
		ann.Talks()
	}
	drafts, err := filepath.Glob(file + ".*")
	require.NoError(t, err)
	require.Empty(t, drafts)
}

// If the newest process is killed, the one before it starts another.
func TestNewestIsKilled(t *testing.T) {
	t.Parallel()
	s := lab.Start(t)
	ann := s.Join("ann", s.First)
	second := s.Upgrades(s.First)
	s.Logged(`has taken over\n`)
	ann.Chat()
	s.Signal(second, unix.SIGKILL)
	third := s.Ready()
	s.Logged(`failed: signal: killed\n`)
	s.Join("bob", third).Talks()
	ann.Hush()
	ann.Leaves()
	s.Ends(s.First)
}
