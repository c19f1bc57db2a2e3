// Package customs is what package compat and the sessions have in common.
package customs

// Customs are ways of kcp-go in which a session may behave. Package compat
// describes them.
type Customs struct {
	SegmentBound       bool
	ReadAfterClose     bool
	DataBeforeDeadline bool
	Validated          func()
}
