package embedded

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The formats of HEAD, without the checksum that follows. The program before named no log file.
const (
	markFormat       = "revision %d records %d digest %016x log %06d"
	formerMarkFormat = "revision %d records %d digest %016x"
)

// markEvery is the time between two writes of HEAD while commits continue. The time that a write takes comes on
// top: HEAD is at most one second behind the newest commit.
const markEvery = 750 * time.Millisecond

// head is the content of HEAD, a small file beside the engine. It names a revision that is durable, and the newest
// log file of the engine. A crash leaves a torn record at the end of a log, and so does a bad disk. HEAD
// distinguishes the two: what it names was written and synced before.
type head struct {
	tally        // its bytes are not stored
	log   uint64 // number of the log file; 0: none is named
}

// mark writes HEAD if it is behind.
func (l *disk) mark() error {
	l.marking.Lock()
	defer l.marking.Unlock()
	l.mu.Lock()
	h := head{l.durable, l.current.log.Load()}
	l.mu.Unlock()
	if h.revision == 0 || h.revision <= l.marked.revision && h.log <= l.marked.log {
		return nil
	}
	text := fmt.Sprintf(markFormat, h.revision, h.live, h.digest, h.log)
	text += fmt.Sprintf(" checksum %08x\n", crc32.Checksum([]byte(text), castagnoli))
	if err := l.replace("HEAD", []byte(text)); err != nil {
		return fmt.Errorf("write HEAD: %w", err)
	}
	l.marked = h
	return nil
}

// keepMark writes HEAD after commits and after each rotation of the log, until Close. Commits do not wait for it.
func (l *disk) keepMark() {
	for failed := false; ; {
		select {
		case <-l.life.Done():
			return
		case <-l.rotated:
		case <-l.written:
			select {
			case <-l.life.Done():
				return
			case <-l.rotated:
			case <-l.pause(markEvery):
			}
		}
		select {
		case <-l.written: // what was committed meanwhile is in HEAD now
		default:
		}
		err := l.mark()
		if err != nil {
			l.signal(l.written) // try again
			if !failed {
				l.logger.Warn("HEAD is not renewed; until it is, a start cannot notice the loss of newer revisions", "err", err)
			}
		}
		failed = err != nil
	}
}

// signal makes a channel with room for one value ready.
func (l *disk) signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// replace writes a file of the directory so that a crash leaves the old or the new.
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

// readHead returns the content of HEAD; its revision is 0 where the file does not exist. An error that is a
// *DamageError concerns HEAD alone.
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

func parseHead(text string) (h head, err error) {
	body, sum, _ := strings.Cut(text, " checksum ")
	if sum != fmt.Sprintf("%08x\n", crc32.Checksum([]byte(body), castagnoli)) {
		return head{}, errChecksum
	}
	format, fields := markFormat, []any{&h.revision, &h.live, &h.digest, &h.log}
	if !strings.Contains(body, " log ") {
		format, fields = formerMarkFormat, fields[:3]
	}
	_, err = fmt.Sscanf(body, format, fields...)
	return h, err
}

// checkMark compares what was loaded with HEAD.
func (l *disk) checkMark(found tally) error {
	expect := l.marked.tally
	expect.bytes = found.bytes
	if expect.revision > found.revision || expect.revision == found.revision && expect != found {
		return l.damage(fmt.Sprintf("the log ends at revision %d and differs from HEAD, which confirms revision %d", found.revision, expect.revision), nil)
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
