package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/arqnet/kcp/internal/neterr"
	"github.com/arqnet/kcp/internal/version"
	"github.com/arqnet/kcp/tunnel"
	"github.com/urfave/cli/v3"
)

// statusFlag is the flag that says where the sockets for the command status are.
const statusFlag = "status"

// Without -all, status shows so many peers of a process, and connections of a peer: those
// that wait longest, then those with most bytes.
const (
	maxPeers       = 50
	maxConnections = 20
	// maxStatus is the most bytes that a process may say.
	maxStatus = 64 << 20
	// statusWait is how long it may take.
	statusWait = 10 * time.Second
)

// processStatus is what a process is and does.
type processStatus struct {
	PID     int     `json:"pid"`
	Command string  `json:"command"` // server or client
	Version string  `json:"version"`
	Age     float64 `json:"age_seconds"`
	Address string  `json:"address,omitempty"` // where a server listens, or the servers of a client
	// Servers are those of a client.
	Servers []tunnel.ServerFigures `json:"servers,omitempty"`
	Peers   []tunnel.Peer          `json:"peers"`
	// LeftOut counts what is not in Peers: peers, and connections of those that are.
	LeftOut struct {
		Peers       int `json:"peers"`
		Connections int `json:"connections"`
	} `json:"left_out"`
}

// newProcessStatus returns the status of this process.
func newProcessStatus(command string, begun time.Time, peers []tunnel.Peer) *processStatus {
	return &processStatus{PID: os.Getpid(), Command: command, Version: version.Number(), Age: time.Since(begun).Seconds(), Peers: peers}
}

// unhealthy returns why a client has no session with any server; empty: it has one, or is
// a server.
func (p *processStatus) unhealthy() string {
	why := ""
	for _, s := range p.Servers {
		if s.Connected {
			return ""
		}
		why = cmp.Or(why, "no session with "+s.Server+": "+cmp.Or(s.Cause, "no answer yet"))
	}
	return strings.ReplaceAll(why, "\n", " ")
}

// sort puts first what waits longest, and then what has most bytes. Unless all are wanted,
// it leaves out what is too much.
func (p *processStatus) sort(all bool) {
	slices.SortStableFunc(p.Peers, func(a, b tunnel.Peer) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(b.Sent+b.Received, a.Sent+a.Received))
	})
	if extra := len(p.Peers) - maxPeers; extra > 0 && !all {
		p.Peers, p.LeftOut.Peers = p.Peers[:maxPeers], extra
	}
	for i := range p.Peers {
		one := &p.Peers[i].Connections
		slices.SortFunc(*one, func(a, b tunnel.Connection) int {
			return cmp.Or(cmp.Compare(b.Waits, a.Waits), cmp.Compare(b.Sent+b.Received, a.Sent+a.Received), cmp.Compare(b.Age, a.Age))
		})
		if extra := len(*one) - maxConnections; extra > 0 && !all {
			*one = (*one)[:maxConnections]
			p.LeftOut.Connections += extra
		}
	}
}

