// Package schedules has tests of whole sessions under every placement of a few faults on
// their packets: TestSchedules has the rules. It has nothing but tests.
package schedules
