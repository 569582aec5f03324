package embedded

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// damageKinds are what a bad disk or a mistaken operator does to a directory. Each returns what it did, or "" where
// there is nothing to do it to.
var damageKinds = []func(t testing.TB, fs, older vfs.FS, r *rand.Rand) string{
	func(t testing.TB, fs, _ vfs.FS, r *rand.Rand) string { // cut off
		name := newestLog(t, fs)
		text := content(t, fs, name)
		at := r.IntN(len(text) + 1)
		replaceFile(t, fs, name, text[:at])
		return fmt.Sprintf("cut %s at %d of %d", name, at, len(text))
	},
	func(t testing.TB, fs, _ vfs.FS, r *rand.Rand) string { // flipped bits
		logs := engineFiles(t, fs, ".log")
		name := logs[r.IntN(len(logs))]
		text := content(t, fs, name)
		if len(text) == 0 {
			return ""
		}
		at := r.IntN(len(text))
		text[at] ^= 1 << r.IntN(8)
		replaceFile(t, fs, name, text)
		return fmt.Sprintf("a bit of byte %d of %d of %s", at, len(text), name)
	},
	func(t testing.TB, fs, _ vfs.FS, r *rand.Rand) string { // zeroed blocks
		name := newestLog(t, fs)
		text := content(t, fs, name)
		if len(text) == 0 {
			return ""
		}
		at := r.IntN(len(text)) / sector * sector
		end := min(len(text), at+sector*(1+r.IntN(8)))
		clear(text[at:end])
		replaceFile(t, fs, name, text)
		return fmt.Sprintf("zeroes from %d to %d of %d of %s", at, end, len(text), name)
	},
	func(t testing.TB, fs, _ vfs.FS, r *rand.Rand) string { // a log that is gone
		logs := engineFiles(t, fs, ".log")
		name := logs[r.IntN(len(logs))]
		removeFile(t, fs, name)
		return fmt.Sprintf("removed %s of %v", name, logs)
	},
	func(t testing.TB, fs, _ vfs.FS, r *rand.Rand) string { // a table that is gone
		tables := engineFiles(t, fs, ".sst")
		if len(tables) == 0 {
			return ""
		}
		name := tables[r.IntN(len(tables))]
		removeFile(t, fs, name)
		return "removed " + name
	},
	func(t testing.TB, fs, older vfs.FS, _ *rand.Rand) string { // an older copy of the engine beside HEAD
		for name := range contents(t, fs, "/var/data/engine") {
			removeFile(t, fs, name)
		}
		for name, text := range contents(t, older, "/var/data/engine") {
			replaceFile(t, fs, name, []byte(text))
		}
		return "an older copy"
	},
	func(t testing.TB, fs, _ vfs.FS, r *rand.Rand) string { // HEAD
		text := content(t, fs, "/var/data/HEAD")
		at := r.IntN(len(text))
		text[at] ^= byte(1 + r.IntN(255))
		replaceFile(t, fs, "/var/data/HEAD", text)
		return fmt.Sprintf("byte %d of HEAD", at)
	},
}

// Damage at random places after a crash: a loss is refused, and can be accepted by name; or it lies behind HEAD, and is
// logged once with the last revision. No refused start changes a file (CRD-071).
func TestRandomLoss(t *testing.T) {
	counts := map[string]int{}
	for seed := range uint64(min(iterations(150), 5000)) {
		counts[randomLoss(t, seed)]++
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Log(counts)
	for _, kind := range []string{"accepted", "refused", "logged"} {
		if counts[kind] == 0 {
			t.Errorf("no damage was %s", kind)
		}
	}
}

func randomLoss(t *testing.T, seed uint64) (outcome string) {
	random := rand.New(rand.NewPCG(seed, 11))
	r := newRecorded(t, 32<<10)
	older := r.image()
	for range 1 + random.IntN(3) {
		r.write(random.IntN(60), random)
		r.confirm()
	}
	r.write(random.IntN(20), random)
	if random.IntN(4) > 0 {
		r.settle() // after a rotation
	}
	fs := r.image()
	confirmed := inspected(t, fs).head
	what := damageKinds[random.IntN(len(damageKinds))](t, fs, older, random)
	defer func() {
		if t.Failed() {
			t.Log(what, ": ", outcome)
		}
	}()
	if what == "" {
		return "nothing"
	}
	before, err := newDisk(withDefaults(Options{}), fs, "/var/data", nil).inspect()
	s, lines, openErr := reopen(fs.CrashClone(vfs.CrashCloneCfg{}), 0)
	if openErr == nil {
		defer s.Close()
		last := s.Head().Revision()
		want(t, list(s.Head(), "", ""), r.states[last]...)
		if last < confirmed.revision && before.head.revision != 0 {
			t.Errorf("HEAD says %d, and the store opened at %d", confirmed.revision, last)
		}
		if err == nil && last < r.s.Head().Revision() && !cleanly(before, confirmed) {
			if n := strings.Count(lines.String(), fmt.Sprintf("last=%d ", last)); n != 1 {
				t.Errorf("opened at %d of %d with %d warnings: %s", last, r.s.Head().Revision(), n, lines)
			}
			return "logged"
		}
		return "no loss"
	}
	var damage *DamageError
	if !errors.As(openErr, &damage) {
		t.Fatal(openErr)
	}
	last := r.refused(fs)
	if last == 0 {
		return "refused"
	}
	r.accepted(fs, last)
	return "accepted"
}

// cleanly reports whether the rest of the log looks like one that was never written: it is cut where a record ends, or a
// log file that HEAD does not name yet is missing.
func cleanly(s *survey, confirmed head) bool {
	newest := len(s.logs) - 1
	return newest >= 0 && s.logs[newest].end == nil && s.logs[newest].number >= confirmed.log
}

// Each log file between others is missed.
func TestMissingLogFiles(t *testing.T) {
	r := newRecorded(t, 16<<10)
	random := rand.New(rand.NewPCG(1, 12))
	images := []*vfs.MemFS{}
	for range 200 { // some image has several logs, those of memtables that are being written to tables
		r.write(5, random)
		images = append(images, r.image())
	}
	confirmed := r.confirm()
	tried := 0
	for _, fs := range images {
		s := inspected(t, fs)
		for i := range s.logs {
			if s.logs[i].first == 0 || s.logs[i].last <= s.tables || i == len(s.logs)-1 {
				continue // HEAD of this image need not know the newest
			}
			clone := fs.CrashClone(vfs.CrashCloneCfg{})
			name := path.Base(s.logs[i].name)
			removeFile(t, clone, "/var/data/engine/"+name)
			tried++
			if last := r.refused(clone); last >= s.logs[i].first {
				t.Errorf("without %s of %d to %d the history ends at %d", name, s.logs[i].first, s.logs[i].last, last)
			} else {
				r.accepted(clone, last)
			}
		}
	}
	t.Logf("%d files, up to revision %d", tried, confirmed)
}
