package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version describes the build in one line.
func version() string {
	v, revision := "(devel)", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Version != "" {
			v = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				revision = " (revision " + s.Value[:min(len(s.Value), 12)] + ")"
			}
		}
	}
	return fmt.Sprintf("%s%s, %s %s/%s", v, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
