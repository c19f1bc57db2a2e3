package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"

	"github.com/arqnet/kcp/identity"
	"github.com/arqnet/kcp/tunnel"
	"github.com/urfave/cli/v3"
)

// signals returns a channel to which notify sends signals, until ignore is called. A nil
// notify sends none.
func signals(notify func(chan<- os.Signal)) (sent <-chan os.Signal, ignore func()) {
	c := make(chan os.Signal, 1)
	if notify != nil {
		notify(c)
	}
	return c, func() { signal.Stop(c) }
}

// onSignal calls f for each of the signals, until stop is called.
func onSignal(signals <-chan os.Signal, f func(os.Signal)) (stop func()) {
	return inBackground(func(quit <-chan struct{}) {
		for {
			select {
			case s := <-signals:
				f(s)
			case <-quit:
				return
			}
		}
	})
}

// sayEnd logs why ctx has ended, if it has when stop is called.
func sayEnd(ctx context.Context, log *slog.Logger) (stop func()) {
	return inBackground(func(quit <-chan struct{}) {
		select {
		case <-ctx.Done():
		case <-quit:
		}
		if ctx.Err() != nil {
			log.Info("the program ends", "reason", context.Cause(ctx))
		}
	})
}

// inBackground runs f until stop is called, which closes quit and waits for the end of f.
func inBackground(f func(quit <-chan struct{})) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		f(quit)
	}()
	return func() {
		close(quit)
		<-done
	}
}

// reloadServer reads the files of users and authorities, and of the certificate again.
// What cannot be read, or would be refused at the start, stays as it was. It reports
// whether all could.
func reloadServer(s *tunnel.Server, c *cli.Command, log *slog.Logger) (ok bool) {
	warnOfMode(log, "auth", c.String("auth"), true)
	users, err := loadUsers(c)
	if err == nil {
		warnOfRules(log, users)
		err = s.SetUsers(users)
	}
	ok = logReload(log, err, "users", "users reloaded", "users", users.Len())
	if path := c.String("client-ca"); path != "" {
		cas, err := identity.LoadCAs(path)
		if err == nil {
			err = s.SetClientCAs(cas)
		}
		ok = logReload(log, err, "authorities", "authorities of clients reloaded") && ok
	}
	cert, err := serverCertificate(c, tunnel.LoadKey)
	if err == nil {
		err = s.SetCertificate(cert)
	}
	return logReload(log, err, "certificate", "certificate reloaded", "fingerprint", s.Fingerprint()) && ok
}

// logReload says what was reloaded, or that something stays as it was because of err. It
// reports whether there is none.
func logReload(log *slog.Logger, err error, old, text string, attrs ...any) (ok bool) {
	if err != nil {
		for _, one := range each(err) {
			log.Error("reload failed, keeping the old "+old, "error", one)
		}
		return false
	}
	log.Info(text, attrs...)
	return true
}

// reloadClient reads the client's certificate again, if it has one, and reports
// whether it could.
func reloadClient(client *tunnel.Client, c *cli.Command, log *slog.Logger) (ok bool) {
	cert := c.String("tls-cert")
	if cert == "" {
		log.Info("nothing to reload: a client has no files but -tls-cert and -tls-key")
		return true
	}
	pair, err := identity.LoadPair(cert, c.String("tls-key"))
	if err == nil {
		err = client.SetCertificate(&pair)
	}
	return logReload(log, err, "certificate", "certificate reloaded")
}

// survivesHangUp has the process not end with SIGHUP, for which it calls reload. It still
// ends when the terminal that it was started from goes away.
func (p *program) survivesHangUp(ctx context.Context, reload func()) (context.Context, func()) {
	terminal := hasTerminal()
	return p.onHangUp(ctx, func(end func()) {
		if terminal && !hasTerminal() {
			end()
			return
		}
		reload()
	})
}

// endsWithHangUp has the process end in order with SIGHUP, by which ssh ends what carries
// its bytes: so the other end of the session knows.
func (p *program) endsWithHangUp(ctx context.Context) (context.Context, func()) {
	return p.onHangUp(ctx, func(end func()) { end() })
}

// onHangUp calls f for each SIGHUP with what ends the context that it returns.
func (p *program) onHangUp(ctx context.Context, f func(end func())) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	hangUps, ignore := signals(p.notify)
	stop := onSignal(hangUps, func(os.Signal) { f(cancel) })
	return ctx, func() {
		ignore()
		stop()
		cancel()
	}
}

// hasTerminal reports whether the process has a controlling terminal.
func hasTerminal() bool {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err == nil {
		_ = f.Close()
	}
	return err == nil
}
