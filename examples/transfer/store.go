package main

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"sync"
	"time"
)

// partsDir has the files that are not complete, under the ids of their transfers.
// No request can name it.
const partsDir = ".parts"

// store is the directory of the server. A file gets its name when it is complete.
// All names are resolved below root, whatever symbolic links there are.
type store struct {
	root  *os.Root
	parts int           // most incomplete files
	keep  time.Duration // after which an incomplete file makes room for others

	mu sync.Mutex // held while a file is made or gets its name
}

// part is the file of a transfer, and how much of it is safe on the disk.
type part struct {
	*os.File
	size  int64
	named bool // it is complete and has its name already
}

// open opens the file of a request, and makes it if there is none. All that it
// reports has been written to the disk, so it is still there after a power failure.
// The caller owns the transfer.
func (s *store) open(r *request) (*part, error) {
	info, err := s.root.Lstat(r.name)
	if err == nil {
		if !info.Mode().IsRegular() || info.Size() != r.size {
			return nil, &refusal{codeRefused, "the server has another file of that name"}
		}
		f, err := s.root.Open(r.name)
		return &part{f, r.size, true}, err
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f, err := s.openPart(r.id())
	if err != nil {
		return nil, err
	}
	size, err := durable(f, r.size)
	if err != nil {
		f.Close()
		return nil, err
	}
	return &part{f, size, false}, nil
}

// durable returns how much of f is on the disk, which is all of it: of what a process
// has written before it was killed the system may have kept some in memory. A file
// that is larger than it may be does not belong to the transfer, and is emptied. Some
// file systems may leave a size after a power failure whose bytes were not all written;
// that shows in the SHA-256.
func durable(f *os.File, most int64) (size int64, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if size = info.Size(); size > most {
		size, err = 0, f.Truncate(0)
	}
	return size, errors.Join(err, f.Sync())
}

// openPart opens an incomplete file, and makes it if there is room for one more.
func (s *store) openPart(id string) (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.root.Mkdir(partsDir, 0o700); err == nil {
		s.syncDir(".")
	} else if !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	name := path.Join(partsDir, id)
	f, err := s.root.OpenFile(name, os.O_RDWR|os.O_APPEND, 0)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err := s.makeRoomLocked(); err != nil {
		return nil, err
	}
	f, err = s.root.OpenFile(name, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err == nil {
		s.syncDir(partsDir)
	}
	return f, err
}

// makeRoomLocked deletes incomplete files that were not written to for long, if there
// are as many as there may be.
func (s *store) makeRoomLocked() error {
	entries, err := fs.ReadDir(s.root.FS(), partsDir)
	if err != nil || len(entries) < s.parts {
		return err
	}
	removed := false
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && time.Since(info.ModTime()) > s.keep {
			removed = s.root.Remove(path.Join(partsDir, e.Name())) == nil || removed
		}
	}
	if !removed {
		return &refusal{codeBusy, "too many incomplete files"}
	}
	return nil
}

// finish gives the complete file of a request its name, unless another has got that
// meanwhile.
func (s *store) finish(r *request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.root.Lstat(r.name); err == nil {
		return &refusal{codeRefused, "the server has got another file of that name"}
	}
	if err := s.root.Rename(path.Join(partsDir, r.id()), r.name); err != nil {
		return err
	}
	s.syncDir(".")
	return nil
}

// discard deletes the incomplete file of a request.
func (s *store) discard(r *request) error { return s.root.Remove(path.Join(partsDir, r.id())) }

// syncDir makes the names in a directory durable. Systems that cannot do that, such as
// Windows, do not need it, so it reports no error.
func (s *store) syncDir(name string) {
	if d, err := s.root.Open(name); err == nil {
		_ = d.Sync()
		d.Close()
	}
}
