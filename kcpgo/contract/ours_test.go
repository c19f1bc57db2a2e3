//go:build kcpgo

package contract

// ours reports whether the tests run with package kcpgo in place of kcp-go.
const ours = true
