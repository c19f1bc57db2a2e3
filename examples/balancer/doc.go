// Package balancer has the configuration of nginx for KCP servers behind one
// address, and its tests. README.md explains it.
package balancer
