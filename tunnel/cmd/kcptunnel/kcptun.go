package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/arqnet/kcp/tunnel/kcptun"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/urfave/cli/v3"
)

// kcptunServer returns the command kcptun-server.
func (p *program) kcptunServer() *cli.Command {
	d := kcptun.ServerDefaults()
	return p.kcptunCommand("kcptun-server", "accept clients of the program kcptun", &d, kcptun.Serve, kcptun.CheckServer,
		&cli.StringFlag{Name: "listen", Aliases: []string{"l"}, Value: d.Listen, Destination: &d.Listen, Usage: "UDP `ADDR` to listen on; a range of ports as in :3000-3009"},
		&cli.StringFlag{Name: "target", Aliases: []string{"t"}, Value: d.Target, Destination: &d.Target, Usage: "TCP `ADDR`, or path of a Unix socket, that connections are forwarded to"},
	)
}

// kcptunClient returns the command kcptun-client.
func (p *program) kcptunClient() *cli.Command {
	d := kcptun.ClientDefaults()
	return p.kcptunCommand("kcptun-client", "carry connections to a server of the program kcptun", &d, kcptun.Run, kcptun.CheckClient,
		&cli.StringFlag{Name: "localaddr", Aliases: []string{"l"}, Value: d.Listen, Destination: &d.Listen, Usage: "TCP `ADDR` to listen on"},
		&cli.StringFlag{Name: "remoteaddr", Aliases: []string{"r"}, Value: d.Target, Destination: &d.Target, Usage: "`ADDR` of the server; a range of ports as in host:3000-3009"},
		&cli.IntFlag{Name: "conn", Value: d.Conn, Destination: &d.Conn, Usage: "number of sessions with the server"},
		&cli.IntFlag{Name: "autoexpire", Usage: "seconds after which a session takes no more connections; 0: never"},
		&cli.IntFlag{Name: "scavengettl", Value: seconds(d.ScavengeTTL), Usage: "seconds until it is closed after that; negative: never"},
	)
}

// kcptunCommand returns a command with flags of its own, which set d.
func (p *program) kcptunCommand(name, usage string, d *kcptun.Config, run func(context.Context, kcptun.Config) error, check func(kcptun.Config) error, flags ...cli.Flag) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, Description: kcptunText, Flags: append(flags, kcptunFlags(d)...),
		Action: func(ctx context.Context, c *cli.Command) error { return p.runKcptun(ctx, c, d, run, check) },
	}
}

const kcptunText = "Flags, defaults and file are as in kcptun. Between two kcptunnel use the commands\n" +
	"server and client, which are safer, and have neither of two faults of these: with\n" +
	"-smuxver 1 a reader that stops holds up all connections of its session (give\n" +
	"-smuxver 2 at both ends), and all modes but -mode manual -nc 0 have no congestion\n" +
	"control, so that they flood a narrow uplink."

// notOurs are flags and keys of kcptun that do nothing here.
func notOurs() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "acknodelay", Hidden: true},
		&cli.BoolFlag{Name: "pprof", Hidden: true},
		&cli.StringFlag{Name: "qpp-count", Aliases: []string{"QPPCount"}, Hidden: true},
	}
}

// refusedOnes are flags and keys of kcptun that change what travels, and are not there.
func refusedOnes() map[string]string {
	return map[string]string{
		"tcp": "packets in the form of TCP are not supported",
		"QPP": "QPP is not supported",
	}
}

// kcptunFlags returns the flags that both ends have. They set d, except for times.
func kcptunFlags(d *kcptun.Config) []cli.Flag {
	number := func(to *int, name, usage string, aliases ...string) cli.Flag {
		return &cli.IntFlag{Name: name, Aliases: aliases, Value: *to, Destination: to, Usage: usage, Validator: notNegative[int]}
	}
	period, keepAlive, closeWait := 60, seconds(d.KeepAlive), seconds(d.CloseWait)
	flags := []cli.Flag{
		&cli.StringFlag{Name: "key", Value: d.Key, Destination: &d.Key, Usage: "`PASSWORD`, the same at both ends", Sources: cli.EnvVars("KCPTUN_KEY")},
		&cli.StringFlag{Name: "crypt", Value: d.Crypt, Destination: &d.Crypt, Usage: "cipher: " + strings.Join(kcptun.Ciphers(), ", "), Validator: oneOf(kcptun.Ciphers()...)},
		&cli.StringFlag{Name: "mode", Value: d.Mode, Destination: &d.Mode, Usage: "fast3, fast2, fast, normal, or manual", Validator: oneOf("fast3", "fast2", "fast", "normal", "manual")},
		number(&d.NoDelay, "nodelay", "1: shorter time-outs; this, interval, resend and nc only with -mode manual"),
		number(&d.Interval, "interval", "flush interval in milliseconds"),
		number(&d.Resend, "resend", "later acknowledgements after which a packet is sent again; 0: off"),
		number(&d.NoCongestion, "nc", "1 turns congestion control off"),
		number(&d.RateLimit, "ratelimit", "most bytes that a session sends in a second; 0: any number"),
		number(&d.MTU, "mtu", "size of the largest packet in bytes"),
		number(&d.SndWnd, "sndwnd", "send window in packets"),
		number(&d.RcvWnd, "rcvwnd", "receive window in packets"),
		number(&d.DataShard, "datashard", "data packets in a group of forward error correction; 0: off", "ds"),
		number(&d.ParityShard, "parityshard", "parity packets in a group", "ps"),
		number(&d.DSCP, "dscp", "DSCP of packets (6 bits)"),
		&cli.BoolFlag{Name: "nocomp", Destination: &d.NoComp, Usage: "do not compress"},
		number(&d.SockBuf, "sockbuf", "size of the socket's buffers in bytes"),
		number(&d.SmuxVer, "smuxver", "version of smux: 1 or 2"),
		number(&d.SmuxBuf, "smuxbuf", "receive buffer of a session in bytes"),
		number(&d.StreamBuf, "streambuf", "receive buffer of a connection in bytes, with smux 2"),
		number(&d.FrameSize, "framesize", "size of the largest smux frame in bytes"),
		number(&keepAlive, "keepalive", "seconds between keep-alives"),
		number(&closeWait, "closewait", "seconds that one direction may be idle after the other has ended"),
		&cli.StringFlag{Name: "log", Usage: "`FILE` for the log; default: standard error"},
		&cli.BoolFlag{Name: "quiet", Destination: &d.QuietConnections, Usage: "do not log connections"},
		&cli.StringFlag{Name: "snmplog", Usage: "`FILE` for a table of counters; its name may contain a date, as in snmp-20060102.log"},
		number(&period, "snmpperiod", "seconds between rows of the table"),
		debugFlag(), checkingFlag(),
		&cli.StringFlag{Name: "c", Usage: "JSON `FILE`, which has precedence over the command line"},
	}
	flags = append(flags, notOurs()...)
	for name := range refusedOnes() {
		flags = append(flags, &cli.BoolFlag{Name: name, Hidden: true})
	}
	return append(flags, logFlags()...)
}

