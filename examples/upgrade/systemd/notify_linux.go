// Package systemd tells systemd what a service does, as sd_notify(3) does. Outside of a
// service of Type=notify its functions do nothing.
package systemd

import (
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Ready says that this process serves, and is the main process of the service. The
// processes before it may go on. It ends the state that Reloading began.
func Ready(status string) error {
	status = strings.ReplaceAll(status, "\n", "; ") // a state is a line
	return Notify(fmt.Sprintf("MAINPID=%d\nREADY=1\nSTATUS=%s", os.Getpid(), status))
}

// Reloading says that an upgrade has begun.
func Reloading() error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return err
	}
	return Notify(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000))
}

// Notify sends a state, such as "STOPPING=1".
func Notify(state string) error {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte(state))
	return err
}
