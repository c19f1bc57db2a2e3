// Package docs tests the pages in this folder, README.md and kcp.go: their Go
// snippets compile, recipes do what they say, and the figures in tables are
// measured.
package docs
