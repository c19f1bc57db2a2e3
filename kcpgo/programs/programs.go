package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
)

// programs returns everything that can be run.
func programs() []*program { return []*program{glider(), frp(), gost(), rpcx(), snowflake()} }

const key = "a-secret-that-is-32-bytes-long!!" // no comma, at which glider splits

// glider is a proxy. Its two ends speak SOCKS5 over KCP.
func glider() *program {
	p := &program{
		name:     "glider",
		module:   "github.com/nadoo/glider@v0.16.4",
		imports:  "github.com/xtaci/kcp-go/v5",
		packages: map[string]string{"glider": "."},
	}
	add := func(cipher string, data, parity int, mode string) {
		address := func(udp string) string {
			u := url.URL{Scheme: "kcp", Host: udp}
			if cipher != "plain" {
				u.User = url.UserPassword(cipher, key)
			}
			u.RawQuery = fmt.Sprintf("dataShards=%d&parityShards=%d&mode=%s", data, parity, mode)
			return u.String() + ",socks5://"
		}
		p.tunnels = append(p.tunnels, tunnel{
			name:  fmt.Sprintf("%s, FEC %d/%d, %s", cipher, data, parity, mode),
			socks: true,
			server: func(a addresses) ([]string, error) {
				return []string{"glider", "-verbose", "-listen", address(a.listen), "-check", "disable"}, nil
			},
			client: func(a addresses) ([]string, error) {
				return []string{"glider", "-verbose", "-listen", "socks5://" + a.entry, "-forward", address(a.dial), "-check", "disable"}, nil
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

// frp is a reverse proxy: what is sent to a TCP port of the server arrives at
// the client.
func frp() *program {
	p := &program{
		name:     "frp",
		module:   "github.com/fatedier/frp@v0.65.0",
		imports:  "github.com/xtaci/kcp-go/v5",
		packages: map[string]string{"frps": "./cmd/frps", "frpc": "./cmd/frpc"},
	}
	for _, mux := range []bool{true, false} {
		name := "yamux"
		if !mux {
			name = "no yamux"
		}
		p.tunnels = append(p.tunnels, tunnel{
			name: name,
			server: func(a addresses) ([]string, error) {
				_, kcp, _ := net.SplitHostPort(a.listen)
				_, tcp, _ := net.SplitHostPort(a.other)
				return frpLine(a, "frps", fmt.Sprintf("bindAddr = \"127.0.0.1\"\nbindPort = %s\nkcpBindPort = %s\ntransport.tcpMux = %v\n", tcp, kcp, mux))
			},
			client: func(a addresses) ([]string, error) {
				_, kcp, _ := net.SplitHostPort(a.dial)
				_, entry, _ := net.SplitHostPort(a.entry)
				_, target, _ := net.SplitHostPort(a.target)
				return frpLine(a, "frpc", fmt.Sprintf("serverAddr = \"127.0.0.1\"\nserverPort = %s\nloginFailExit = false\nnatHoleStunServer = \"127.0.0.1:1\"\n"+
					"transport.protocol = \"kcp\"\ntransport.tcpMux = %v\n"+
					"[[proxies]]\nname = \"t\"\ntype = \"tcp\"\nlocalIP = \"127.0.0.1\"\nlocalPort = %s\nremotePort = %s\n", kcp, mux, target, entry))
			},
		})
	}
	return p
}

// frpLine writes a configuration, and returns the command line that uses it.
func frpLine(a addresses, binary, config string) ([]string, error) {
	file := filepath.Join(a.dir, binary+".toml")
	return []string{binary, "-c", file}, os.WriteFile(file, []byte(config), 0o644)
}

// gost is a tunnel. It has smux over KCP.
func gost() *program {
	p := &program{
		name:     "gost",
		module:   "github.com/ginuerzh/gost@v0.0.0-20241231130840-1d516e35e654",
		imports:  "github.com/xtaci/kcp-go/v5",
		packages: map[string]string{"gost": "./cmd/gost"},
	}
	for _, c := range []struct {
		name   string
		config map[string]any
	}{
		{"aes, FEC 10/3", map[string]any{"crypt": "aes", "datashard": 10, "parityshard": 3}},
		{"none, no FEC", map[string]any{"crypt": "none", "datashard": 0, "parityshard": 0}},
	} {
		address := func(a addresses, udp string) (string, error) {
			settings := map[string]any{"key": key, "mode": "fast2", "sndwnd": 1024, "rcvwnd": 1024, "mtu": 1350, "nocomp": true,
				"sockbuf": 4 << 20, "smuxbuf": 4 << 20, "streambuf": 2 << 20, "smuxver": 1, "keepalive": 10}
			for k, v := range c.config {
				settings[k] = v
			}
			b, err := json.Marshal(settings)
			if err != nil {
				return "", err
			}
			file := filepath.Join(a.dir, "kcp.json")
			return "kcp://" + udp + "?c=" + file, os.WriteFile(file, b, 0o644)
		}
		p.tunnels = append(p.tunnels, tunnel{
			name: c.name,
			server: func(a addresses) ([]string, error) {
				u, err := address(a, a.listen)
				return []string{"gost", "-L", u}, err
			},
			client: func(a addresses) ([]string, error) {
				u, err := address(a, a.dial)
				return []string{"gost", "-L", "tcp://" + a.entry + "/" + a.target, "-F", u}, err
			},
		})
	}
	return p
}

// rpcx is a framework for calls. It imports kcp-go by its old path, and sets
// nothing. The client calls by itself.
func rpcx() *program {
	return &program{
		name:     "rpcx",
		module:   "github.com/smallnest/rpcx@v1.9.4",
		imports:  "github.com/xtaci/kcp-go",
		tags:     "kcp",
		packages: map[string]string{"rpcx": "."},
		source:   rpcxSource,
		tunnels: []tunnel{{
			name:  "aes, FEC 10/3, calls",
			alone: true,
			slow:  5, // a window of 32 segments, and kcp-go flushes every 100 ms
			server: func(a addresses) ([]string, error) {
				return []string{"rpcx", "serve", a.listen}, nil
			},
			client: func(a addresses) ([]string, error) {
				return []string{"rpcx", "call", a.dial, fmt.Sprint(a.size)}, nil
			},
		}},
	}
}

const rpcxSource = `package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/smallnest/rpcx/client"
	"github.com/smallnest/rpcx/protocol"
	"github.com/smallnest/rpcx/server"
	kcp "github.com/xtaci/kcp-go"
)

type Data struct{ Content []byte }

type Echo int

func (Echo) Mirror(ctx context.Context, in *Data, out *Data) error {
	out.Content = in.Content
	return nil
}

func main() {
	block, err := kcp.NewAESBlockCrypt([]byte("a secret that is long enough, 32"))
	check(err)
	if os.Args[1] == "serve" {
		s := server.NewServer(server.WithBlockCrypt(block))
		check(s.RegisterName("Echo", new(Echo), ""))
		check(s.Serve("kcp", os.Args[2]))
		return
	}
	size, err := strconv.Atoi(os.Args[3])
	check(err)
	option := client.DefaultOption
	option.Block = block
	option.SerializeType = protocol.MsgPack
	option.Heartbeat = false
	discovery, err := client.NewPeer2PeerDiscovery("kcp@"+os.Args[2], "")
	check(err)
	c := client.NewXClient("Echo", client.Failtry, client.RandomSelect, discovery, option)
	defer c.Close()
	sent, received := sha256.New(), sha256.New()
	start := time.Now()
	for n := 0; n < size; n += 64 << 10 {
		in, out := &Data{bytes.Repeat([]byte{byte(n), byte(n >> 8), byte(n >> 16), 7}, 16<<10)}, new(Data)
		check(c.Call(context.Background(), "Mirror", in, out))
		sent.Write(in.Content)
		received.Write(out.Content)
	}
	if !bytes.Equal(sent.Sum(nil), received.Sum(nil)) {
		fmt.Println("other content")
		os.Exit(1)
	}
	fmt.Println("ok", time.Since(start))
}

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
`

// snowflake hides its traffic in WebRTC. The tests of its package turbotunnel
// use KCP over a net.PacketConn of their own, and look at what it sends.
func snowflake() *program {
	return &program{
		name:     "snowflake",
		module:   "gitlab.torproject.org/tpo/anti-censorship/pluggable-transports/snowflake/v2@v2.11.0",
		imports:  "github.com/xtaci/kcp-go/v5",
		testOnly: "./common/turbotunnel",
	}
}
