package balancer

import (
	"encoding/binary"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// reveal has nginx answer each client with what kcp.js has found.
var reveal = edit{"proxy_pass kcp;", `return "$kcp_key $kcp_source";`}

// What nginx answers if it has found convID, and if it has found nothing.
const (
	convID = 0x04030201
	shown  = "conv=67305985 127.68.3.2:20004"
	hidden = "127.0.0.1 "
)

// segment returns a segment with a payload.
func segment(cmd byte, payload string) []byte {
	b := make([]byte, 24, 24+len(payload))
	binary.LittleEndian.PutUint32(b, convID)
	b[4] = cmd
	binary.LittleEndian.PutUint32(b[20:], uint32(len(payload)))
	return append(b, payload...)
}

// withFEC returns a packet behind an FEC header.
func withFEC(kind uint16, packet []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, 77)
	b = binary.LittleEndian.AppendUint16(b, kind)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(packet)+2))
	return append(b, packet...)
}

// protected returns a packet with the header of those under keys of TLS.
func protected(kind byte, size int) []byte {
	b := make([]byte, size)
	binary.LittleEndian.PutUint32(b, convID)
	b[4] = kind
	return b
}

// changed returns a copy of a packet with another byte.
func changed(packet []byte, at int, to byte) []byte {
	packet = append([]byte(nil), packet...)
	packet[at] = to
	return packet
}

// What kcp.js finds in packets: of each form, cut short, and of nothing known.
// Parity does not decide where the packets behind it go.
func TestPackets(t *testing.T) {
	needNginx(t)
	n := startNginx(t, []string{"127.0.0.1:9"}, reveal)
	hello := segment(83, "")
	for name, c := range map[string]struct {
		packet []byte
		want   string
	}{
		"WASK":                        {hello, shown},
		"PUSH":                        {segment(81, "hello"), shown},
		"STREAM piece":                {segment(87, "hello"), shown},
		"two segments":                {append(segment(82, ""), segment(81, "hello")...), shown},
		"rest behind it":              {append(segment(82, ""), 1, 2, 3), shown},
		"cmd too low":                 {segment(80, ""), hidden},
		"cmd too high":                {segment(88, ""), hidden},
		"length beyond it":            {changed(hello, 20, 1), hidden},
		"huge length":                 {changed(hello, 23, 0xff), hidden},
		"short segment":               {hello[:23], hidden},
		"FEC data":                    {withFEC(0xf1, segment(81, "hello")), shown},
		"FEC data, wrong size":        {changed(withFEC(0xf1, segment(81, "hello")), 6, 9), hidden},
		"FEC data, cut":               {withFEC(0xf1, hello[:23]), hidden},
		"FEC data, no segment":        {withFEC(0xf1, segment(80, "hello")), hidden},
		"FEC datagram":                {withFEC(0xf3, hello[:4]), shown},
		"FEC datagram, payload":       {withFEC(0xf3, append(hello[:4:4], "hello"...)), shown},
		"FEC datagram, cut":           {withFEC(0xf3, hello[:3]), hidden},
		"FEC datagram, wrong size":    {changed(withFEC(0xf3, hello[:4]), 7, 1), hidden},
		"FEC header alone":            {withFEC(0xf2, nil), hidden},
		"parity":                      {withFEC(0xf2, segment(80, "parity")), shown},
		"no FEC type":                 {withFEC(0xf4, segment(81, "hello")), hidden},
		"high byte of the type":       {changed(withFEC(0xf1, segment(81, "hello")), 5, 1), hidden},
		"TLS, handshake":              {protected(0xa1, 25), shown},
		"TLS, application, phase 0":   {protected(0xa2, 1200), shown},
		"TLS, application, phase 1":   {protected(0xa3, 25), shown},
		"TLS, nonce, handshake":       {protected(0xa9, 100), shown},
		"TLS, nonce, application":     {protected(0xab, 100), shown},
		"TLS, cut":                    {protected(0xa2, 24), hidden},
		"TLS, unknown type":           {protected(0xa4, 100), hidden},
		"TLS, unknown type below":     {protected(0xa0, 100), hidden},
		"TLS, unknown type with bit":  {protected(0xa8, 100), hidden},
		"TLS, unknown type with bits": {protected(0xb1, 100), hidden},
		"four bytes":                  {hello[:4], hidden},
		"one byte":                    {hello[:1], hidden},
		"empty":                       {nil, hidden},
		"largest":                     {make([]byte, 65507), hidden},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, asked(t, n, c.packet)) })
	}
	require.NotContains(t, n.log(), "js exception")
}

// dialled returns a socket connected to nginx.
func dialled(t *testing.T, n *nginx) net.Conn {
	t.Helper()
	c, err := net.Dial("udp", n.addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// asked returns what nginx answers a packet of a new client, or if it does not
// answer parity, the packet behind it.
func asked(t *testing.T, n *nginx, packet []byte) string {
	t.Helper()
	c := dialled(t, n)
	_, err := c.Write(packet)
	require.NoError(t, err)
	if len(packet) > 8 && packet[4] == 0xf2 && packet[5] == 0 {
		_, err = c.Write(segment(83, ""))
		require.NoError(t, err)
	}
	return answer(t, c)
}

// answer returns what nginx sends.
func answer(t *testing.T, c net.Conn) string {
	t.Helper()
	b := make([]byte, 1500)
	size, err := c.Read(b)
	require.NoError(t, err)
	return string(b[:size])
}
