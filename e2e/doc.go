// Package e2e has the end-to-end tests: whole sessions through the public API, over
// simulated networks. It has nothing but tests.
//
// What needs the internals of package kcp is tested beside the code. What both
// share, and what uses no type of package kcp, is in internal/testenv.
package e2e
