// Package network has tests of sessions whose hosts are network namespaces of Linux, with
// routes and addresses that change. They skip themselves without the right to make some.
package network
