package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// buildVersion returns the version of the build.
func buildVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// version describes the build in one line.
func version() string {
	v, revision := buildVersion(), ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				revision = " (revision " + s.Value[:min(len(s.Value), 12)] + ")"
			}
		}
	}
	return fmt.Sprintf("%s%s, %s %s/%s", v, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
