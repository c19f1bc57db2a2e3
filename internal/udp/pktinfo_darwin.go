package udp

import "golang.org/x/sys/unix"

// infoOptions returns what switches on what read understands.
func infoOptions() [2]infoOption {
	return [2]infoOption{
		{unix.IPPROTO_IP, unix.IP_RECVPKTINFO, "IP_RECVPKTINFO"},
		{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, "IPV6_RECVPKTINFO"},
	}
}

// The local address of IPv4 is an in_pktinfo, of 12 bytes. Received ones have it in
// ipi_addr.
const (
	infoType4     = unix.IP_PKTINFO
	infoAt4       = 8 // ipi_addr
	infoSource4   = unix.IP_PKTINFO
	infoSize4     = 12
	infoSourceAt4 = 4 // ipi_spec_dst
)
