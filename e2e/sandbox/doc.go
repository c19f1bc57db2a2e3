// Package sandbox has tests of sessions whose process is refused system calls, as in a
// sandbox (seccomp). It has nothing but tests, which skip themselves where that cannot be
// done.
package sandbox
