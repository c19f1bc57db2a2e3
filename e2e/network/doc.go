// Package network has tests of sessions whose hosts are network namespaces of Linux, with
// routes, addresses and packet sizes that change. They skip themselves without the right
// to make some.
package network
