// Package version tells which build this is.
package version

import "runtime/debug"

// version is set by the linker for releases.
var version = ""

// String is the release's version, else the commit that was built, else "devel".
func String() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				return "devel-" + s.Value[:12]
			}
		}
	}
	return "devel"
}
