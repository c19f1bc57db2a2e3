package main

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/arqnet/kcp"
	"github.com/urfave/cli/v3"
)

// Names of the flags of sessions.
const (
	keepAliveFlag   = "keepalive"
	peerTimeoutFlag = "peer-timeout"
	idleTimeoutFlag = "idle-timeout"
	maxMemoryFlag   = "max-memory"
	maxRateFlag     = "max-rate"
	maxSessionsFlag = "max-sessions"
	maxEachFlag     = "max-sessions-per-address"
)

// sessionFlags returns the flags of sessions that both ends have.
func sessionFlags() []cli.Flag {
	return []cli.Flag{
		&cli.DurationFlag{Name: keepAliveFlag, Usage: "silence after which a keep-alive is sent; 0: never (default: 10s)", Validator: sessionTime, HideDefault: true},
		&cli.DurationFlag{Name: peerTimeoutFlag, Usage: "end the session if the other end does not answer for this time; 0: never (default: 30s)", Validator: sessionTime, HideDefault: true},
		&cli.DurationFlag{Name: idleTimeoutFlag, Usage: "end a session after this time without data (default: never)", Validator: sessionTime, HideDefault: true},
		&cli.StringFlag{Name: maxMemoryFlag, Usage: "most memory that received data may take, a `SIZE` such as 256MiB (default: 1GiB)", Validator: memoryText},
		&cli.StringFlag{Name: maxRateFlag, Usage: "most that a session sends, a `RATE` in bytes a second such as 1.2MB, somewhat below what a narrow uplink carries (default: any)", Validator: rateText},
	}
}

// serverSessionFlags returns those that only a server has.
func serverSessionFlags() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Name: maxSessionsFlag, Usage: "most sessions at a time (default: 65536)", Validator: positive, HideDefault: true},
		&cli.IntFlag{Name: maxEachFlag, Usage: "most sessions from one IPv4 address, or from one IPv6 /64 network (default: half of -max-sessions)", Validator: positive, HideDefault: true},
	}
}

// sessionTime checks a time of a session.
func sessionTime(d time.Duration) error {
	if d != 0 && d < 10*time.Millisecond || d > 365*24*time.Hour {
		return fmt.Errorf("%v is not 0, or from 10ms to 8760h", d)
	}
	return nil
}

// positive checks a number.
func positive(n int) error {
	if n < 1 || n > math.MaxInt32 {
		return fmt.Errorf("%d is not from 1 to %d", n, math.MaxInt32)
	}
	return nil
}

// memoryText checks what -max-memory takes.
func memoryText(s string) error {
	_, err := memorySize(s)
	return err
}

// rateText checks what -max-rate takes.
func rateText(s string) error {
	_, err := byteRate(s)
	return err
}

// memorySize returns a number of bytes of memory, which may have a unit.
func memorySize(s string) (int, error) { return sizeWithin(s, 64<<10, "64KiB") }

// byteRate returns a number of bytes a second, which may have a unit; 0: any.
func byteRate(s string) (int, error) {
	if s == "0" {
		return 0, nil
	}
	return sizeWithin(strings.TrimSuffix(s, "/s"), 1000, "1KB")
}

// sizeWithin returns a number of bytes from least on, which may have a unit.
func sizeWithin(s string, least float64, leastText string) (int, error) {
	digits, factor := s, 1.0
	for _, unit := range []struct {
		name   string
		factor float64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30}, {"B", 1}} {
		if rest, ok := strings.CutSuffix(s, unit.name); ok {
			digits, factor = strings.TrimSpace(rest), unit.factor
			break
		}
	}
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil || n != n {
		return 0, fmt.Errorf("%q is not a size: want a number of bytes, or one with a unit, such as 256MiB", s)
	}
	if n *= factor; n < least || n > 2<<30-1 {
		return 0, fmt.Errorf("want from %s to less than 2GiB", leastText)
	}
	return int(n), nil
}

// sessionConfig returns the settings of sessions that the flags make.
func sessionConfig(c *cli.Command) *kcp.Config {
	orNever := func(name string) time.Duration {
		d := c.Duration(name)
		if d == 0 && c.IsSet(name) {
			return -1
		}
		return d
	}
	config := &kcp.Config{
		Shards: c.Int("shards"), KeepAlive: orNever(keepAliveFlag), PeerTimeout: orNever(peerTimeoutFlag), IdleTimeout: c.Duration(idleTimeoutFlag),
		Limits: kcp.Limits{MaxSessions: c.Int(maxSessionsFlag), MaxSessionsPerAddress: c.Int(maxEachFlag)},
	}
	if s := c.String(maxMemoryFlag); s != "" {
		config.Limits.MaxBuffered, _ = memorySize(s) // the flag has looked at it
	}
	config.MaxRate, _ = byteRate(cmp.Or(c.String(maxRateFlag), "0"))
	return config
}
