package qlog

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp"
)

// DirOptions are the options of Dir. The zero value, and nil, mean the
// defaults.
type DirOptions struct {
	// MaxFiles is how many files are written: peers can open sessions, and must
	// not fill the disk. Further sessions are not traced. Default 1000;
	// negative means no limit.
	MaxFiles int
	// MaxBytes bounds each file, as Options.MaxBytes.
	MaxBytes int64
	// Logger, if not nil, receives warnings of files that cannot be written,
	// and one when MaxFiles is reached.
	Logger *slog.Logger
}

const defaultMaxFiles = 1000

// Dir returns a function for Config.Tracer that writes the trace of each session
// to a file of its own in the folder dir, which must exist. The names begin with
// the time, and have the conversation id and the side of this end, such as
// 20260102T150405.000Z-0badcafe-client.sqlog. opts may be nil.
func Dir(dir string, opts *DirOptions) func(*kcp.Conn) *kcp.Trace {
	var o DirOptions
	if opts != nil {
		o = *opts
	}
	if o.MaxFiles == 0 {
		o.MaxFiles = defaultMaxFiles
	}
	var files atomic.Int64
	warn := func(msg string, args ...any) {
		if o.Logger != nil {
			o.Logger.Warn("qlog: "+msg, args...)
		}
	}
	return func(c *kcp.Conn) *kcp.Trace {
		if n := files.Add(1); o.MaxFiles > 0 && n > int64(o.MaxFiles) {
			if n == int64(o.MaxFiles)+1 {
				warn("no more sessions are traced", "dir", dir, "files", o.MaxFiles)
			}
			return nil
		}
		side := "server"
		if c.Dialled() {
			side = "client"
		}
		f, err := create(dir, fmt.Sprintf("%s-%08x-%s", time.Now().UTC().Format("20060102T150405.000Z"), c.Conv(), side))
		if err != nil {
			warn("a session is not traced", "err", err)
			return nil
		}
		t := NewWriter(f, &Options{
			Client: c.Dialled(), Conv: c.Conv(), Local: c.LocalAddr(), Remote: c.RemoteAddr(), MaxBytes: o.MaxBytes,
		})
		t.mu.Lock()
		t.onClose = func() {
			if err := f.Close(); t.err == nil {
				t.err = err
			}
			if t.err != nil {
				warn("trace is not complete", "file", f.Name(), "err", t.err)
			}
		}
		t.mu.Unlock()
		return t.Trace()
	}
}

// create creates a file with a name that does not exist yet.
func create(dir, name string) (*os.File, error) {
	for i := 1; ; i++ {
		path := filepath.Join(dir, name+".sqlog")
		if i > 1 {
			path = filepath.Join(dir, name+"-"+strconv.Itoa(i)+".sqlog")
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if !os.IsExist(err) || i == 100 {
			return f, err
		}
	}
}

func appendUint(b []byte, v uint32) []byte { return strconv.AppendUint(b, uint64(v), 10) }

// appendMillis appends microseconds as milliseconds.
func appendMillis(b []byte, micros int64) []byte {
	return strconv.AppendFloat(b, float64(micros)/1000, 'f', -1, 64)
}