// write writes the process for people.
func (p *processStatus) write(w io.Writer) {
	fmt.Fprintf(w, "%s %s, process %d, for %v, version %s\n", printable(p.Command), printable(p.Address), p.PID, lasted(p.Age), printable(p.Version))
	for _, s := range p.Servers {
		if !s.Connected && (s.Transport == "udp" || s.Cause != "") { // TCP is for want of UDP
			fmt.Fprintf(w, "  no session with %s (%s): %s\n", printable(s.Server), printable(s.Transport), printable(cmp.Or(s.Cause, "no answer yet")))
		}
	}
	for _, peer := range p.Peers {
		leaving, least := "", ""
		if peer.Leaving {
			leaving = ", ends with its last connection"
		}
		if peer.LeastRTT >= 50e-6 { // what lasted rounds to more than 0
			least = fmt.Sprintf(" (least %v)", lasted(peer.LeastRTT))
		}
		fmt.Fprintf(w, "  %s %s %s, for %v%s\n", printable(peer.Name), printable(peer.Address), printable(peer.Transport), lasted(peer.Age), leaving)
		udp := ""
		if peer.Transport == "udp" {
			udp = fmt.Sprintf(", heard %v ago, loss %.1f%% out %.1f%% in, queue %s (limit: %s)", lasted(peer.Silence),
				100*peer.LossSent, 100*peer.LossReceived, bytesText(float64(peer.Queued)), printable(peer.LimitedBy))
		}
		fmt.Fprintf(w, "    round trip %v%s%s, sent %s, received %s\n", lasted(peer.RTT), least, udp, bytesText(float64(peer.Sent)), bytesText(float64(peer.Received)))
		for _, c := range peer.Connections {
			about, waits := printable(c.Remote), ""
			if c.Target != "" && c.Target != c.Remote {
				about += " to " + printable(c.Target)
			}
			if c.WaitsFor != "" {
				waits = fmt.Sprintf(", waits for %s %v", printable(c.WaitsFor), lasted(c.Waits))
			}
			fmt.Fprintf(w, "    - %s, for %v, sent %s, received %s%s\n", about, lasted(c.Age), bytesText(float64(c.Sent)), bytesText(float64(c.Received)), waits)
		}
	}
	if p.LeftOut.Peers+p.LeftOut.Connections > 0 {
		fmt.Fprintf(w, "  left out, without -all: %d peers, %d connections of those above\n", p.LeftOut.Peers, p.LeftOut.Connections)
	}
}

// printable returns s, quoted if a terminal could take it for something else than text.
func printable(s string) string {
	if quoted := strconv.Quote(s); quoted != `"`+s+`"` {
		return quoted
	}
	return s
}

// lasted returns seconds as a time with few digits.
func lasted(seconds float64) time.Duration {
	d := time.Duration(seconds * float64(time.Second))
	if d < time.Second {
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(time.Second / 10)
}

// showStatus answers with the status: as text or, with json, for machines; with all
// nothing is left out.
func (l *look) showStatus(w http.ResponseWriter, r *http.Request) {
	p, want := l.status(), r.URL.Query()
	p.sort(want.Has("all"))
	if want.Has("json") {
		_ = json.NewEncoder(w).Encode(p)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	p.write(w)
}

// serveStatus serves on a socket of a directory that only this user may open. If the
// directory was not given, that it cannot is only a record of the log.
func (l *look) serveStatus(dir string, handler http.Handler) (stop func(), err error) {
	if dir == "none" || runtime.GOOS == "windows" {
		return func() {}, nil
	}
	path, listener, err := listenStatus(cmp.Or(dir, statusDirs()[0]))
	switch {
	case err != nil && dir != "":
		return nil, fmt.Errorf("-status: %w", err)
	case err != nil:
		l.log.Info("the command status does not show this process", "error", err)
		return func() {}, nil
	}
	l.socket = path
	_, end := serveHTTP(listener, &http.Server{Handler: handler, ReadHeaderTimeout: statusWait, WriteTimeout: statusWait, IdleTimeout: statusWait})
	return func() {
		_ = os.Remove(path)
		end()
	}, nil
}

// listenStatus opens the socket of this process in a directory, which it makes. It has its
// name only when it listens: who finds a socket that does not may remove it.
func listenStatus(dir string) (path string, l *net.UnixListener, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", nil, err
	}
	if err := ownDir(dir); err != nil {
		return "", nil, err
	}
	path = filepath.Join(dir, strconv.Itoa(os.Getpid())+".sock")
	early := strings.TrimSuffix(path, ".sock")
	_ = os.Remove(early)
	if l, err = net.ListenUnix("unix", &net.UnixAddr{Name: early, Net: "unix"}); err != nil {
		return "", nil, err
	}
	l.SetUnlinkOnClose(false)
	if err = os.Chmod(early, 0o600); err == nil {
		err = os.Rename(early, path)
	}
	if err != nil {
		_ = l.Close()
		_ = os.Remove(early)
	}
	return path, l, err
}

// ownDir returns why a directory is not this user's alone.
func ownDir(dir string) error {
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir() || !ownedBySelf(info):
		return fmt.Errorf("%s is not a directory of this user", dir)
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("others may open %s: its mode is %#o, want 0700", dir, info.Mode().Perm())
	}
	return nil
}

