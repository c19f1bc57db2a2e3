// Package takeover has the end-to-end tests of socket takeover over processes of the
// system: of Listener.HandOver and TakeOver of package kcp. It has nothing but tests,
// which run on Linux only.
package takeover
