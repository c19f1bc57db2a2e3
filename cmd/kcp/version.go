package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
)

// runVersion prints the version in the build information.
func runVersion(_ context.Context, std streams, args []string) error {
	o := &optionSet{synopsis: "kcp version", intro: "Prints the version of this command."}
	if _, err := o.parse(std, args, 0); err != nil {
		return err
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	_, err := fmt.Fprintln(std.out, versionLine(info))
	return err
}

// versionLine describes a build in one line.
func versionLine(info *debug.BuildInfo) string {
	version := info.Main.Version
	if version == "" {
		version = "(devel)"
	}
	revision, modified := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(len(s.Value), 12)]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = ", modified"
		}
	}
	if revision != "" {
		version += fmt.Sprintf(" (revision %s%s)", revision, modified)
	}
	return fmt.Sprintf("kcp %s, %s %s/%s", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
