// Package identity has the version of the build, as programs print it.
package identity

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// Version returns the version of the build of the program.
func Version() string { return versionOf(build()) }

// VersionLine describes the build in one line.
func VersionLine() string { return lineOf(build()) }

// build returns what the program knows of its build.
func build() *debug.BuildInfo {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info
	}
	return new(debug.BuildInfo)
}

func versionOf(info *debug.BuildInfo) string { return cmp.Or(info.Main.Version, "(devel)") }

func lineOf(info *debug.BuildInfo) string {
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
		revision = fmt.Sprintf(" (revision %s%s)", revision, modified)
	}
	return fmt.Sprintf("%s%s, %s %s/%s", versionOf(info), revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
