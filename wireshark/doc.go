// Package wireshark holds kcp.lua, a dissector for Wireshark and tshark, and its
// test.
//
//	tshark -X lua_script:wireshark/kcp.lua -r capture.pcap
//
// The dissector shows segments, forward error correction, datagrams, signals,
// pieces and the headers of packets that TLS protects, as WIRE.md describes
// them, and the packets of kcp-go. It recognises them on any port. Fields are
// named kcp.conv, kcp.cmd, kcp.sn, kcp.signal and so on, and kcp.bad marks what
// is malformed. kcp.analysis.retransmission marks a segment that was captured
// before, as tcp.analysis.retransmission does: it was retransmitted, or is a
// redundant copy. What TLS or a cipher hides cannot be marked.
//
// # Captures of merged packets
//
// With UDP GSO a sender hands several packets to the kernel as one, and with GRO the
// kernel does so at the receiver. A capture at the sender, or on the loopback interface,
// has them before they are cut, in frames of up to 64 KB: a frame shows its first packet,
// and the others as data of that. They do not travel so. To capture each packet,
//
//   - capture on the way, or at a receiver without GRO (ethtool -K eth0 gro off,
//     and rx-udp-gro-forwarding off), or
//   - set KCP_DISABLE_GSO=1 and, for what arrives, KCP_DISABLE_GRO=1 in the environment
//     of the processes that use the package, or
//   - turn merging off at the interface: ethtool -K eth0 tx-udp-segmentation off, and lo
//     in place of eth0. The kernel then cuts packets before the capture sees them.
package wireshark
