package udp

import "golang.org/x/sys/unix"

// infoOptions returns what switches on what read understands. A socket of IPv6 may
// carry IPv4 too; one of IPv4 refuses the option of IPv6.
func infoOptions() [2]infoOption {
	return [2]infoOption{
		{unix.SOL_IP, unix.IP_PKTINFO, "IP_PKTINFO"},
		{unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, "IPV6_RECVPKTINFO"},
	}
}

// The local address of IPv4 is an in_pktinfo, of 12 bytes. In received ones
// ipi_spec_dst is the address to answer from: if the datagram was sent to several
// hosts, it is not the destination.
const (
	infoType4     = unix.IP_PKTINFO
	infoAt4       = 4 // ipi_spec_dst
	infoSource4   = unix.IP_PKTINFO
	infoSize4     = 12
	infoSourceAt4 = 4
)
