//go:build dragonfly || freebsd || netbsd || openbsd

package udp

import "golang.org/x/sys/unix"

// infoOptions returns what switches on what read understands.
func infoOptions() [2]infoOption {
	return [2]infoOption{
		{unix.IPPROTO_IP, unix.IP_RECVDSTADDR, "IP_RECVDSTADDR"},
		{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, "IPV6_RECVPKTINFO"},
	}
}

// The local address of IPv4 is an in_addr. IP_SENDSRCADDR, by which it is sent, is
// another name of IP_RECVDSTADDR.
const (
	infoType4     = unix.IP_RECVDSTADDR
	infoAt4       = 0
	infoSource4   = unix.IP_RECVDSTADDR
	infoSize4     = 4
	infoSourceAt4 = 0
)
