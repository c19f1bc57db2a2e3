package main

import (
	"net"
	"os"
	"strings"
)

// notifySystemd tells systemd a state, such as "READY=1" (sd_notify(3)). Outside of a
// service of Type=notify it does nothing.
func notifySystemd(state string) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return
	}
	if abstract, ok := strings.CutPrefix(name, "@"); ok {
		name = "\x00" + abstract
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return // nobody is there to be told
	}
	defer conn.Close()
	_, _ = conn.Write([]byte(state))
}
