package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/engine"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/logstore"
)

// recordedStore is a store on a disk in memory with a record of all its states.
type recordedStore struct {
	t      testing.TB
	fs     *vfs.MemFS
	s      *logstore.Store
	disk   *disk
	states map[int64][]string // rendered records by revision
}

// lossOptions returns options for a store that writes HEAD only after rotations. recordedStore.writeHead also
// writes it.
func lossOptions(fs vfs.FS, memTable uint64) Options {
	never := func(time.Duration) <-chan time.Time { return nil }
	return Options{Dir: "/var/data", FS: fs, memTable: memTable, diskAfter: never}
}

func newRecorded(t testing.TB, memTable uint64) *recordedStore {
	r := &recordedStore{t: t, fs: vfs.NewCrashableMem(), states: map[int64][]string{}}
	r.s, r.disk = openWithDisk(t, lossOptions(r.fs, memTable))
	r.waitForHead()
	r.write(20, rand.New(rand.NewPCG(1, 6)))
	if err := r.disk.engine().DB.Flush(); err != nil { // so that some revisions are in tables
		t.Fatal(err)
	}
	r.waitForHead()
	return r
}

// waitForHead waits until HEAD contains the newest log file. HEAD then changes only with the next rotation or
// writeHead.
func (r *recordedStore) waitForHead() {
	for l := r.disk; ; runtime.Gosched() {
		l.headMu.Lock()
		recorded := l.head.Log
		l.headMu.Unlock()
		if recorded == l.engine().NewestLog() {
			return
		}
	}
}

// write makes n commits.
func (r *recordedStore) write(n int, random *rand.Rand) {
	for range n {
		key := fmt.Sprintf("k/%d", random.IntN(20))
		if r.s.Head().Get(key) != nil && random.IntN(6) == 0 {
			remove(r.t, r.s, key)
		} else {
			put(r.t, r.s, key, fmt.Sprint(r.s.Head().Revision(), strings.Repeat("x", random.IntN(600))))
		}
		r.states[r.s.Head().Revision()] = list(r.s.Head(), "", "")
	}
}

// writeHead writes HEAD, which otherwise happens every headInterval.
func (r *recordedStore) writeHead() int64 {
	if err := r.disk.writeHead(); err != nil {
		r.t.Fatal(err)
	}
	return r.s.Head().Revision()
}

// image returns a copy of the disk as after a power failure now: it contains only synced data.
func (r *recordedStore) image() *vfs.MemFS { return r.fs.CrashClone(vfs.CrashCloneCfg{}) }

// engineFiles returns the engine's files with this suffix, sorted by number.
func engineFiles(t testing.TB, fs vfs.FS, suffix string) (names []string) {
	all, err := fs.List("/var/data/engine")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		if strings.HasSuffix(name, suffix) {
			names = append(names, "/var/data/engine/"+name)
		}
	}
	slices.Sort(names)
	return names
}

func newestLog(t testing.TB, fs vfs.FS) string {
	logs := engineFiles(t, fs, ".log")
	if len(logs) == 0 {
		t.Fatal("no log")
	}
	return logs[len(logs)-1]
}

// contents reads all files of the data directory.
func contents(t testing.TB, fs vfs.FS, dir string) map[string]string {
	all := map[string]string{}
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		name = dir + "/" + name
		if info, err := fs.Stat(name); err != nil {
			t.Fatal(err)
		} else if info.IsDir() {
			for name, text := range contents(t, fs, name) {
				all[name] = text
			}
			continue
		}
		all[name] = string(content(t, fs, name))
	}
	return all
}

