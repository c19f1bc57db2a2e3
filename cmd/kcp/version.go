package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
)

// versionOptions returns the command line of kcp version.
func versionOptions() *optionSet {
	return &optionSet{synopsis: "kcp version", intro: "Prints the version of this command."}
}

// runVersion prints the version in the build information.
func runVersion(_ context.Context, std streams, args []string) error {
	if _, err := versionOptions().parse(std, args, 0); err != nil {
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
	line := "kcp " + version
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
		line += fmt.Sprintf(" (revision %s%s)", revision, modified)
	}
	return fmt.Sprintf("%s, %s %s/%s", line, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
