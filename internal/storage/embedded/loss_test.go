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
)

// recorded is a store on a disk in memory, and all states that it had.
type recorded struct {
	t      testing.TB
	fs     *vfs.MemFS
	s      *Store
	states map[int64][]string // by revision
}

// lossOptions let HEAD be written by rotations and by confirm alone.
func lossOptions(fs vfs.FS, memTable uint64) Options {
	never := func(time.Duration) <-chan time.Time { return nil }
	return Options{Dir: "/var/data", FS: fs, memTable: memTable, diskAfter: never}
}

func newRecorded(t testing.TB, memTable uint64) *recorded {
	r := &recorded{t: t, fs: vfs.NewCrashableMem(), states: map[int64][]string{}}
	r.s = open(t, lossOptions(r.fs, memTable))
	r.settle()
	r.write(20, rand.New(rand.NewPCG(1, 6)))
	if err := r.disk().engine().db.Flush(); err != nil { // so that some revisions are in tables
		t.Fatal(err)
	}
	r.settle()
	return r
}

func (r *recorded) disk() *disk { return r.s.log.(*disk) }

// settle waits until HEAD names the newest log file: after that, it changes by the next rotation or confirm.
func (r *recorded) settle() {
	for l := r.disk(); ; runtime.Gosched() {
		l.headMu.Lock()
		named := l.head.log
		l.headMu.Unlock()
		if named == l.engine().newestLog.Load() {
			return
		}
	}
}

