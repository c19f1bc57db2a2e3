package neterr

import (
	"fmt"
	"net"
	"time"
)

// Unanswered returns the text of the error of a dial without an answer. tried has the
// addresses if the peer dials too (simultaneous open), and socket is the last error of
// the socket meanwhile; both may be nil. It is safe for concurrent use.
func Unanswered(waited time.Duration, tried []net.Addr, socket error) string {
	causes := "host down, backlog full, or keys differ"
	if len(tried) > 0 {
		causes = "peer did not dial, NATs or firewalls block it, or keys differ"
	}
	text := fmt.Sprintf("kcp: no answer from the peer in %v (%s)", waited, causes)
	for i, addr := range tried {
		text += [...]string{", tried at ", ", "}[min(i, 1)] + addr.String()
	}
	if socket != nil {
		text += ": " + socket.Error()
	}
	return text
}
