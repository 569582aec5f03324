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

// Formats of HEAD without its checksum. The previous version did not record a log file.
const (
	headFormat   = "revision %d records %d digest %016x log %06d"
	headFormatV1 = "revision %d records %d digest %016x"
)

// headInterval is the time between two writes of HEAD while commits continue. HEAD is at most one second behind the
// newest commit, including the time for the write of HEAD.
const headInterval = 750 * time.Millisecond

// head is the content of HEAD, a small file beside the engine. It contains a durable revision and the number of
// the engine's newest log file. Both a crash and a damaged disk leave a torn record at the end of a log. HEAD
// distinguishes the two, because everything up to its revision was synced before HEAD was written.
type head struct {
	tally        // the field bytes is not stored and therefore 0
	log   uint64 // number of the log file; 0 means none is recorded
}

// writeHead writes HEAD unless it is up to date.
func (l *disk) writeHead() error {
	l.headMu.Lock()
	defer l.headMu.Unlock()
	l.mu.Lock()
	h := head{l.durable, l.current.newestLog.Load()}
	l.mu.Unlock()
	if h.revision == 0 || h.revision <= l.head.revision && h.log <= l.head.log {
		return nil
	}
	text := fmt.Sprintf(headFormat, h.revision, h.live, h.digest, h.log)
	text += fmt.Sprintf(" checksum %08x\n", crc32.Checksum([]byte(text), castagnoli))
	if err := l.replace("HEAD", []byte(text)); err != nil {
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
			l.signal(l.written) // try again
			if !failed {
				l.logger.Warn("cannot write the file HEAD: lost revisions cannot be detected until it is written",
					"err", err)
			}
		}
		failed = err != nil
	}
}

// signal sends to c, a channel with a buffer of one, unless the buffer is full.
func (l *disk) signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
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

func parseHead(text string) (h head, err error) {
	body, sum, _ := strings.Cut(text, " checksum ")
	if sum != fmt.Sprintf("%08x\n", crc32.Checksum([]byte(body), castagnoli)) {
		return head{}, errChecksum
	}
	format, fields := headFormat, []any{&h.revision, &h.live, &h.digest, &h.log}
	if !strings.Contains(body, " log ") {
		format, fields = headFormatV1, fields[:3]
	}
	_, err = fmt.Sscanf(body, format, fields...)
	return h, err
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
