// Package wireshark holds kcp.lua, a dissector for Wireshark and tshark, and its
// test.
//
//	tshark -X lua_script:wireshark/kcp.lua -r capture.pcap
//
// The dissector shows segments, forward error correction, datagrams, signals,
// pieces and the headers of packets that TLS protects, as WIRE.md describes
// them, and the packets of kcp-go. It recognises them on any port. Fields are
// named kcp.conv, kcp.cmd, kcp.sn, kcp.signal and so on, and kcp.bad marks what
// is malformed.
package wireshark
