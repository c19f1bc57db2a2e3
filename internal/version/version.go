// Package version tells which build of a program runs.
package version

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// Main returns the version of the build.
func Main() string { return main(build()) }

// Line describes the build in one line.
func Line() string { return line(build()) }

// build returns what the program knows of its build.
func build() *debug.BuildInfo {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info
	}
	return new(debug.BuildInfo)
}

func main(info *debug.BuildInfo) string { return cmp.Or(info.Main.Version, "(devel)") }

func line(info *debug.BuildInfo) string {
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
	return fmt.Sprintf("%s%s, %s %s/%s", main(info), revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