func content(t testing.TB, fs vfs.FS, name string) []byte {
	text, err := (&disk{Config: engine.Config{FS: fs, Dir: path.Dir(name)}}).read(path.Base(name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func removeFile(t testing.TB, fs vfs.FS, name string) {
	if err := errors.Join(fs.Remove(name), syncDir(fs, path.Dir(name))); err != nil {
		t.Fatal(err)
	}
}

func replaceFile(t testing.TB, fs vfs.FS, name string, text []byte) {
	l := &disk{Config: engine.Config{FS: fs, Dir: path.Dir(name)}}
	if err := l.replace(path.Base(name), text); err != nil {
		t.Fatal(err)
	}
}

// reopen opens an image. It returns the store and the buffer for its log.
func reopen(fs vfs.FS, accept int64) (*logstore.Store, *bytes.Buffer, error) {
	o, lines := lossOptions(fs, 0), &bytes.Buffer{}
	o.AcceptLossAfter = accept
	o.Logger = slog.New(slog.NewTextHandler(lines, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, err := Open(o)
	return s, lines, err
}

// checkRefused checks that an image cannot be opened, that the error contains all the given words, and that no file
// changes. It returns the revision at which the store could continue.
func (r *recordedStore) checkRefused(fs *vfs.MemFS, words ...any) int64 {
	r.t.Helper()
	before := contents(r.t, fs, "/var/data")
	s, _, err := reopen(fs, 0)
	if err == nil {
		r.t.Errorf("opened at revision %d", s.Head().Revision())
		_ = s.Close()
		return 0
	}
	var damage *engine.DamageError
	if !errors.As(err, &damage) {
		r.t.Fatalf("not a DamageError: %v", err)
	}
	for _, word := range words {
		if !regexp.MustCompile(`(^|\W)` + fmt.Sprint(word) + `(\W|$)`).MatchString(err.Error()) {
			r.t.Errorf("the error does not contain %v: %v", word, err)
		}
	}
	after := contents(r.t, fs, "/var/data")
	for name := range after {
		if _, found := before[name]; !found && !strings.HasSuffix(name, "LOCK") {
			r.t.Errorf("the refused start has created %s", name)
		}
	}
	for name, text := range before {
		if after[name] != text {
			r.t.Errorf("the refused start has changed %s", name)
		}
	}
	return damage.LastRevision
}

// checkAccepted opens an image and accepts the loss of the revisions after last. It checks this start and later
// ones.
func (r *recordedStore) checkAccepted(fs *vfs.MemFS, last int64) {
	r.t.Helper()
	if s, _, err := reopen(fs, last+1); err == nil {
		r.t.Error("the loss of other revisions was accepted")
		_ = s.Close()
		return
	}
	s, lines, err := reopen(fs, last)
	if err != nil {
		r.t.Fatalf("continue at %d: %v", last, err)
	}
	first := s.Head().Revision()
	if newest := r.s.Head().Revision(); first <= newest {
		r.t.Errorf("continues at revision %d, want one after %d", first, newest)
	}
	lastField := fmt.Sprintf("last=%d ", last)
	if n := strings.Count(lines.String(), "\n"); n != 1 || !strings.Contains(lines.String(), lastField) {
		r.t.Errorf("got %d log lines, want one with last=%d: %s", n, last, lines)
	}
	want(r.t, list(s.Head(), "", ""), r.states[last]...)
	var compacted *storage.CompactedError
	if _, err := s.Watch(context.Background(), "", last); !errors.As(err, &compacted) {
		r.t.Errorf("a watch from %d: %v", last, err)
	}
	put(r.t, s, "k/after", "1")
	state := list(s.Head(), "", "")
	if err := s.Close(); err != nil {
		r.t.Fatal(err)
	}
	s, lines, err = reopen(fs, last) // as if the operator had not removed the flag
	if err != nil {
		r.t.Fatalf("a second start with the flag: %v", err)
	}
	want(r.t, list(s.Head(), "", ""), state...)
	if !strings.Contains(lines.String(), "has no effect") {
		r.t.Errorf("the useless flag is not logged: %s", lines)
	}
	if err := s.Close(); err != nil {
		r.t.Fatal(err)
	}
	s, lines, err = reopen(fs, 0)
	if err != nil {
		r.t.Fatalf("a start without the flag: %v", err)
	}
	defer s.Close()
	want(r.t, list(s.Head(), "", ""), state...)
	if lines.Len() > 0 {
		r.t.Errorf("logged: %s", lines)
	}
}

// TestLossIsRefused checks that a store refuses to open if revisions up to the one in HEAD are damaged. The error
// contains the file, the last remaining revision, the revision in HEAD and the flag. With the flag, the store
// continues with the remaining data, at revisions that no client has seen (CRD-071).
func TestLossIsRefused(t *testing.T) {
	r := newRecorded(t, 0)
	random := rand.New(rand.NewPCG(1, 7))
	r.write(100, random)
	older := r.image()
	r.write(100, random)
	confirmed := r.writeHead()
	whole := r.image()
	log := newestLog(t, whole)
	text := content(t, whole, log)
	half := len(text) / 2
	damage := map[string]func(fs *vfs.MemFS){
		"cut":       func(fs *vfs.MemFS) { replaceFile(t, fs, log, text[:half]) },
		"last byte": func(fs *vfs.MemFS) { replaceFile(t, fs, log, text[:len(text)-1]) },
		"bit":       func(fs *vfs.MemFS) { flipBit(t, fs, log, len(text)-9) },
		"zeroed block": func(fs *vfs.MemFS) {
			replaceFile(t, fs, log, append(bytes.Clone(text[:half]), make([]byte, half)...))
		},
		"empty":         func(fs *vfs.MemFS) { replaceFile(t, fs, log, nil) },
		"missing":       func(fs *vfs.MemFS) { removeFile(t, fs, log) },
		"older copy":    func(fs *vfs.MemFS) { replaceFile(t, fs, log, content(t, older, log)) },
		"bit in middle": func(fs *vfs.MemFS) { flipBit(t, fs, log, half) },
	}
	for name, damage := range damage {
		t.Run(name, func(t *testing.T) {
			r := *r
			r.t = t
			fs := whole.CrashClone(vfs.CrashCloneCfg{})
			damage(fs)
			s := inspect(t, fs)
			flag := fmt.Sprintf("--accept-data-loss-after=%d", s.last)
			last := r.checkRefused(fs, "engine/"+path.Base(log), s.last, confirmed, flag)
			if last != s.last || last >= confirmed {
				t.Fatalf("the history ends at revision %d, want %d, before %d", last, s.last, confirmed)
			}
			r.checkAccepted(fs, last)
		})
	}
}

func flipBit(t testing.TB, fs vfs.FS, name string, at int) {
	text := content(t, fs, name)
	text[at] ^= 0x10
	replaceFile(t, fs, name, text)
}

func inspect(t testing.TB, fs vfs.FS) *survey {
	s, err := newDisk(withDefaults(Options{}), fs, "/var/data", nil).inspect()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTornTailIsLogged checks that a store opens if only a record after the revision in HEAD is torn, as after a
// crash. It logs one warning with the last revision.
func TestTornTailIsLogged(t *testing.T) {
	r := newRecorded(t, 0)
	random := rand.New(rand.NewPCG(1, 8))
	r.write(50, random)
	confirmed := r.writeHead()
	r.write(50, random)
	fs := r.image()
	log := newestLog(t, fs)
	text := content(t, fs, log)
	replaceFile(t, fs, log, text[:len(text)-5])
	s, lines, err := reopen(fs, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	last := s.Head().Revision()
	want(t, list(s.Head(), "", ""), r.states[last]...)
	lastField, headField := fmt.Sprintf("last=%d ", last), fmt.Sprintf("HEAD=%d\n", confirmed)
	for _, word := range []string{"level=WARN", path.Base(log), lastField, headField} {
		if strings.Count(lines.String(), word) != 1 {
			t.Errorf("want one %q in %s", word, lines)
		}
	}
	if last != r.s.Head().Revision()-1 {
		t.Errorf("the last revision is %d, want %d", last, r.s.Head().Revision()-1)
	}
}

// TestCrashWithoutDamageIsSilent checks that a start after a crash without damage logs nothing.
func TestCrashWithoutDamageIsSilent(t *testing.T) {
	r := newRecorded(t, 0)
	random := rand.New(rand.NewPCG(1, 9))
	r.write(50, random)
	r.writeHead()
	r.write(3, random)
	s, lines, err := reopen(r.image(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	want(t, list(s.Head(), "", ""), list(r.s.Head(), "", "")...)
	if lines.Len() > 0 {
		t.Errorf("logged: %s", lines)
	}
}

// TestMissingEngineFiles checks that a store without a manifest refuses to open. Pebble would create an empty store
// there and delete the existing files. If a table is missing, the flag cannot accept the damage.
func TestMissingEngineFiles(t *testing.T) {
	for kind, suffix := range map[string]string{"manifest": "MANIFEST-", "table": ".sst"} {
		t.Run(kind, func(t *testing.T) {
			r := newRecorded(t, 64<<10)
			r.write(600, rand.New(rand.NewPCG(1, 10)))
			r.writeHead()
			fs := r.image()
			removed := 0
			for name := range contents(t, fs, "/var/data/engine") {
				marker := strings.Contains(name, "marker.manifest")
				if kind == "manifest" && marker || strings.HasSuffix(name, suffix) {
					removed++
					removeFile(t, fs, name)
				}
			}
			if last := r.checkRefused(fs); last != 0 || removed == 0 {
				t.Errorf("offers to continue at revision %d, want 0 (%d files removed)", last, removed)
			}
		})
	}
}

// TestHeadIsWritten checks that HEAD is written once per interval while commits continue, and after each rotation
// of the log. It is not written without new commits. It contains only durable revisions, and commits do not sync
// it.
func TestHeadIsWritten(t *testing.T) {
	heads := make(chan string, 100)
	fs := &headFS{FS: vfs.NewMem(), heads: heads}
	ticks := make(chan time.Time)
	waiting := make(chan struct{}, 100)
	o := Options{Dir: "data", FS: fs}
	o.diskAfter = func(d time.Duration) <-chan time.Time {
		if d != headInterval {
			return nil
		}
		waiting <- struct{}{}
		return ticks
	}
	s, l := openWithDisk(t, o)
	<-heads // the first log file
	for round := range 3 {
		for range 10 {
			put(t, s, "a", "1")
		}
		<-waiting
		if n := len(heads); n > 0 {
			t.Fatalf("round %d: HEAD was written %d times before the interval had passed", round, n)
		}
		ticks <- time.Time{}
		<-heads
		h, err := l.readHead()
		if err != nil || h.Revision != s.Head().Revision() {
			t.Errorf("round %d: HEAD contains revision %d, %v", round, h.Revision, err)
		}
	}
	if len(waiting) > 0 {
		t.Error("another write of HEAD is scheduled without new commits")
	}
	put(t, s, "a", "2")
	<-waiting
	if err := l.engine().DB.Flush(); err != nil { // rotates the log
		t.Fatal(err)
	}
	<-heads // without a tick
	if h, err := l.readHead(); err != nil || h.Revision != s.Head().Revision() || h.Log != l.engine().NewestLog() {
		t.Errorf("after a rotation HEAD contains %+v, %v", h, err)
	}
}

// headFS reports each write of HEAD.
type headFS struct {
	vfs.FS
	heads chan<- string
}

func (f *headFS) Rename(from, to string) error {
	err := f.FS.Rename(from, to)
	if path.Base(to) == "HEAD" {
		f.heads <- to
	}
	return err
}

func (f *headFS) Unwrap() vfs.FS { return f.FS }
