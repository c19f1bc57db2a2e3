package qlog

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/arqnet/kcp"
)

// DirOptions are the options of a Dir. The zero value, and nil, mean the
// defaults.
type DirOptions struct {
	// MaxFiles is how many files are written: peers can open sessions, and must
	// not fill the disk. Further sessions are not traced. Default 1000;
	// negative means no limit.
	MaxFiles int
	// MaxBytes bounds each file, as Options.MaxBytes.
	MaxBytes int64
	// Logger, if not nil, receives warnings of files that cannot be written,
	// and one when MaxFiles is reached. They are as many as MaxFiles at most,
	// and one more.
	Logger *slog.Logger
}

const defaultMaxFiles = 1000

// Dir is a folder of traces, in which each session gets a file of its own. The
// names begin with the time, and have the conversation id and the side of this
// end, such as 20260102T150405.000Z-0badcafe-client.sqlog. Its methods are safe
// for concurrent use.
type Dir struct {
	path string
	opts DirOptions

	mu     sync.Mutex // guards the fields below
	files  int        // created, or tried
	open   map[*Writer]*os.File
	idle   sync.Cond // open is empty
	closed bool
	errs   []error // of files, up to maxErrors
}

// maxErrors is how many errors of files Close returns.
const maxErrors = 10

// NewDir returns a Dir in the folder path, which must exist when a session
// begins. opts may be nil.
func NewDir(path string, opts *DirOptions) *Dir {
	d := &Dir{path: path, open: make(map[*Writer]*os.File)}
	d.idle.L = &d.mu
	if opts != nil {
		d.opts = *opts
	}
	if d.opts.MaxFiles == 0 {
		d.opts.MaxFiles = defaultMaxFiles
	}
	return d
}

// Trace returns the hooks that write the trace of a session to a new file, for
// Config.Tracer or Conn.SetTrace. It returns nil, so that the session is not traced, if
// there are as many files as may be, if the file cannot be created, and after Close. The
// file is complete when the session has ended, or SetTrace has other hooks called.
func (d *Dir) Trace(c *kcp.Conn) *kcp.Trace {
	if !d.allowed() {
		return nil
	}
	side := "server"
	if c.Dialled() {
		side = "client"
	}
	f, err := create(d.path, fmt.Sprintf("%s-%08x-%s", time.Now().UTC().Format("20060102T150405.000Z"), c.Conv(), side))
	if err != nil {
		d.warn("a session is not traced", "err", err)
		return nil
	}
	t := NewWriter(f, &Options{
		Client: c.Dialled(), Conv: c.Conv(), Local: c.LocalAddr(), Remote: c.RemoteAddr(), MaxBytes: d.opts.MaxBytes,
	})
	if !d.add(t, f) {
		_ = t.Close()
		return nil
	}
	return t.Trace()
}

// add records an open trace. It reports whether d is still open.
func (d *Dir) add(t *Writer, f *os.File) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.onClose = func() { d.done(t) }
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open[t] = f
	return !d.closed
}

// allowed reports whether one more session is traced, and counts it.
func (d *Dir) allowed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.files++
	if d.opts.MaxFiles < 0 || d.files <= d.opts.MaxFiles {
		return true
	}
	if d.files == d.opts.MaxFiles+1 {
		d.warn("no more sessions are traced", "dir", d.path, "files", d.opts.MaxFiles)
	}
	return false
}

// done closes the file of t, of which all is written. t.mu is held.
func (d *Dir) done(t *Writer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.open[t]
	err := errors.Join(t.err, f.Close())
	if err != nil {
		d.warn("a trace is not complete", "file", f.Name(), "err", err)
		if len(d.errs) < maxErrors {
			d.errs = append(d.errs, err)
		}
	}
	if delete(d.open, t); len(d.open) == 0 {
		d.idle.Broadcast()
	}
}

// Close ends the traces of sessions that have not ended, waits until all is
// written, and returns the errors of files that are not complete. A program
// that ends without it may lose the ends of traces.
func (d *Dir) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	var open []*Writer
	for t := range d.open {
		open = append(open, t)
	}
	d.mu.Unlock()
	for _, t := range open {
		_ = t.Close() // done has its error
	}
	d.mu.Lock()
	for len(d.open) > 0 {
		d.idle.Wait()
	}
	return errors.Join(d.errs...)
}

func (d *Dir) warn(msg string, args ...any) {
	if d.opts.Logger != nil {
		d.opts.Logger.Warn("qlog: "+msg, args...)
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
