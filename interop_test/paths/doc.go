// Package paths tests sessions with kcp-go on paths of many kinds, and on their changes,
// in virtual time. It is a package of its own as kcp-go has one clock for all sessions.
package paths