// write makes n commits.
func (r *recorded) write(n int, random *rand.Rand) {
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

// confirm writes HEAD, as happens every markEvery.
func (r *recorded) confirm() int64 {
	if err := r.disk().writeHead(); err != nil {
		r.t.Fatal(err)
	}
	return r.s.Head().Revision()
}

// image is what a power failure leaves now: all that was synced.
func (r *recorded) image() *vfs.MemFS { return r.fs.CrashClone(vfs.CrashCloneCfg{}) }

// engineFiles lists the engine's files with this end, by number.
func engineFiles(t testing.TB, fs vfs.FS, end string) (names []string) {
	all, err := fs.List("/var/data/engine")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		if strings.HasSuffix(name, end) {
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
	text, err := (&disk{fs: fs, dir: path.Dir(name)}).read(path.Base(name))
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
	if err := (&disk{fs: fs, dir: path.Dir(name)}).replace(path.Base(name), text); err != nil {
		t.Fatal(err)
	}
}

// reopen opens an image and returns the lines that are logged.
func reopen(fs vfs.FS, accept int64) (*Store, *bytes.Buffer, error) {
	o, lines := lossOptions(fs, 0), &bytes.Buffer{}
	o.AcceptLossAfter = accept
	o.Logger = slog.New(slog.NewTextHandler(lines, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, err := Open(o)
	return s, lines, err
}

// refused checks that an image is refused, that the error has all words, and that no file changes. It returns the
// revision to which the store could go on.
func (r *recorded) refused(fs *vfs.MemFS, words ...any) int64 {
	r.t.Helper()
	before := contents(r.t, fs, "/var/data")
	s, _, err := reopen(fs, 0)
	if err == nil {
		r.t.Errorf("opened at revision %d", s.Head().Revision())
		_ = s.Close()
		return 0
	}
	var damage *DamageError
	if !errors.As(err, &damage) {
		r.t.Fatalf("not a DamageError: %v", err)
	}
	for _, word := range words {
		if !regexp.MustCompile(`(^|\W)` + fmt.Sprint(word) + `(\W|$)`).MatchString(err.Error()) {
			r.t.Errorf("%v is not in: %v", word, err)
		}
	}
	after := contents(r.t, fs, "/var/data")
	for name := range after {
		if _, found := before[name]; !found && !strings.HasSuffix(name, "LOCK") {
			r.t.Errorf("the refused start has made %s", name)
		}
	}
	for name, text := range before {
		if after[name] != text {
			r.t.Errorf("the refused start has changed %s", name)
		}
	}
	return damage.LastRevision
}

// accepted continues an image without what follows revision last, and checks the rest of its life.
func (r *recorded) accepted(fs *vfs.MemFS, last int64) {
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
		r.t.Errorf("continues at %d, and %d was used", first, newest)
	}
	if n := strings.Count(lines.String(), "\n"); n != 1 || !strings.Contains(lines.String(), fmt.Sprintf("last=%d ", last)) {
		r.t.Errorf("%d lines: %s", n, lines)
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
	s, lines, err = reopen(fs, last) // the flag is left in a unit file
	if err != nil {
		r.t.Fatalf("a second start with the flag: %v", err)
	}
	want(r.t, list(s.Head(), "", ""), state...)
	if !strings.Contains(lines.String(), "has no effect") {
		r.t.Errorf("nothing says that the flag is of no use: %s", lines)
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

// Damage at the end of the newest log, of what HEAD confirms, is refused with the file, both revisions and the flag. The
// flag continues with the rest, at revisions that no client has seen (CRD-071).
func TestLossIsRefused(t *testing.T) {
	r := newRecorded(t, 0)
	random := rand.New(rand.NewPCG(1, 7))
	r.write(100, random)
	older := r.image()
	r.write(100, random)
	confirmed := r.confirm()
	whole := r.image()
	log := newestLog(t, whole)
	text := content(t, whole, log)
	half := len(text) / 2
	damage := map[string]func(fs *vfs.MemFS){
		"cut":           func(fs *vfs.MemFS) { replaceFile(t, fs, log, text[:half]) },
		"last byte":     func(fs *vfs.MemFS) { replaceFile(t, fs, log, text[:len(text)-1]) },
		"bit":           func(fs *vfs.MemFS) { flip(t, fs, log, len(text)-9) },
		"zeroed block":  func(fs *vfs.MemFS) { replaceFile(t, fs, log, append(bytes.Clone(text[:half]), make([]byte, half)...)) },
		"empty":         func(fs *vfs.MemFS) { replaceFile(t, fs, log, nil) },
		"missing":       func(fs *vfs.MemFS) { removeFile(t, fs, log) },
		"older copy":    func(fs *vfs.MemFS) { replaceFile(t, fs, log, content(t, older, log)) },
		"bit in middle": func(fs *vfs.MemFS) { flip(t, fs, log, half) },
	}
	for name, damage := range damage {
		t.Run(name, func(t *testing.T) {
			r := *r
			r.t = t
			fs := whole.CrashClone(vfs.CrashCloneCfg{})
			damage(fs)
			s := inspected(t, fs)
			last := r.refused(fs, "engine/"+path.Base(log), s.last, confirmed, fmt.Sprintf("--accept-data-loss-after=%d", s.last))
			if last != s.last || last >= confirmed {
				t.Fatalf("ends at %d, and %d was confirmed", last, confirmed)
			}
			r.accepted(fs, last)
		})
	}
}

func flip(t testing.TB, fs vfs.FS, name string, at int) {
	text := content(t, fs, name)
	text[at] ^= 0x10
	replaceFile(t, fs, name, text)
}

func inspected(t testing.TB, fs vfs.FS) *survey {
	s, err := newDisk(withDefaults(Options{}), fs, "/var/data", nil).inspect()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A torn record after HEAD is what a crash leaves: the store opens, with one warning that names the last revision.
func TestTornTailIsLogged(t *testing.T) {
	r := newRecorded(t, 0)
	random := rand.New(rand.NewPCG(1, 8))
	r.write(50, random)
	confirmed := r.confirm()
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
	for _, word := range []string{"level=WARN", path.Base(log), fmt.Sprintf("last=%d ", last), fmt.Sprintf("HEAD=%d\n", confirmed)} {
		if strings.Count(lines.String(), word) != 1 {
			t.Errorf("%q is not in %s", word, lines)
		}
	}
	if last != r.s.Head().Revision()-1 {
		t.Errorf("the last revision is %d of %d", last, r.s.Head().Revision())
	}
}

// A crash alone, in the midst of writing or not, is no damage and logs nothing.
func TestCrashWithoutDamageIsSilent(t *testing.T) {
	r := newRecorded(t, 0)
	random := rand.New(rand.NewPCG(1, 9))
	r.write(50, random)
	r.confirm()
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

// A directory without the file that names the engine's tables is not taken for an empty one, whose files the engine
// deletes. A table that is missing is damage that the flag does not cover.
func TestMissingEngineFiles(t *testing.T) {
	for kind, end := range map[string]string{"manifest": "MANIFEST-", "table": ".sst"} {
		t.Run(kind, func(t *testing.T) {
			r := newRecorded(t, 64<<10)
			r.write(600, rand.New(rand.NewPCG(1, 10)))
			r.confirm()
			fs := r.image()
			removed := 0
			for name := range contents(t, fs, "/var/data/engine") {
				if marker := strings.Contains(name, "marker.manifest"); kind == "manifest" && marker || strings.HasSuffix(name, end) {
					removed++
					removeFile(t, fs, name)
				}
			}
			if last := r.refused(fs); last != 0 || removed == 0 {
				t.Errorf("ends at %d, removed %d", last, removed)
			}
		})
	}
}

// HEAD is written once a period while commits continue, not at all while none do, and at each rotation of the log. It
// never names a revision that is not durable, and commits do not sync it.
func TestHeadIsRenewed(t *testing.T) {
	heads := make(chan string, 100)
	fs := &renamed{FS: vfs.NewMem(), names: heads}
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
	s := open(t, o)
	<-heads // the first log file
	for round := range 3 {
		for range 10 {
			put(t, s, "a", "1")
		}
		<-waiting
		if n := len(heads); n > 0 {
			t.Fatalf("round %d: HEAD was written %d times before its time", round, n)
		}
		ticks <- time.Time{}
		<-heads
		h, err := s.log.(*disk).readHead()
		if err != nil || h.revision != s.Head().Revision() {
			t.Errorf("round %d: HEAD says %d, %v", round, h.revision, err)
		}
	}
	if len(waiting) > 0 {
		t.Error("HEAD is to be written again, and nothing has changed")
	}
	put(t, s, "a", "2")
	<-waiting
	if err := s.log.(*disk).engine().db.Flush(); err != nil { // rotates the log
		t.Fatal(err)
	}
	<-heads // without a tick
	if h, err := s.log.(*disk).readHead(); err != nil || h.revision != s.Head().Revision() || h.log != s.log.(*disk).engine().newestLog.Load() {
		t.Errorf("after a rotation HEAD says %+v, %v", h, err)
	}
}

// renamed reports each new HEAD.
type renamed struct {
	vfs.FS
	names chan<- string
}

func (f *renamed) Rename(from, to string) error {
	err := f.FS.Rename(from, to)
	if path.Base(to) == "HEAD" {
		f.names <- to
	}
	return err
}

func (f *renamed) Unwrap() vfs.FS { return f.FS }