// seconds returns a time in seconds.
func seconds(d time.Duration) int { return int(d / time.Second) }

// inSeconds returns a time of n seconds, or the longest that there is.
func inSeconds(n int) time.Duration {
	const most = math.MaxInt64 / int64(time.Second)
	return time.Duration(max(min(int64(n), most), -most)) * time.Second
}

// runKcptun runs a command with what the flags and the file say.
func (p *program) runKcptun(ctx context.Context, c *cli.Command, config *kcptun.Config, run func(context.Context, kcptun.Config) error, check func(kcptun.Config) error) error {
	var idle []string
	path, given := c.String("c"), c.String("key")
	if path != "" {
		var err error
		if idle, err = applyKcptunFile(c, path); err != nil {
			return err
		}
	}
	if c.Args().Present() {
		return wrong(c, "want flags only, not %q", c.Args().First())
	}
	for name, why := range refusedOnes() {
		if c.Bool(name) {
			return wrong(c, "-%s: %s", name, why)
		}
	}
	config.KeepAlive, config.CloseWait = inSeconds(c.Int("keepalive")), inSeconds(c.Int("closewait"))
	if c.Name == "kcptun-client" {
		config.AutoExpire, config.ScavengeTTL = inSeconds(max(c.Int("autoexpire"), 0)), inSeconds(c.Int("scavengettl"))
	}
	if c.Bool(checkFlag) {
		return p.checked(c, "", check(*config))
	}
	log, closeLog, err := p.kcptunLog(c)
	if err != nil {
		return err
	}
	defer closeLog()
	if path != "" {
		warnOfMode(log, "c", path, c.String("key") != given)
	}
	warnOfKcptun(c, log, idle)
	config.Logger = log
	seen := &look{log: log, collectors: []prometheus.Collector{snmpCollector{}}}
	_, stop, err := seen.serve(c)
	if err != nil {
		return err
	}
	defer stop()
	config.Observe = seen.endpoints.Add
	defer sayEnd(ctx, log)()
	ctx, cancel := context.WithCancel(ctx)
	var writing sync.WaitGroup
	defer func() {
		cancel()
		writing.Wait()
	}()
	if path, period := c.String("snmplog"), inSeconds(c.Int("snmpperiod")); path != "" && period > 0 {
		table := &snmpTable{path: path}
		writing.Go(func() { table.run(ctx, period, log) })
	}
	config.Listening = func(net.Addr) { notifySystemd("READY=1") }
	unhung, unhook := p.survivesHangUp(ctx, func() { log.Info("nothing to reload") })
	defer unhook()
	err = run(unhung, *config)
	var bad *kcptun.SettingError
	if errors.As(err, &bad) {
		return &usageError{c.FullName(), err}
	}
	return err
}

// warnOfKcptun logs what the settings do that may not be meant. Those of idle do nothing.
func warnOfKcptun(c *cli.Command, log *slog.Logger, idle []string) {
	if c.String("key") == kcptun.PublicKey && !slices.Contains([]string{"null", "none"}, c.String("crypt")) {
		log.Warn("the key is the default of kcptun, which everybody knows: give both ends another one", "flag", "key")
	}
	if c.Int("smuxver") == 1 {
		log.Info("a reader that stops holds up all connections of its session", "better", "-smuxver 2 at both ends, or the commands server and client")
	}
	if c.String("mode") != "manual" || c.Int("nc") == 1 {
		log.Info("there is no congestion control: a narrow uplink is flooded", "better", "-mode manual -nc 0, or the commands server and client")
	}
	if idle = withoutEffect(c, idle); len(idle) > 0 {
		log.Warn("settings without effect", "settings", strings.Join(idle, ", "))
	}
}

// kcptunLog returns the log of a command, and a function that closes its file.
func (p *program) kcptunLog(c *cli.Command) (log *slog.Logger, closeLog func(), err error) {
	outliveReaders()
	w, closeLog := patient(p.stderr), func() {}
	if path := c.String("log"); path != "" {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return nil, nil, fmt.Errorf("-log: %w", err)
		}
		w = patient(f)
		closeLog = func() {
			w.flush(flushTime)
			_ = f.Close()
		}
	}
	return w.logger(c.String("log-format"), c.Bool("v")), closeLog, nil
}
