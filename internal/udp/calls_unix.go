//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package udp

// messagesRefused returns nil: nothing is known of such systems.
func messagesRefused() error { return nil }
