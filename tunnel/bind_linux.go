package tunnel

import "syscall"

// deviceControl returns a function for kcp.Config.Control that binds a socket to an
// interface (SO_BINDTODEVICE), whatever the routes say.
func deviceControl(name string) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = syscall.BindToDevice(int(fd), name)
		})
		if err != nil {
			return err
		}
		return failed
	}
}
