package embedded

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// HEAD is a small file beside the engine that says which revision was durable at
// some time: on an orderly end, and now and then before. The engine takes a
// damaged end of its log for the place where a crash cut it off; HEAD tells the
// two apart as far as it reaches.
const markFormat = "revision %d records %d digest %016x"

// mark writes HEAD if there is something new to say.
func (l *disk) mark() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.durable
	if t.revision <= l.marked {
		return nil
	}
	text := fmt.Sprintf(markFormat, t.revision, t.live, t.digest)
	text += fmt.Sprintf(" checksum %08x\n", crc32.Checksum([]byte(text), castagnoli))
	if err := l.replace("HEAD", []byte(text)); err != nil {
		return fmt.Errorf("write HEAD: %w", err)
	}
	l.marked = t.revision
	return nil
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

// checkMark compares what was loaded with HEAD.
func (l *disk) checkMark(found tally) error {
	text, err := l.read("HEAD")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read HEAD: %w", err)
	}
	var t tally
	var sum uint32
	if _, err := fmt.Sscanf(string(text), markFormat+" checksum %08x\n", &t.revision, &t.live, &t.digest, &sum); err != nil {
		return l.damage("HEAD", err)
	}
	body := fmt.Sprintf(markFormat, t.revision, t.live, t.digest)
	if string(text) != body+fmt.Sprintf(" checksum %08x\n", sum) || crc32.Checksum([]byte(body), castagnoli) != sum {
		return l.damage("HEAD", errChecksum)
	}
	t.bytes = found.bytes
	if t.revision > found.revision || t.revision == found.revision && t != found {
		return l.damage(fmt.Sprintf("the log once reached revision %d and now ends at %d", t.revision, found.revision), nil)
	}
	l.marked = t.revision
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
