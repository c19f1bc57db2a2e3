// Package sizes has tests of packet sizes on hosts and routers of their own, which
// are network namespaces. It has nothing but tests, which skip themselves without
// the right to make those.
package sizes
