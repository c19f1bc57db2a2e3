package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/urfave/cli/v3"
)

// configFlag is the flag that names the file.
const configFlag = "config"

// checkFlag is the flag that starts nothing.
const checkFlag = "check"

// commonFlags returns the flags that all commands have.
func commonFlags() []cli.Flag {
	return append(logFlags(), debugFlag(), checkingFlag(),
		&cli.StringFlag{Name: configFlag, Usage: "read flags from a YAML or JSON `FILE` whose keys are the names of flags; the command line has precedence"},
	)
}

// debugFlag returns the flag that all commands that run have.
func debugFlag() cli.Flag {
	return &cli.StringFlag{Name: "debug", Usage: "serve a live page, /metrics for Prometheus, and of a server or client /status and /healthz, over HTTP at `ADDR`, such as 127.0.0.1:6060, without a password", Validator: hostPort}
}

// checkingFlag returns the flag that starts nothing.
func checkingFlag() cli.Flag {
	return &cli.BoolFlag{Name: checkFlag, Usage: "start nothing: read all files that a start would read, print ok, or each mistake with its place, and exit with 0 or 2"}
}

// checked says what -check has found, which is nothing if err is nil.
func (p *program) checked(c *cli.Command, note string, err error) error {
	if err != nil {
		return &usageError{c.FullName(), err}
	}
	_, err = fmt.Fprintln(p.stdout, "ok"+note)
	return err
}

// logFlags returns the flags of what a command says.
func logFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "v", Usage: "also log each connection"},
		&cli.StringFlag{Name: "log-format", Value: "text", Usage: "`FORMAT` of the log: text or json", Validator: oneOf("text", "json")},
	}
}

// timeFlags returns the flags of time-outs that both ends have.
func timeFlags() []cli.Flag {
	return []cli.Flag{
		&cli.DurationFlag{Name: "dial-timeout", Usage: "how long a target may take to answer (default: 10s)", Validator: notNegative[time.Duration], HideDefault: true},
		&cli.DurationFlag{Name: "udp-timeout", Usage: "a flow of UDP ends after this time without packets (default: 2m)", Validator: notNegative[time.Duration], HideDefault: true},
	}
}

// oneOf returns a check for flags.
func oneOf(all ...string) func(string) error {
	return func(s string) error {
		for _, one := range all {
			if s == one {
				return nil
			}
		}
		return fmt.Errorf("%q is not one of %s", s, strings.Join(all, ", "))
	}
}

// hostPort checks an address.
func hostPort(s string) error {
	if _, _, err := net.SplitHostPort(s); err != nil {
		return fmt.Errorf("%q is not an address: want HOST:PORT, such as 127.0.0.1:6060", s)
	}
	return nil
}

// port checks a port, or 0.
func port(n int) error {
	if n < 0 || n > 65535 {
		return fmt.Errorf("%d is not a port", n)
	}
	return nil
}

// notNegative checks a number or a time.
func notNegative[T int | ~int64](n T) error {
	if n < 0 {
		return fmt.Errorf("%v is negative", n)
	}
	return nil
}

// begin reads the file of -config, and returns the log of a command.
func (p *program) begin(c *cli.Command) (*slog.Logger, error) {
	path, given := c.String(configFlag), c.IsSet("auth")
	if path != "" {
		if err := applyFile(c, path); err != nil {
			return nil, err
		}
	}
	outliveReaders()
	log := patient(p.stderr).logger(c.String("log-format"), c.Bool("v"))
	if path != "" { // -auth of a server is the name of a file
		warnOfMode(log, configFlag, path, c.Name == "client" && !given && c.IsSet("auth"))
	}
	return log, nil
}

// splitUser splits what -auth of the client takes.
func splitUser(s string) (user, password string, err error) {
	user, password, ok := strings.Cut(s, ":")
	if s != "" && (!ok || user == "" || password == "") {
		return "", "", errors.New("-auth: want USER:PASSWORD")
	}
	return user, password, nil
}
