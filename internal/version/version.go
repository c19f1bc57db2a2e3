// Package version has the version of the build, as programs print it.
package version

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// Number returns the version of the build of the program.
func Number() string { return number(build()) }

// Line describes the build in one line.
func Line() string { return line(build()) }

// build returns what the program knows of its build.
func build() *debug.BuildInfo {
	info, _ := debug.ReadBuildInfo()
	return cmp.Or(info, new(debug.BuildInfo))
}

func number(info *debug.BuildInfo) string { return cmp.Or(info.Main.Version, "(devel)") }

func line(info *debug.BuildInfo) string {
	of := make(map[string]string)
	for _, s := range info.Settings {
		of[s.Key] = s.Value
	}
	revision := of["vcs.revision"]
	if revision != "" {
		revision = " (revision " + revision[:min(len(revision), 12)]
		if of["vcs.modified"] == "true" {
			revision += ", modified"
		}
		revision += ")"
	}
	return fmt.Sprintf("%s%s, %s %s/%s", number(info), revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
