package tunnel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp/tunnel/internal/carrier"
	"github.com/stretchr/testify/require"
	"github.com/things-go/go-socks5/statute"
)

// script is a connection whose peer says what in has, and reads what out gets.
type script struct {
	in  *bytes.Reader
	out bytes.Buffer
}

func (s *script) Read(b []byte) (int, error)       { return s.in.Read(b) }
func (s *script) Write(b []byte) (int, error)      { return s.out.Write(b) }
func (s *script) Close() error                     { return nil }
func (s *script) CloseWrite() error                { return nil }
func (s *script) SetLinger(int) error              { return nil }
func (s *script) LocalAddr() net.Addr              { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }
func (s *script) RemoteAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2} }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

// What a local application says is answered shortly, and what it asks for is a target in
// the one spelling that rules know.
func FuzzSocks(f *testing.F) {
	request := []byte{5, 1, 0, 5, 1, 0}
	for _, b := range []string{
		"", "\x05", "\x05\x01\x02", "GET / HTTP/1.1\r\n\r\n", string(request) + "\x01\x01\x02\x03\x04\x00\x50",
		string(request) + "\x03\x0bexample.com\x01\xbb", string(request) + "\x04" + strings.Repeat("\x00", 15) + "\x01\x00\x50",
		string(request) + "\x03\x09127.0.0.1\x00\x50", string(request) + "\x03\xff", "\x05\x02\x00\x02\x05\x02\x00\x01\x01\x02\x03\x04\x00\x50",
		"\x04\x01\x00\x50\x01\x02\x03\x04\x00", "\x05\x00", string(request) + "\x09", string(request) + "\x03\x03a b\x00\x50",
		string(request) + "\x03\x05127.1\x00\x50", string(request) + "\x01\x01\x02\x03\x04\x00\x00",
	} {
		f.Add([]byte(b))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4 && bytes.Contains(b, []byte{5, statute.CommandAssociate, 0}) {
			return // that opens a socket
		}
		conn := &script{in: bytes.NewReader(b)}
		asked := 0
		serveSocks(context.Background(), conn, slog.New(slog.DiscardHandler), nil, "socks", func(_ context.Context, k kind, target string) (*session, carrier.Stream, error) {
			asked++
			require.Equal(t, kindSocksTCP, k)
			again, err := canonicalTarget(target)
			require.NoError(t, err)
			require.Equal(t, again, target)
			require.LessOrEqual(t, len(target), maxTarget)
			return nil, nil, errors.New("no session")
		})
		require.LessOrEqual(t, asked, 1)
		require.LessOrEqual(t, conn.out.Len(), 2+4+1+255+2)
	})
}

// A packet of UDP ASSOCIATE that is taken has a target in one spelling, and its payload
// comes back in a packet of the same target.
func FuzzSocksPacket(f *testing.F) {
	for _, b := range []string{
		"", "\x00\x00\x00\x01\x01\x02\x03\x04\x00\x35x", "\x00\x00\x01\x01\x01\x02\x03\x04\x00\x35x", "\x00\x00\x00\x03\x0bexample.com\x00\x35x",
		"\x00\x00\x00\x04" + strings.Repeat("\x00", 15) + "\x01\x00\x35x", "\x00\x00\x00\x03\xff" + strings.Repeat("a", 20), "\x00\x00\x00\x09aaaaaaa",
	} {
		f.Add([]byte(b))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		target, payload, ok := socksSplit(b)
		if !ok {
			return
		}
		again, err := canonicalTarget(target)
		require.NoError(t, err)
		require.Equal(t, again, target)
		packet := socksWrap(target, payload)
		require.NotNil(t, packet)
		if len(payload) == 0 {
			return // the library wants a byte after a name
		}
		back, same, ok := socksSplit(packet)
		require.True(t, ok)
		require.Equal(t, target, back)
		require.True(t, bytes.Equal(payload, same))
	})
}

// A hello is read, refused as malformed, or cut off; and no more is read than it has.
func FuzzHello(f *testing.F) {
	begin := string(opening{kind: kindHello}.append(nil))
	for _, b := range []string{
		"", begin, begin + "\x00\x00\x00\x02{}", begin + "\x00\x00\x00\x01{", begin + "\xff\xff\xff\xff", "\x02\x01",
		begin + "\x00\x00\x00\x20{\"user\":\"me\",\"password\":\"guess\"}", begin + "\x00\x00\x00\x0e{\"wants\":[\"x\"]}", begin + "\x00\x00\x00\x04null",
		string(opening{kind: kindTCP, target: "host:80"}.append(nil)), begin + "\x00\x00\x00\x08[[[[[[[[",
	} {
		f.Add([]byte(b))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		h, err := readHello(r)
		require.LessOrEqual(t, len(b)-r.Len(), openingSize+maxTarget+4+maxHello)
		var why refusal
		if err != nil {
			require.True(t, errors.As(err, &why) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF), "%v", err)
			return
		}
		if body, err := json.Marshal(h); err != nil || len(body) > maxHello {
			return // characters that are written longer than they were
		}
		var again bytes.Buffer
		again.Write(opening{kind: kindHello}.append(nil))
		require.NoError(t, writeJSON(&again, h))
		same, err := readHello(&again)
		require.NoError(t, err)
		if len(h.Wants) == 0 {
			h.Wants, same.Wants = nil, nil
		}
		require.Equal(t, h, same)
	})
}
