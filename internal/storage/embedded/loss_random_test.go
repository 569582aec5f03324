package embedded

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trellis-k8s/trellis/internal/storage/embedded/engine"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/format"
)

// damageKinds are kinds of damage by a bad disk or an operator's mistake. Each function returns a description, or
// "" if it found nothing to damage.
var damageKinds = []func(t testing.TB, fs, older vfs.FS, r *rand.Rand) string{
	func(t testing.TB, fs, _ vfs.FS, r *rand.Rand) string { // truncated
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
		return fmt.Sprintf("flipped a bit of byte %d of %d of %s", at, len(text), name)
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
		return fmt.Sprintf("zeroed %d to %d of %d of %s", at, end, len(text), name)
	},
	func(t testing.TB, fs, _ vfs.FS, r *rand.Rand) string { // a missing log
		logs := engineFiles(t, fs, ".log")
		name := logs[r.IntN(len(logs))]
		removeFile(t, fs, name)
		return fmt.Sprintf("removed %s of %v", name, logs)
	},
	func(t testing.TB, fs, _ vfs.FS, r *rand.Rand) string { // a missing table
		tables := engineFiles(t, fs, ".sst")
		if len(tables) == 0 {
			return ""
		}
		name := tables[r.IntN(len(tables))]
		removeFile(t, fs, name)
		return "removed " + name
	},
	func(t testing.TB, fs, older vfs.FS, _ *rand.Rand) string { // replaces the engine by an older copy, but keeps HEAD
		for name := range contents(t, fs, "/var/data/engine") {
			removeFile(t, fs, name)
		}
		for name, text := range contents(t, older, "/var/data/engine") {
			replaceFile(t, fs, name, []byte(text))
		}
		return "replaced the engine by an older copy"
	},
	func(t testing.TB, fs, _ vfs.FS, r *rand.Rand) string { // HEAD
		text := content(t, fs, "/var/data/HEAD")
		at := r.IntN(len(text))
		text[at] ^= byte(1 + r.IntN(255))
		replaceFile(t, fs, "/var/data/HEAD", text)
		return fmt.Sprintf("changed byte %d of HEAD", at)
	},
}

// TestRandomLoss checks damage at random places after a crash. If it affects revisions up to the one in HEAD, the
// store refuses to open, and Options.AcceptLossAfter can accept the loss. If it affects only later revisions, the
// store opens and logs the last revision once. A store that refuses to open changes no file (CRD-071).
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
		r.writeHead()
	}
	r.write(random.IntN(20), random)
	if random.IntN(4) > 0 {
		r.waitForHead() // HEAD then contains the newest log file
	}
	fs := r.image()
	confirmed := inspect(t, fs).head
	damaged := damageKinds[random.IntN(len(damageKinds))](t, fs, older, random)
	defer func() {
		if t.Failed() {
			t.Log(damaged, ": ", outcome)
		}
	}()
	if damaged == "" {
		return "nothing"
	}
	before, err := newDisk(withDefaults(Options{}), fs, "/var/data", nil).inspect()
	s, lines, openErr := reopen(fs.CrashClone(vfs.CrashCloneCfg{}), 0)
	if openErr == nil {
		defer s.Close()
		last := s.Head().Revision()
		want(t, list(s.Head(), "", ""), r.states[last]...)
		if last < confirmed.Revision && before.head.Revision != 0 {
			t.Errorf("the store opened at revision %d, but HEAD confirms %d", last, confirmed.Revision)
		}
		if err == nil && last < r.s.Head().Revision() && !looksUnwritten(before, confirmed) {
			if n := strings.Count(lines.String(), fmt.Sprintf("last=%d ", last)); n != 1 {
				t.Errorf("opened at revision %d of %d with %d warnings, want 1: %s",
					last, r.s.Head().Revision(), n, lines)
			}
			return "logged"
		}
		return "no loss"
	}
	var damage *engine.DamageError
	if !errors.As(openErr, &damage) {
		t.Fatal(openErr)
	}
	last := r.checkRefused(fs)
	if last == 0 {
		return "refused"
	}
	r.checkAccepted(fs, last)
	return "accepted"
}

// looksUnwritten reports whether the damage cannot be detected, because the lost records might never have been
// written. Then the log ends after a complete record, or the missing log file is not in HEAD yet.
func looksUnwritten(s *survey, confirmed format.Head) bool {
	newest := len(s.logs) - 1
	return newest >= 0 && s.logs[newest].End == nil && s.logs[newest].Number >= confirmed.Log
}

// TestMissingLogFiles checks that the loss of any log file is detected, except for the newest.
func TestMissingLogFiles(t *testing.T) {
	r := newRecorded(t, 16<<10)
	random := rand.New(rand.NewPCG(1, 12))
	images := []*vfs.MemFS{}
	for range 200 { // some images have several logs, because memtables are being flushed
		r.write(5, random)
		images = append(images, r.image())
	}
	confirmed := r.writeHead()
	tried := 0
	for _, fs := range images {
		s := inspect(t, fs)
		for i := range s.logs {
			if s.logs[i].First == 0 || s.logs[i].Last <= s.tables || i == len(s.logs)-1 {
				continue // HEAD may not contain the newest log yet
			}
			clone := fs.CrashClone(vfs.CrashCloneCfg{})
			name := path.Base(s.logs[i].Name)
			removeFile(t, clone, "/var/data/engine/"+name)
			tried++
			if last := r.checkRefused(clone); last >= s.logs[i].First {
				t.Errorf("without %s (revisions %d to %d) the history ends at %d",
					name, s.logs[i].First, s.logs[i].Last, last)
			} else {
				r.checkAccepted(clone, last)
			}
		}
	}
	t.Logf("%d files, up to revision %d", tried, confirmed)
}
