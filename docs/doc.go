// Package docs tests the pages in this folder: their Go snippets compile, and the
// figures in their tables are measured.
package docs
