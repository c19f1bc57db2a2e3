package main

import (
	"io"
	"net"
	"strings"
	"testing"
)

// spoilt flips a bit of one byte that is written through it.
type spoilt struct {
	io.ReadWriter
	at int // bytes until then
}

func (s *spoilt) Write(b []byte) (int, error) {
	if s.at >= 0 && s.at < len(b) {
		b = append([]byte(nil), b...)
		b[s.at] ^= 1
	}
	s.at -= len(b)
	return s.ReadWriter.Write(b)
}

// TestExchange passes what arrives whole, and finds a single bit that is wrong.
func TestExchange(t *testing.T) {
	const size = 100000
	for _, at := range []int{-1, 0, 50000, size - 1} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		a, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		b, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		other := make(chan error, 1)
		go func() {
			other <- exchange(b, size, seedDown, seedUp)
			b.Close()
		}()
		err = exchange(&spoilt{a, at}, size, seedUp, seedDown)
		a.Close()
		if remote := <-other; at < 0 {
			if err != nil || remote != nil {
				t.Error(err, remote)
			}
		} else if remote == nil || !strings.Contains(remote.Error(), "not what was sent") {
			t.Errorf("byte %d spoilt: %v, %v", at, err, remote)
		}
	}
}
