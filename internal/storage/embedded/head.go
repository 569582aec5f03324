package embedded

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// headInterval is the time between two writes of HEAD while commits continue. HEAD is at most one second behind the
// newest commit, including the time for the write of HEAD.
const headInterval = 750 * time.Millisecond

// writeHead writes HEAD unless it is up to date.
func (l *disk) writeHead() error {
	l.headMu.Lock()
	defer l.headMu.Unlock()
	l.mu.Lock()
	h := head{l.durable, l.current.newestLog()}
	l.mu.Unlock()
	if h.revision == 0 || h.revision <= l.head.revision && h.log <= l.head.log {
		return nil
	}
	if err := l.replace("HEAD", h.encode()); err != nil {
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
			case <-l.after(headInterval):
			}
		}
		select {
		case <-l.written: // the write below includes the commits so far
		default:
		}
		err := l.writeHead()
		if err != nil {
			signal(l.written) // try again
			if !failed {
				l.logger.Warn("cannot write the file HEAD: lost revisions cannot be detected until it is written",
					"err", err)
			}
		}
		failed = err != nil
	}
}

// replace writes a file of the directory. A crash leaves either the old or the new content.
func (l *disk) replace(name string, data []byte) (err error) {
	path := l.fs.PathJoin(l.dir, name)
	f, err := l.fs.Create(path+".new", vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync())
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := l.fs.Rename(path+".new", path); err != nil {
		return err
	}
	return syncDir(l.fs, l.dir)
}

// readHead returns the content of HEAD. Its revision is 0 if the file does not exist. If only the content is
// invalid, the error is a *DamageError.
func (l *disk) readHead() (head, error) {
	text, err := l.read("HEAD")
	if errors.Is(err, os.ErrNotExist) {
		return head{}, nil
	}
	if err != nil {
		return head{}, fmt.Errorf("read HEAD: %w", err)
	}
	h, err := parseHead(string(text))
	if err != nil {
		return head{}, l.damage("HEAD", err)
	}
	return h, nil
}

// checkHead returns a *DamageError if HEAD contains a later revision than the loaded history, or other totals for
// the same revision.
func (l *disk) checkHead(found tally) error {
	expect := l.head.tally
	expect.bytes = found.bytes
	if expect.revision > found.revision || expect.revision == found.revision && expect != found {
		return l.damage(fmt.Sprintf(
			"the log ends at revision %d and does not match the file HEAD, which contains revision %d",
			found.revision, expect.revision), nil)
	}
	return nil
}

func (l *disk) read(name string) ([]byte, error) {
	f, err := l.fs.Open(l.fs.PathJoin(l.dir, name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}
