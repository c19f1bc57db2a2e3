//go:build linux

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Where the target listens at the server, and the tunnel at the client.
const (
	targetAddr = "127.0.0.1:8000"
	localAddr  = "127.0.0.1:9000"
)

// peer is a tunnel: a program at either end.
type peer struct {
	name string
	// server and client are the command lines. The server's first line is passed to
	// client if it prints one that client wants.
	server []string
	client func(line string) []string
	prints string // the beginning of that line; empty: nothing is wanted
}

// prepare builds or finds the programs, and returns the tunnels that there are.
func (l *lab) prepare(names []string) ([]peer, error) {
	var all []peer
	for _, make := range []func() (peer, error){l.kcptunnel, l.kcptun, l.chisel, l.ssh} {
		p, err := make()
		if !slices.Contains(names, p.name) {
			continue
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s is left out: %v\n", p.name, err)
			continue
		}
		all = append(all, p)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("there is nothing to measure among %v", names)
	}
	return all, nil
}

// file returns the path of a file in the lab's folder.
func (l *lab) file(name string) string { return filepath.Join(l.dir, name) }

// kcptunnel is the program of this repository.
func (l *lab) kcptunnel() (peer, error) {
	p := peer{name: "kcptunnel", prints: "fingerprint "}
	bin := l.file("kcptunnel")
	if err := command("go", "build", "-C", "..", "-o", bin, "./cmd/kcptunnel"); err != nil {
		return p, err
	}
	if err := os.WriteFile(l.file("users.json"), []byte(`{"me:secret": ["^127\\.0\\.0\\.1:8000$"]}`), 0o600); err != nil {
		return p, err
	}
	p.server = []string{bin, "server", "-auth", l.file("users.json"), "-key", l.file("server.pem"), ":4000"}
	p.client = func(line string) []string {
		return []string{bin, "client", "-fingerprint", strings.TrimPrefix(line, p.prints), "-auth", "me:secret", l.server.ip + ":4000", localAddr + ":" + targetAddr}
	}
	return p, nil
}

// kcptun is Debian's, with its defaults.
func (l *lab) kcptun() (peer, error) {
	p := peer{name: "kcptun"}
	for _, name := range []string{"kcptun-server", "kcptun-client"} {
		if _, err := exec.LookPath(name); err != nil {
			return p, err
		}
	}
	p.server = []string{"kcptun-server", "--quiet", "-l", ":4000", "-t", targetAddr}
	p.client = func(string) []string {
		return []string{"kcptun-client", "--quiet", "-l", localAddr, "-r", l.server.ip + ":4000"}
	}
	return p, nil
}

// chisel is built from its module.
func (l *lab) chisel() (peer, error) {
	p := peer{name: "chisel"}
	bin := l.file("chisel")
	if err := command("go", "build", "-o", bin, "github.com/jpillora/chisel"); err != nil {
		return p, err
	}
	p.server = []string{bin, "server", "--host", l.server.ip, "--port", "4000", "--auth", "me:secret"}
	p.client = func(string) []string {
		return []string{bin, "client", "--auth", "me:secret", "http://" + l.server.ip + ":4000", localAddr + ":" + targetAddr}
	}
	return p, nil
}

// ssh is a server with keys of its own, and ssh -L.
func (l *lab) ssh() (peer, error) {
	p := peer{name: "ssh"}
	sshd, err := exec.LookPath("/usr/sbin/sshd")
	if err != nil {
		return p, err
	}
	for _, name := range []string{"host", "user"} {
		if err := command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", l.file(name)); err != nil {
			return p, err
		}
	}
	public, err := os.ReadFile(l.file("user.pub"))
	if err == nil {
		err = os.WriteFile(l.file("authorized_keys"), public, 0o600)
	}
	if err == nil {
		err = os.MkdirAll("/run/sshd", 0o755)
	}
	if err != nil {
		return p, err
	}
	p.server = []string{sshd, "-D", "-e", "-f", "/dev/null", "-p", "4000", "-h", l.file("host"), "-o", "AuthorizedKeysFile=" + l.file("authorized_keys"),
		"-o", "PidFile=none", "-o", "StrictModes=no", "-o", "PermitRootLogin=yes", "-o", "UsePAM=no"}
	p.client = func(string) []string {
		return []string{"ssh", "-N", "-p", "4000", "-i", l.file("user"), "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
			"-o", "LogLevel=ERROR", "-o", "ExitOnForwardFailure=yes", "-L", localAddr + ":" + targetAddr, "root@" + l.server.ip}
	}
	return p, nil
}

// running is a tunnel that runs.
type running struct{ procs []*exec.Cmd }

// start starts both ends.
func (l *lab) start(p peer) (*running, error) {
	r := new(running)
	line, err := r.run(l, l.server, p.name+"-server", p.server, p.prints)
	if err == nil {
		_, err = r.run(l, l.client, p.name+"-client", p.client(line), "")
	}
	if err != nil {
		r.stop()
	}
	return r, err
}

// run starts a program on a host, and returns the line of its output that begins
// with want.
func (r *running) run(l *lab, h *host, name string, args []string, want string) (string, error) {
	log, err := os.Create(l.file(name + ".log"))
	if err != nil {
		return "", err
	}
	defer log.Close()
	cmd := exec.Command("ip", append([]string{"netns", "exec", h.name}, args...)...)
	cmd.Stderr = log
	if want == "" {
		cmd.Stdout = log
		err := cmd.Start()
		if err == nil {
			r.procs = append(r.procs, cmd)
		}
		return "", err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	r.procs = append(r.procs, cmd)
	line := make([]byte, 0, 256)
	for b := make([]byte, 1); len(line) < 256; {
		if _, err := out.Read(b); err != nil {
			return "", fmt.Errorf("%s prints nothing: %w", name, err)
		}
		if b[0] == '\n' {
			if strings.HasPrefix(string(line), want) {
				break
			}
			line = line[:0]
			continue
		}
		line = append(line, b[0])
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return string(line), nil
}

// stop ends the programs.
func (r *running) stop() {
	for _, cmd := range slices.Backward(r.procs) {
		for _, pid := range tree(cmd.Process.Pid) {
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Kill()
			}
		}
		_ = cmd.Wait()
	}
}
