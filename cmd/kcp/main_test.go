package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// result is what a command has left behind.
type result struct {
	code     int
	out, err string
}

func runWith(ctx context.Context, stdin io.Reader, args ...string) result {
	var out, err bytes.Buffer
	code := run(ctx, args, stdin, &out, &err)
	return result{code, out.String(), err.String()}
}

func TestHelpIsNoError(t *testing.T) {
	for _, args := range []string{
		"help", "-h", "--help", "help help", "demo -h", "listen -h", "dial -h", "ping -h", "dial --help", "version -h", "relay -h",
		"help demo", "help relay", "help listen", "help dial", "help version", "listen 127.0.0.1:0 -h", "help -h",
	} {
		got := runWith(t.Context(), nil, strings.Fields(args)...)
		require.Equal(t, exitOK, got.code, args)
		require.Empty(t, got.err, args)
		require.Contains(t, got.out, "Usage:", args)
		for _, line := range strings.Split(got.out, "\n") {
			require.LessOrEqual(t, len(line), 80, "%s: %s", args, line)
		}
	}
	got := runWith(t.Context(), nil, "help")
	for _, c := range commands() {
		require.Contains(t, got.out, "kcp "+c.name+" ")
	}
}

func TestUsageErrors(t *testing.T) {
	for args, want := range map[string]string{
		"frob":                                `unknown subcommand "frob"`,
		"demo -frob":                          "-frob",
		"demo -mtu 10":                        "-mtu: want a whole number from 50 to 65507",
		"demo -sndwnd 0":                      "-sndwnd: want a whole number from 1 to 65535",
		"demo -keepalive 1us":                 "-keepalive is 1µs: it must be in [10ms, 8760h0m0s], or 0 to turn it off\n",
		"demo -cipher rot13":                  "want aes-256-gcm",
		"demo -cipher aes -key x -tls":        "-cipher and TLS exclude each other",
		"dial 127.0.0.1:9 -mtu 1000 -tls":     "-mtu is 1000: it must be at least 1200 with TLS",
		"dial 127.0.0.1:9 -tls -ca none.pem":  "-ca: open none.pem",
		"listen :0 -tls-cert x -tls-key x":    "-tls-cert, -tls-key: certificate x with key x: open x",
		"listen nowhere":                      `":nowhere" is not an address: unknown port nowhere`,
		"relay -to 127.0.0.1:9 -listen x":     `"x" is not an address`,
		"dial 127.0.0.1:9 -q -5s":             "-q: want a duration such as 3s, or -1 to wait forever",
		"demo -key secret":                    "-key and -key-file do nothing without -cipher",
		"demo -key-file /nowhere/to/be/found": "-key-file",
		"demo -key a -key-file b -cipher aes": "the key is already given by -key",
		"dial 127.0.0.1:1 -cipher aes":        "-cipher needs -key-file, -key or the environment variable KCP_KEY",
		"demo -fec 10":                        "such as 10/3",
		"demo -fec 300/3":                     "-fec is 300/3: it must have at least 1 of each, and at most 256 in all",
		"demo -cipher aes -key hex:12":        "want hex: and 64 digits",
		"demo -write-buffer 1kB":              "-write-buffer is 1000",
		"demo -profile fast":                  "-profile: want default, lowlatency or classic",
		"demo -nodelay 3":                     "-nodelay: want off, on or turbo",
		"demo -interval 1ms":                  "-interval is 1ms",
		"demo -minrto 2m":                     "-minrto is 2m0s",
		"demo -minrto 30":                     "-minrto: want a duration with its unit",
		"demo -stream -message":               "-stream and -message",
		"demo -stream=perhaps":                "-stream: want true or false",
		"demo -loss 101%":                     "-loss: want a share from 0% to 100%",
		"demo -loss 100":                      "-loss 100%",
		"demo -delay -1s":                     "-delay: must not be negative",
		"demo -size 8XB":                      "-size: want a size",
		"demo -seed -1":                       "-seed",
		"listen":                              "argument is missing",
		"listen -k=perhaps 127.0.0.1:0":       "-k: want true or false",
		"dial localhost":                      "want HOST:PORT",
		"relay -to nonsense":                  `"nonsense" is not an address`,
		"dial 127.0.0.1:9 -wait 0":            "-wait: must not be 0",
		"dial 127.0.0.1:9 -wait 1us":          "-wait: must be at least 1ms",
		"ping 127.0.0.1:9 -count 0":           "-count: want a whole number from 1",
		"ping 127.0.0.1:9 -alpn x":            "do nothing without -tls",
		"relay":                               "-to is missing",
		"relay -to 127.0.0.1:9 -outage 3s":    "such as 10s+3s",
	} {
		got := runWith(t.Context(), strings.NewReader(""), strings.Fields(args)...)
		require.Equal(t, exitUsage, got.code, args)
		require.Contains(t, got.err, want, args)
		require.Contains(t, got.err, "for usage", args)
		require.Empty(t, got.out, args)
	}
	got := runWith(t.Context(), nil)
	require.Equal(t, exitUsage, got.code)
	require.Contains(t, got.err, "kcp demo")
}

func TestVersion(t *testing.T) {
	for _, arg := range []string{"version", "-version", "--version"} {
		got := runWith(t.Context(), nil, arg)
		require.Equal(t, exitOK, got.code)
		require.Regexp(t, `^kcp \S+.*go1.*\n$`, got.out)
	}
}

// Every command in the documents has flags that exist, with values that are
// possible, and so do the examples of the usage texts.
func TestDocumentedCommands(t *testing.T) {
	line := regexp.MustCompile("(?m)(?:^|`|[|] |go run ./cmd/)(kcp (?:demo|listen|dial|ping|relay|trace)( [^`\n]*)?)")
	end := regexp.MustCompile(`  |[<>|#].*`)
	mention := regexp.MustCompile("needs an argument|an argument is missing") // a flag, by its name alone
	indent := regexp.MustCompile(`(?m)^ +`)
	keep, out := false, ""
	positional := map[string]int{"trace": 1, "dial": 1, "ping": 1, "listen": 1}
	options := map[string]func() *optionSet{
		"demo":   func() *optionSet { return newDemo(streams{}).options() },
		"relay":  func() *optionSet { return newRelay(streams{}).options() },
		"trace":  func() *optionSet { return traceOptions(&out) },
		"dial":   func() *optionSet { return dialOptions(newNetcat(streams{}, "dial")) },
		"ping":   func() *optionSet { return pingOptions(newNetcat(streams{}, "ping"), new(pinger)) },
		"listen": func() *optionSet { return listenOptions(newNetcat(streams{}, "listen"), &keep) },
	}
	texts := []string{mainUsage()}
	for _, o := range options {
		texts = append(texts, o().examples)
	}
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../kcpgo/*.md"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, f := range files {
			b, err := os.ReadFile(f)
			require.NoError(t, err)
			texts = append(texts, string(b))
		}
	}
	n := 0
	for _, text := range texts {
		for _, m := range line.FindAllStringSubmatch(indent.ReplaceAllString(text, ""), -1) {
			args := strings.Fields(end.Split(m[1], 2)[0])[1:]
			if len(args) < 2 || strings.Contains(m[1], "-trace .") {
				continue // a subcommand by its name alone; a folder for traces
			}
			n++
			_, err := options[args[0]]().parse(streams{}, args[1:], positional[args[0]])
			if err != nil && !mention.MatchString(err.Error()) {
				require.NoError(t, err, m[1])
			}
		}
	}
	require.Greater(t, n, 30, "found few commands in the documents")
}
