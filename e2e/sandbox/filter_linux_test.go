//go:build amd64 || arm64

package sandbox

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// operation is a system call, or an option that is set or read by one.
type operation struct {
	call          uintptr
	level, option int  // of setsockopt or getsockopt
	all           bool // any option, or the call has none
	// needed says that nothing can take its place: a clear error has to come.
	needed bool
}

// operations returns what the tests refuse, by name: what internal/udp and package net
// do with sockets.
func operations() map[string]operation {
	all := map[string]operation{}
	for name, call := range map[string]uintptr{
		"recvmmsg": unix.SYS_RECVMMSG, "recvmsg": unix.SYS_RECVMSG, "recvfrom": unix.SYS_RECVFROM,
		"sendmmsg": unix.SYS_SENDMMSG, "sendmsg": unix.SYS_SENDMSG, "sendto": unix.SYS_SENDTO,
		"getpeername": unix.SYS_GETPEERNAME, "getsockopt": unix.SYS_GETSOCKOPT,
		"fcntl": unix.SYS_FCNTL, "prlimit64": unix.SYS_PRLIMIT64,
	} {
		all[name] = operation{call: call, all: true}
	}
	for name, call := range map[string]uintptr{
		"socket": unix.SYS_SOCKET, "bind": unix.SYS_BIND, "connect": unix.SYS_CONNECT,
		"getsockname": unix.SYS_GETSOCKNAME, "setsockopt": unix.SYS_SETSOCKOPT,
	} {
		all[name] = operation{call: call, all: true, needed: true}
	}
	for name, o := range map[string][2]int{
		"UDP_GRO": {unix.SOL_UDP, unix.UDP_GRO}, "UDP_SEGMENT": {unix.SOL_UDP, unix.UDP_SEGMENT},
		"IP_MTU_DISCOVER": {unix.SOL_IP, unix.IP_MTU_DISCOVER}, "IPV6_MTU_DISCOVER": {unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER},
		"IP_PKTINFO": {unix.SOL_IP, unix.IP_PKTINFO}, "IPV6_RECVPKTINFO": {unix.SOL_IPV6, unix.IPV6_RECVPKTINFO},
		"IPV6_V6ONLY": {unix.SOL_IPV6, unix.IPV6_V6ONLY},
		"SO_RCVBUF":   {unix.SOL_SOCKET, unix.SO_RCVBUF}, "SO_SNDBUF": {unix.SOL_SOCKET, unix.SO_SNDBUF},
		"SO_RCVBUFFORCE": {unix.SOL_SOCKET, unix.SO_RCVBUFFORCE}, "SO_SNDBUFFORCE": {unix.SOL_SOCKET, unix.SO_SNDBUFFORCE},
		"SO_REUSEPORT": {unix.SOL_SOCKET, unix.SO_REUSEPORT}, "SO_BROADCAST": {unix.SOL_SOCKET, unix.SO_BROADCAST},
		"SO_DOMAIN": {unix.SOL_SOCKET, unix.SO_DOMAIN}, "SO_MEMINFO": {unix.SOL_SOCKET, unix.SO_MEMINFO},
		"SO_NO_CHECK": {unix.SOL_SOCKET, unix.SO_NO_CHECK}, "SO_BINDTODEVICE": {unix.SOL_SOCKET, unix.SO_BINDTODEVICE},
		"SO_NETNS_COOKIE": {unix.SOL_SOCKET, unix.SO_NETNS_COOKIE},
	} {
		needed := name == "SO_REUSEPORT" || name == "SO_BROADCAST"
		all["set "+name] = operation{unix.SYS_SETSOCKOPT, o[0], o[1], false, needed}
		all["get "+name] = operation{unix.SYS_GETSOCKOPT, o[0], o[1], false, false}
	}
	return all
}

// errnos returns the errors that sandboxes refuse with, by name.
func errnos() map[string]syscall.Errno {
	return map[string]syscall.Errno{
		"EPERM": unix.EPERM, "EACCES": unix.EACCES, "EINVAL": unix.EINVAL, "ENOSYS": unix.ENOSYS,
		"EOPNOTSUPP": unix.EOPNOTSUPP, "ENOPROTOOPT": unix.ENOPROTOOPT,
	}
}

// rule refuses an operation with an error.
type rule struct{ operation, errno string }

func (r rule) String() string { return r.operation + "=" + r.errno }

// rulesOf parses what String of rules has made, with "," between them.
func rulesOf(text string) (rules []rule) {
	for one := range strings.SplitSeq(text, ",") {
		operation, errno, _ := strings.Cut(one, "=")
		rules = append(rules, rule{operation, errno})
	}
	return rules
}

// Offsets of struct seccomp_data.
const (
	dataCall = 0
	dataArgs = 16
)

// program returns the filter of rules, for a machine with the lower half of an argument
// first.
func program(rules []rule) (p []unix.SockFilter) {
	load := func(at uint32) { p = append(p, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}) }
	// unless jumps over what follows up to the next rule, of n instructions.
	unless := func(value uint32, n uint8) {
		p = append(p, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: n, K: value})
	}
	answer := func(a uint32) { p = append(p, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: a}) }
	for _, r := range rules {
		o, errno := operations()[r.operation], errnos()[r.errno]
		load(dataCall)
		if o.all {
			unless(uint32(o.call), 1)
		} else {
			unless(uint32(o.call), 5)
			load(dataArgs + 8)
			unless(uint32(o.level), 3)
			load(dataArgs + 16)
			unless(uint32(o.option), 1)
		}
		answer(unix.SECCOMP_RET_ERRNO | uint32(errno))
	}
	answer(unix.SECCOMP_RET_ALLOW)
	return p
}

// refuse has the system refuse what rules say, to all threads of the process and for
// good.
func refuse(rules []rule) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	filter := program(rules)
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	if thread != 0 {
		return fmt.Errorf("seccomp: thread %s has another filter", strconv.Itoa(int(thread)))
	}
	return nil
}
