package contract

import "testing"

// pending leaves out what package kcpgo does not do yet.
func pending(t *testing.T) {
	if ours {
		t.Skip("not yet so")
	}
}
