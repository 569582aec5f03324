package embedded

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trellis-k8s/trellis/internal/storage/embedded/format"
)

// headInterval is the time between two writes of HEAD while commits continue. HEAD is at most one second behind the
// newest commit, including the time for the write of HEAD.
const headInterval = 750 * time.Millisecond

// writeHead writes HEAD unless it is up to date.
func (l *disk) writeHead() error {
	l.headMu.Lock()
	defer l.headMu.Unlock()
	l.mu.Lock()
	h := format.Head{Tally: l.durable, Log: l.current.NewestLog()}
	l.mu.Unlock()
	if h.Revision == 0 || h.Revision <= l.head.Revision && h.Log <= l.head.Log {
		return nil
	}
	if err := l.replace("HEAD", h.Encode()); err != nil {
		return fmt.Errorf("write HEAD: %w", err)
	}
	l.head = h
	return nil
}

// headLoop writes HEAD after commits and after each rotation of the log, until Close. Commits do not wait for it.
func (l *disk) headLoop() {
	for failed := false; ; {
		select {
		case <-l.lifetime.Done():
			return
		case <-l.rotated:
		case <-l.written:
			select {
			case <-l.lifetime.Done():
				return
			case <-l.rotated:
			case <-l.After(headInterval):
			}
		}
		select {
		case <-l.written: // the write below includes the commits so far
		default:
		}
		err := l.writeHead()
		if err != nil {
			notify(l.written) // try again
			if !failed {
				l.Logger.Warn("cannot write the file HEAD: lost revisions cannot be detected until it is written",
					"err", err)
			}
		}
		failed = err != nil
	}
}

// notify sends to c, a channel with a buffer of one, unless the buffer is full.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// replace writes a file of the directory. A crash leaves either the old or the new content.
func (l *disk) replace(name string, data []byte) (err error) {
	path := l.FS.PathJoin(l.Dir, name)
	f, err := l.FS.Create(path+".new", vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync())
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := l.FS.Rename(path+".new", path); err != nil {
		return err
	}
	return syncDir(l.FS, l.Dir)
}

// readHead returns the content of HEAD. Its revision is 0 if the file does not exist. If only the content is
// invalid, the error is a *DamageError.
func (l *disk) readHead() (format.Head, error) {
	text, err := l.read("HEAD")
	if errors.Is(err, os.ErrNotExist) {
		return format.Head{}, nil
	}
	if err != nil {
		return format.Head{}, fmt.Errorf("read HEAD: %w", err)
	}
	h, err := format.ParseHead(string(text))
	if err != nil {
		return format.Head{}, l.damage("HEAD", err)
	}
	return h, nil
}

// checkHead returns a *DamageError if HEAD contains a later revision than the loaded history, or other totals for
// the same revision.
func (l *disk) checkHead(found format.Tally) error {
	expect := l.head.Tally
	expect.Bytes = found.Bytes
	if expect.Revision > found.Revision || expect.Revision == found.Revision && expect != found {
		return l.damage(fmt.Sprintf(
			"the log ends at revision %d and does not match the file HEAD, which contains revision %d",
			found.Revision, expect.Revision), nil)
	}
	return nil
}

func (l *disk) read(name string) ([]byte, error) {
	f, err := l.FS.Open(l.FS.PathJoin(l.Dir, name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}
