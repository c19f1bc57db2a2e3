//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Where the target listens at the server, and the tunnel at the client.
const (
	targetAddr = "127.0.0.1:8000"
	localAddr  = "127.0.0.1:9000"
	serverAddr = "10.99.0.2:4000"
)

// peer is a tunnel: the command lines of either end, and what makes the files that they
// name, in the folder DIR.
type peer struct {
	name           string
	prepare        string // for sh
	server, client string
}

// peers returns the tunnels.
func (l *lab) peers() []peer {
	forward := localAddr + ":" + targetAddr
	return []peer{
		{
			"kcptunnel", `[ -x DIR/kcptunnel ] || go build -C .. -o DIR/kcptunnel ./cmd/kcptunnel
				(umask 077; printf '%s' '{"me:secret": ["^127\\.0\\.0\\.1:8000$"]}' > DIR/users.json)`,
			"exec DIR/kcptunnel server -auth DIR/users.json -key DIR/server.pem :4000",
			`until DIR/kcptunnel fingerprint DIR/server.pem > DIR/print; do sleep .1; done
				exec DIR/kcptunnel client -fingerprint $(cat DIR/print) -auth me:secret ` + serverAddr + " " + forward,
		},
		{
			// At this port the server listens on TCP alone.
			"kcptunnel over TCP", "true",
			"exec DIR/kcptunnel server -auth DIR/users.json -key DIR/server.pem -tcp :4000 :4001",
			`until DIR/kcptunnel fingerprint DIR/server.pem > DIR/print; do sleep .1; done
				exec DIR/kcptunnel client -fingerprint $(cat DIR/print) -auth me:secret ` + serverAddr + " " + forward,
		},
		{
			"kcptun", "which kcptun-server kcptun-client",
			"exec kcptun-server --quiet -l :4000 -t " + targetAddr,
			"exec kcptun-client --quiet -l " + localAddr + " -r " + serverAddr,
		},
		{
			"chisel", "[ -x DIR/chisel ] || go build -o DIR/chisel github.com/jpillora/chisel",
			"exec DIR/chisel server --host 10.99.0.2 --port 4000 --auth me:secret",
			"exec DIR/chisel client --auth me:secret http://" + serverAddr + " " + forward,
		},
		{
			"ssh", `mkdir -p /run/sshd; [ -e DIR/user ] || for key in host user; do ssh-keygen -q -t ed25519 -N '' -f DIR/$key; done; test -x /usr/sbin/sshd`,
			"exec /usr/sbin/sshd -D -e -f /dev/null -p 4000 -h DIR/host -o AuthorizedKeysFile=DIR/user.pub -o PidFile=none -o StrictModes=no -o PermitRootLogin=yes -o UsePAM=no",
			"exec ssh -N -p 4000 -i DIR/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o ExitOnForwardFailure=yes -L " + forward + " root@10.99.0.2",
		},
	}
}

// start starts both ends of a tunnel, until stop is called.
func (l *lab) start(p peer) (stop func(), err error) {
	shell := func(h *host, line string) *exec.Cmd {
		args := []string{"sh", "-c", strings.ReplaceAll(line, "DIR", l.dir)}
		if h != nil {
			args = append([]string{"ip", "netns", "exec", h.name}, args...)
		}
		return exec.Command(args[0], args[1:]...)
	}
	if out, err := shell(nil, "set -e\n"+p.prepare).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("left out: %w: %s", err, out)
	}
	server, client := shell(&l.server, p.server), shell(&l.client, p.client)
	for _, cmd := range []*exec.Cmd{server, client} {
		if cmd.Stderr, err = os.Create(filepath.Join(l.dir, p.name+".log")); err == nil {
			err = cmd.Start()
		}
		if err != nil {
			return nil, err
		}
	}
	return func() {
		for _, pid := range l.processes() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_, _ = client.Process.Wait()
		_, _ = server.Process.Wait()
	}, nil
}

// processes returns the processes at both hosts.
func (l *lab) processes() (all []int) {
	for _, h := range []host{l.client, l.server} {
		out, _ := exec.Command("ip", "netns", "pids", h.name).Output()
		for _, text := range strings.Fields(string(out)) {
			pid, _ := strconv.Atoi(text)
			all = append(all, pid)
		}
	}
	return all
}

// processor returns what the programs of a tunnel have used. What the kernel does
// for TCP besides system calls is not in it.
func (l *lab) processor() time.Duration {
	ticks := 0
	for _, pid := range l.processes() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if err == nil && len(fields) > 12 {
			user, err := strconv.Atoi(fields[11])
			system, also := strconv.Atoi(fields[12])
			if errors.Join(err, also) == nil {
				ticks += user + system
			}
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// memory returns what the programs hold, in MB: the proportional set size.
func (l *lab) memory() (total float64) {
	for _, pid := range l.processes() {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		for line := range strings.Lines(string(text)) {
			var kB float64
			if n, _ := fmt.Sscanf(line, "Pss: %f kB", &kB); n == 1 {
				total += kB * 1024 / 1e6
			}
		}
	}
	return total
}
