package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// program is something that uses kcp-go.
type program struct {
	name     string
	module   string            // with its version
	imports  string            // path by which it imports kcp-go
	tags     string            // of the build
	packages map[string]string // binary -> package of the module to build
	source   string            // a main package of ours that uses the module; "" for the module's own
	testOnly string            // package whose tests are all there is to run; "": none
	tunnels  []tunnel
}

// side is which implementation a binary has.
type side bool

const (
	theirs side = false // kcp-go, as the program requires it
	ours   side = true  // kcpgo, by replace
)

func (s side) String() string {
	if s == ours {
		return "ours"
	}
	return "kcp-go"
}

// buildWith builds p with one implementation and returns the folder of its binaries.
func (o *options) buildWith(ctx context.Context, p *program, s side) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, o.build)
	defer cancel()
	dir := filepath.Join(o.temp, p.name+"-"+s.String())
	if err := o.source(ctx, p, dir); err != nil {
		return "", err
	}
	if s == ours {
		// As a user does: one line, besides that for the engine of the checkout.
		err := goTool(ctx, dir, "mod", "edit",
			"-replace="+p.imports+"="+o.module,
			"-replace=github.com/arqnet/kcp="+filepath.Dir(o.module))
		if err != nil {
			return "", err
		}
	}
	for binary, pkg := range p.packages {
		args := []string{"build", "-mod=mod", "-tags=" + p.tags, "-o", filepath.Join(dir, "bin", binary), pkg}
		if err := goTool(ctx, dir, args...); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// source puts the source of p into dir.
func (o *options) source(ctx context.Context, p *program, dir string) error {
	if p.source != "" {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(p.source), 0o644); err != nil {
			return err
		}
		if err := goTool(ctx, dir, "mod", "init", "example.org/"+p.name); err != nil {
			return err
		}
		return goTool(ctx, dir, "get", "-tags="+p.tags, p.module)
	}
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", p.module)
	cmd.Dir = o.temp // not in a module
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("download of %s: %w\n%s", p.module, err, out)
	}
	var info struct{ Dir string }
	if err := json.Unmarshal(out, &info); err != nil {
		return err
	}
	return copyTree(dir, info.Dir)
}

// copyTree copies a folder of the module cache, whose files cannot be written.
func copyTree(to, from string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), b, 0o644)
	})
}

// goTool runs the go command in dir.
func goTool(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
