// Package programs builds programs that nobody wrote for this module, each with kcp-go and
// with package kcpgo in its place, as their users would, and sends data through them.
package programs

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// program is something that uses kcp-go: two ends with a way to run each. They come
// through the module proxy by exact versions.
type program struct {
	module string
	builds []string // the packages of its binaries
	setups []setup
}

// setup is one way to run a program. Both functions return command lines.
type setup struct {
	name           string
	socks          bool // the client takes SOCKS5 for any target, not TCP for one
	server, client func(t *testing.T, a addresses) []string
}

// addresses are those of one case, all of 127.0.0.1.
type addresses struct {
	server netip.AddrPort // UDP: the server listens there
	dial   netip.AddrPort // UDP: the client talks to it: server, or the relay before it
	entry  netip.AddrPort // TCP: what is sent there arrives at the target
	target netip.AddrPort // TCP
}

// glider is a proxy, of which the two ends speak SOCKS5 over KCP.
func glider() program {
	p := program{module: "github.com/nadoo/glider@v0.16.4", builds: []string{"."}}
	add := func(cipher string, data, parity int, mode string) {
		at := func(to netip.AddrPort) string {
			u := url.URL{Scheme: "kcp", Host: to.String()}
			if cipher != "plain" {
				u.User = url.UserPassword(cipher, "a-secret-that-is-32-bytes-long!!") // it has no comma
			}
			u.RawQuery = fmt.Sprintf("dataShards=%d&parityShards=%d&mode=%s", data, parity, mode)
			return u.String() + ",socks5://"
		}
		p.setups = append(p.setups, setup{
			name: fmt.Sprintf("%s, FEC %d/%d, %s", cipher, data, parity, mode), socks: true,
			server: func(_ *testing.T, a addresses) []string {
				return []string{"glider", "-verbose", "-listen", at(a.server), "-check", "disable"}
			},
			client: func(_ *testing.T, a addresses) []string {
				return []string{"glider", "-verbose", "-listen", "socks5://" + a.entry.String(), "-forward", at(a.dial), "-check", "disable"}
			},
		})
	}
	for _, cipher := range []string{"plain", "aes", "salsa20", "sm4", "xor"} {
		add(cipher, 0, 0, "fast2")
		add(cipher, 10, 3, "fast2")
	}
	for _, mode := range []string{"normal", "fast", "fast3"} {
		add("aes", 10, 3, mode)
	}
	return p
}

// frp is a reverse proxy: the server listens for what is to reach the client.
func frp() program {
	p := program{module: "github.com/fatedier/frp@v0.65.0", builds: []string{"./cmd/frps", "./cmd/frpc"}}
	for _, mux := range []bool{true, false} {
		line := func(t *testing.T, name, format string, args ...any) []string {
			path := filepath.Join(t.TempDir(), name+".toml")
			require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, format+"transport.tcpMux = %v\n", append(args, mux)...), 0o600))
			return []string{name, "-c", path}
		}
		p.setups = append(p.setups, setup{
			name: fmt.Sprintf("yamux %v", mux),
			server: func(t *testing.T, a addresses) []string {
				return line(t, "frps", "bindAddr = \"127.0.0.1\"\nbindPort = %d\nkcpBindPort = %d\n", freePort(t).Port(), a.server.Port())
			},
			client: func(t *testing.T, a addresses) []string {
				return line(t, "frpc", "serverAddr = \"127.0.0.1\"\nserverPort = %d\nloginFailExit = false\nnatHoleStunServer = \"127.0.0.1:1\"\n"+
					"transport.protocol = \"kcp\"\nproxies = [{name = \"t\", type = \"tcp\", localIP = \"127.0.0.1\", localPort = %d, remotePort = %d}]\n",
					a.dial.Port(), a.target.Port(), a.entry.Port())
			},
		})
	}
	return p
}

// freePort returns an address that nobody has.
func freePort(t *testing.T) netip.AddrPort { return netip.MustParseAddrPort(testenv.FreeAddress(t)) }

