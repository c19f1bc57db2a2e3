// Package paths tests sessions on paths of every kind, and on their changes.
package paths
