// Command modproxy writes the modules of a commit as a tree of files that
// GOPROXY=file://DIR serves.
//
//	modproxy [-repo PATH] [-revision REV] DIR VERSION MODULE...
//
// MODULE is the folder of a module below the root of the repository, such as
// kcpgo, and . for the root itself. The zip files are those that the go command
// makes of the same commit.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

func main() {
	repo := flag.String("repo", ".", "root of the git repository")
	revision := flag.String("revision", "HEAD", "commit to take the modules from")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: modproxy [flags] DIR VERSION MODULE...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() < 3 {
		flag.Usage()
		os.Exit(2)
	}
	dir, version := flag.Arg(0), flag.Arg(1)
	for _, folder := range flag.Args()[2:] {
		if err := write(*repo, *revision, dir, version, folder); err != nil {
			fmt.Fprintf(os.Stderr, "modproxy: %s: %v\n", folder, err)
			os.Exit(1)
		}
	}
}

// write adds the module in a folder of the repository to the tree at dir.
func write(repo, revision, dir, version, folder string) error {
	repo, err := filepath.Abs(repo)
	if err != nil {
		return err
	}
	goMod, err := git(repo, "show", revision+":"+path.Join(folder, "go.mod"))
	if err != nil {
		return err
	}
	m := module.Version{Path: modfile.ModulePath(goMod), Version: version}
	if err := module.Check(m.Path, m.Version); err != nil {
		return err
	}
	committed, err := git(repo, "show", "-s", "--format=%cI", revision)
	if err != nil {
		return err
	}
	at, err := time.Parse(time.RFC3339, strings.TrimSpace(string(committed)))
	if err != nil {
		return err
	}
	info, err := json.Marshal(struct {
		Version string
		Time    time.Time
	}{version, at.UTC()})
	if err != nil {
		return err
	}
	escaped, err := module.EscapePath(m.Path)
	if err != nil {
		return err
	}

	versions := filepath.Join(dir, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(versions, 0o755); err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"list":            []byte(version + "\n"),
		version + ".info": info,
		version + ".mod":  goMod,
	} {
		if err := os.WriteFile(filepath.Join(versions, name), content, 0o644); err != nil {
			return err
		}
	}
	f, err := os.Create(filepath.Join(versions, version+".zip"))
	if err != nil {
		return err
	}
	defer f.Close()
	subdir := folder
	if subdir == "." {
		subdir = ""
	}
	if err := zip.CreateFromVCS(f, m, repo, revision, subdir); err != nil {
		return err
	}
	return f.Close()
}

func git(repo string, args ...string) ([]byte, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Stderr = repo, os.Stderr
	return cmd.Output()
}
