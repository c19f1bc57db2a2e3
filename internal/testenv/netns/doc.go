// Package netns gives tests hosts of their own, which are network namespaces of Linux.
// Tests that have no right to make some skip themselves.
package netns
