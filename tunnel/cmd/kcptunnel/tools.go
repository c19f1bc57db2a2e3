package main

import (
	"bufio"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"strings"

	"github.com/arqnet/kcp/internal/version"
	"github.com/arqnet/kcp/tunnel"
	"github.com/urfave/cli/v3"
	"golang.org/x/term"
)

// hash returns the command hash.
func (p *program) hash() *cli.Command {
	return &cli.Command{
		Name: "hash", Usage: "print a hash of a password, for the file of users", ArgsUsage: "[USER]",
		Description: "Reads a password from the terminal, or a line from standard input, and prints its\n" +
			"hash by bcrypt. With USER it prints USER:HASH, which replaces USER:PASSWORD in the\n" +
			"file of users. Clients go on showing the password.",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "cost", Value: tunnel.DefaultHashCost, Usage: fmt.Sprintf("each step doubles the time that it takes; up to %d", tunnel.MaxHashCost)},
		},
		Action: p.runHash,
	}
}

// runHash is the command hash.
func (p *program) runHash(ctx context.Context, c *cli.Command) error {
	user := c.Args().First()
	switch {
	case c.Args().Len() > 1:
		return wrong(c, "want one user, not %d: a password is read from standard input", c.Args().Len())
	case strings.Contains(user, ":"):
		return wrong(c, "%q: want a user without a colon: the password is read from standard input", user[:strings.Index(user, ":")+1]+"...")
	}
	password, err := p.readPassword(ctx)
	if err != nil {
		return fmt.Errorf("reading the password: %w", err)
	}
	hash, err := tunnel.HashPassword(password, c.Int("cost"))
	if err != nil {
		return &usageError{c.FullName(), err}
	}
	if user != "" {
		hash = user + ":" + hash
	}
	_, err = fmt.Fprintln(p.stdout, hash)
	return err
}

// readPassword reads a password twice from a terminal, which does not show it, or once
// from what is not a terminal.
func (p *program) readPassword(ctx context.Context) (string, error) {
	f, ok := p.stdin.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		line, err := bufio.NewReader(io.LimitReader(p.stdin, 4096)).ReadString('\n')
		if err == io.EOF {
			err = nil
		}
		return strings.TrimRight(line, "\r\n"), err
	}
	var both [2]string
	for i, ask := range []string{"Password: ", "Again: "} {
		fmt.Fprint(p.stderr, ask)
		text, err := readHidden(ctx, int(f.Fd()))
		fmt.Fprintln(p.stderr)
		if err != nil {
			return "", err
		}
		both[i] = text
	}
	if both[0] != both[1] {
		return "", errors.New("the two are not the same")
	}
	return both[0], nil
}

// readHidden reads a line of a terminal that does not show it. If ctx is done, as after
// Ctrl-C, the terminal is as it was.
func readHidden(ctx context.Context, fd int) (string, error) {
	before, err := term.GetState(fd)
	if err != nil {
		return "", err
	}
	type line struct {
		text []byte
		err  error
	}
	lines := make(chan line, 1)
	go func() {
		text, err := term.ReadPassword(fd)
		lines <- line{text, err}
	}()
	select {
	case l := <-lines:
		return string(l.text), l.err
	case <-ctx.Done(): // the goroutine reads on, until the process ends
		_ = term.Restore(fd, before)
		return "", errors.New("interrupted")
	}
}

// fingerprint returns the command fingerprint.
func (p *program) fingerprint() *cli.Command {
	return &cli.Command{
		Name: "fingerprint", Usage: "print the fingerprint of a key or certificate, for -fingerprint", ArgsUsage: "[FILE]",
		Description: "FILE is the -key or -cert of a server, in PEM; without it server.pem. A\n" +
			"certificate has the fingerprint of its key.",
		Action: func(_ context.Context, c *cli.Command) error {
			path := "server.pem"
			switch c.Args().Len() {
			case 0:
			case 1:
				path = c.Args().First()
			default:
				return wrong(c, "want one file, not %d", c.Args().Len())
			}
			f, err := fileFingerprint(path)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(p.stdout, f)
			return err
		},
	}
}

// fileFingerprint returns the fingerprint of the first key or certificate of a file. It
// makes no key.
func fileFingerprint(path string) (string, error) {
	text, err := readFile(path)
	if err != nil {
		return "", err
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case "CERTIFICATE":
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return "", fmt.Errorf("%s: %w", path, err)
			}
			return tunnel.Fingerprint(cert), nil
		case "PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY", "PUBLIC KEY":
			public, err := publicKey(block)
			if err != nil {
				return "", fmt.Errorf("%s: %w", path, err)
			}
			return tunnel.Fingerprint(&x509.Certificate{RawSubjectPublicKeyInfo: public}), nil
		}
	}
	return "", fmt.Errorf("%s has neither a key nor a certificate in PEM", path)
}

// publicKey returns the public key of a block of PEM, as a SubjectPublicKeyInfo.
func publicKey(block *pem.Block) (der []byte, err error) {
	var key any
	switch block.Type {
	case "PUBLIC KEY":
		_, err = x509.ParsePKIXPublicKey(block.Bytes)
		return block.Bytes, err
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	default:
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	}
	if err != nil {
		return nil, err
	}
	private, ok := key.(interface{ Public() crypto.PublicKey })
	if !ok {
		return nil, fmt.Errorf("a key of type %T cannot sign", key)
	}
	return x509.MarshalPKIXPublicKey(private.Public())
}

// version returns the command version.
func (p *program) version() *cli.Command {
	return &cli.Command{
		Name: "version", Usage: "print the version",
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Args().Present() {
				return wrong(c, "want no arguments, not %q", c.Args().First())
			}
			_, err := fmt.Fprintln(p.stdout, "kcptunnel version "+version.Line())
			return err
		},
	}
}

// warnOfMode logs that others on the machine can change a file that says what the program
// does, or read it if it holds secrets.
func warnOfMode(log *slog.Logger, flag, path string, secret bool) {
	info, err := os.Stat(path)
	if err != nil || runtime.GOOS == "windows" {
		return
	}
	mode := info.Mode().Perm()
	text, what := "everybody on this machine can read the file", fs.FileMode(0o004)
	switch {
	case mode&0o002 != 0:
		text, what = "everybody on this machine can change the file", 0o006
	case !secret || mode&0o004 == 0:
		return
	}
	log.Warn(text, "flag", flag, "file", path, "mode", fmt.Sprintf("%#o", mode), "better", fmt.Sprintf("%#o", mode&^what))
}
