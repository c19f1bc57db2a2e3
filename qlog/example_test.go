package qlog_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/qlog"
)

// Traces of all sessions of a listener, for "kcp trace".
func ExampleDir() {
	folder, err := os.MkdirTemp("", "traces")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder)
	traces := qlog.NewDir(folder, &qlog.DirOptions{MaxFiles: 100})

	l, err := kcp.Listen("udp", "127.0.0.1:0", &kcp.Config{Tracer: traces.Trace})
	if err != nil {
		fmt.Println(err)
		return
	}
	if c, err := kcp.Dial("udp", l.Addr().String(), nil); err == nil {
		_ = c.Close()
	}
	_ = l.Endpoint().Close()
	if err := traces.Close(); err != nil { // waits until all is written
		fmt.Println(err)
	}
	files, _ := filepath.Glob(filepath.Join(folder, "*-server.sqlog"))
	fmt.Println(len(files), "trace")
	// Output: 1 trace
}