// systemDirs is how the directories of the units begin. Only root can make such.
const systemDirs = "/run/kcptunnel"

// statusDirs returns where sockets may be. A process has its own in the first.
func statusDirs() (all []string) {
	if dir, _, _ := strings.Cut(os.Getenv("RUNTIME_DIRECTORY"), ":"); dir != "" { // of systemd
		all = append(all, dir)
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		all = append(all, filepath.Join(dir, "kcptunnel"))
	}
	all = append(all, filepath.Join(os.TempDir(), "kcptunnel-"+strconv.Itoa(os.Getuid())))
	system, _ := filepath.Glob(systemDirs + "*")
	return append(all, slices.DeleteFunc(system, func(dir string) bool { return dir == all[0] })...)
}

// findStatus returns the sockets in directories, and why there are none in those that
// this user may not look into.
func findStatus(dirs []string) (sockets []string, err error) {
	var failed []error
	for _, dir := range dirs {
		_, err := os.ReadDir(dir)
		if err == nil && !strings.HasPrefix(dir, systemDirs) {
			err = ownDir(dir)
		}
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				failed = append(failed, err)
			}
			continue
		}
		found, _ := filepath.Glob(filepath.Join(dir, "*.sock"))
		sockets = append(sockets, found...)
	}
	return sockets, errors.Join(failed...)
}

// getStatus returns what a process says on its socket.
func getStatus(ctx context.Context, socket, path string) ([]byte, error) {
	client := http.Client{Timeout: statusWait, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/"+path, nil)
	if err != nil {
		return nil, err
	}
	answer, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, errors.New(answer.Status)
	}
	return io.ReadAll(io.LimitReader(answer.Body, maxStatus))
}

// statusCommand returns the command status.
func (p *program) statusCommand() *cli.Command {
	return &cli.Command{
		Name: statusFlag, Usage: "show the running processes of this user: peers, connections, and what they wait for",
		Description: "Looks at servers and clients of this user, and those of the unit kcptunnel.service if\nit may, such as root. Exit code 1: there is none.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print JSON, an object for each process"},
			&cli.BoolFlag{Name: "all", Usage: "leave out nothing, of thousands of connections too"},
			statusDirFlag(),
		},
		Action: p.runStatus,
	}
}

// statusDirFlag returns the flag of where sockets are.
func statusDirFlag() cli.Flag {
	return &cli.StringFlag{Name: statusFlag, Usage: "`DIRECTORY` of the sockets for the command status, or none (default: of systemd, or of this user)", HideDefault: true}
}

// runStatus is the command status.
func (p *program) runStatus(ctx context.Context, c *cli.Command) error {
	dirs := statusDirs()
	switch {
	case runtime.GOOS == "windows":
		return errors.New("not on Windows: -debug 127.0.0.1:6060 serves the same under /status")
	case c.Args().Present():
		return wrong(c, "want no arguments, not %q", c.Args().First())
	case c.String(statusFlag) != "":
		dirs = []string{c.String(statusFlag)}
	}
	sockets, hidden := findStatus(dirs)
	shown := 0
	for _, socket := range sockets {
		var one processStatus
		text, err := getStatus(ctx, socket, "status?json&all")
		if err == nil {
			err = json.Unmarshal(text, &one)
		}
		switch {
		case neterr.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist): // the process has ended
			_ = os.Remove(socket)
			continue
		case err != nil:
			hidden = errors.Join(hidden, fmt.Errorf("%s: %w", socket, err))
			continue
		}
		shown++
		one.sort(c.Bool("all"))
		if c.Bool("json") {
			err = json.NewEncoder(p.stdout).Encode(&one)
		} else {
			one.write(p.stdout)
		}
		if err != nil {
			return err
		}
	}
	switch {
	case shown == 0 && hidden == nil:
		return fmt.Errorf("no kcptunnel of this user runs; looked in %s", strings.Join(dirs, ", "))
	case shown == 0:
		return fmt.Errorf("no kcptunnel is found: %w", hidden)
	case hidden != nil:
		fmt.Fprintf(p.stderr, "kcptunnel status: not shown: %v\n", hidden)
	}
	return nil
}
