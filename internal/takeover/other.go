//go:build !linux

package takeover

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"
)

// Link, Pipe and Feed exist on Linux only: the sockets that they need are not everywhere.
type (
	Link struct{}
	Pipe struct{}
	Feed struct{}
)

func NewLink(context.Context, *net.UnixConn, string) (*Link, error) {
	return nil, errors.ErrUnsupported
}
func NewPipe() (*Pipe, int, error)              { return nil, -1, errors.ErrUnsupported }
func OpenPipe(int) (*Pipe, error)               { return nil, errors.ErrUnsupported }
func OpenFeed(int) (*Feed, error)               { return nil, errors.ErrUnsupported }
func OpenSocket(int) (*net.UDPConn, error)      { return nil, errors.ErrUnsupported }
func Reopen(syscall.Conn) (*net.UDPConn, error) { return nil, errors.ErrUnsupported }
func Duplicate(syscall.Conn) (int, error)       { return -1, errors.ErrUnsupported }
func CloseFiles([]int)                          {}
func IsGone(error) bool                         { return false }

func (*Link) Limit(time.Duration)                   {}
func (*Link) Wait()                                 {}
func (*Link) Close()                                {}
func (*Link) Send(Kind, []byte, ...int) error       { return errors.ErrUnsupported }
func (*Link) Refuse(error, *Difference)             {}
func (*Link) Receive(...Kind) (Kind, []byte, error) { return 0, nil, errors.ErrUnsupported }
func (*Link) TakeFiles(int) ([]int, error)          { return nil, errors.ErrUnsupported }
func (*Pipe) Duplicate() (int, error)               { return -1, errors.ErrUnsupported }
func (*Pipe) Read([]byte) (int, error)              { return 0, errors.ErrUnsupported }
func (*Pipe) TryWrite([]byte) bool                  { return false }
func (*Pipe) SetReadDeadline(time.Time) error       { return errors.ErrUnsupported }
func (*Pipe) Interrupt()                            {}
func (*Pipe) Resume()                               {}
func (*Pipe) Close()                                {}
func (*Feed) Duplicate() (int, error)               { return -1, errors.ErrUnsupported }
func (*Feed) TryWrite([]byte) bool                  { return false }
func (*Feed) Close()                                {}