// In all pairs of an end with ours and one with kcp-go, also over a relay that loses 3 %,
// what is sent arrives. KCP_PROGRAMS=1 runs it; to build the programs takes minutes.
func TestPrograms(t *testing.T) {
	if os.Getenv("KCP_PROGRAMS") == "" {
		t.Skip("make kcpgo runs it")
	}
	for name, p := range map[string]program{"glider": glider(), "frp": frp()} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := build(t, p, true), build(t, p, false)
			for _, s := range p.setups {
				for pair, bins := range map[string][2]string{"ours": {ours, ours}, "client": {ours, theirs}, "server": {theirs, ours}} {
					for path, link := range map[string]netsim.LinkConfig{"direct": {}, "relay": {Delay: 10 * time.Millisecond, Loss: 0.03}} {
						t.Run(s.name+"/"+pair+"/"+path, func(t *testing.T) { s.run(t, bins[0], bins[1], link) })
					}
				}
			}
		})
	}
}

// build builds a program, with a line of go.mod for kcpgo, and one for the engine of the
// checkout. It returns the folder of its binaries.
func build(t *testing.T, p program, ours bool) string {
	t.Helper()
	kcpgo, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir := t.TempDir()
	var info struct{ Dir string }
	require.NoError(t, json.Unmarshal(goTool(t, dir, "mod", "download", "-json", p.module), &info))
	source := filepath.Join(dir, "source")
	require.NoError(t, os.CopyFS(source, os.DirFS(info.Dir)))
	if ours {
		goTool(t, source, "mod", "edit", "-replace=github.com/xtaci/kcp-go/v5="+kcpgo, "-replace=github.com/arqnet/kcp="+filepath.Dir(kcpgo))
	}
	goTool(t, source, append([]string{"build", "-mod=mod", "-o", dir + "/"}, p.builds...)...)
	return dir
}

// goTool runs the go command in a folder, and returns what it prints.
func goTool(t *testing.T, dir string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	cmd.Stderr = new(testenv.Records)
	out, err := cmd.Output()
	require.NoError(t, err, "go %q: %s", args, cmd.Stderr)
	return out
}

// run starts both ends, and sends through them.
func (s *setup) run(t *testing.T, client, server string, link netsim.LinkConfig) {
	a := addresses{server: freePort(t), entry: freePort(t), target: netip.MustParseAddrPort(testenv.Target(t, testenv.Echo))}
	a.dial = a.server
	if link.Loss > 0 {
		relay, err := netsim.NewRelay(a.server.String(), link, link, 1)
		require.NoError(t, err)
		defer relay.Close()
		a.dial = relay.Addr().AddrPort()
	}
	start(t, server, s.server(t, a))
	start(t, client, s.client(t, a))
	testenv.Await(t, func() bool { // there is a way
		conn, err := s.connect(a)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	conn, err := s.connect(a)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Time{}))
	testenv.Exchange(t, conn, 20_000_000)
}

// start runs a binary until the test ends.
func start(t *testing.T, dir string, line []string) {
	t.Helper()
	var said testenv.Records
	cmd := exec.Command(filepath.Join(dir, line[0]), line[1:]...)
	cmd.Stdout, cmd.Stderr = &said, &said
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%q says:\n%s", line, &said)
		}
	})
}

// connect opens a connection to the target, from which a byte has come back.
func (s *setup) connect(a addresses) (net.Conn, error) {
	conn, err := net.Dial("tcp", a.entry.String())
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	ip, port := a.target.Addr().As4(), a.target.Port()
	request := []byte{5, 1, 0, 1, ip[0], ip[1], ip[2], ip[3], byte(port >> 8), byte(port)} // CONNECT (RFC 1928 §4)
	for _, say := range [][]byte{{5, 1, 0}, request, {'x'}} {
		if len(say) > 1 && !s.socks {
			continue
		}
		answer := make([]byte, map[int]int{3: 2, 10: 10, 1: 1}[len(say)])
		if _, err = conn.Write(say); err == nil {
			_, err = io.ReadFull(conn, answer)
		}
		if err == nil && len(answer) > 1 && answer[1] != 0 {
			err = fmt.Errorf("SOCKS5 answers %v", answer)
		}
		if err != nil {
			_ = conn.Close()
			return nil, err
		}
	}
	return conn, nil
}
