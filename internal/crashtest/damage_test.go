package crashtest_test

import (
	"errors"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// damages is how many killed servers have their disk damaged: 6, or CRASHTEST.
func damages() int {
	if n, err := strconv.Atoi(os.Getenv("CRASHTEST")); err == nil && n > 0 {
		return n
	}
	return 6
}

// A server is killed while it writes, and the end of its log is damaged at a random place. It refuses to start, names
// the file and both revisions, and goes on without the rest where the flag says so; or it starts, with a warning, and
// lacks nothing that HEAD confirms (CRD-071).
func TestDamagedServerRefusesToStart(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Log("seed", seed)
	random := rand.New(rand.NewSource(seed))
	binary := build(t)
	outcomes := map[string]int{}
	for i := range damages() {
		s := &server{t: t, binary: binary, dir: filepath.Join(t.TempDir(), "data")}
		outcomes[damageRound(t, s, random, i%2 == 0)]++
		if t.Failed() {
			return
		}
	}
	t.Log(outcomes)
}

func damageRound(t *testing.T, s *server, random *rand.Rand, settled bool) string {
	s.start()
	acked := fill(t, s, 50+random.Intn(300))
	newest := slices.Max(acked)
	if settled { // everything is confirmed
		await(t, func() bool { return confirmed(t, s.dir) >= newest })
	}
	s.kill()
	head := confirmed(t, s.dir)
	file, what := damageLog(t, s.dir, random)
	before := digest(t, filepath.Join(s.dir, "store"))
	defer func() {
		if t.Failed() {
			t.Logf("%s; %d acknowledged, HEAD at %d\n%s", what, newest, head, s.output)
		}
	}()
	if s.starts() {
		defer s.kill()
		left := revisions(t, s)
		for _, revision := range acked {
			if revision <= head && !left[revision] {
				t.Errorf("revision %d is lost, and HEAD confirmed %d", revision, head)
			}
			if !left[revision] && !cutCleanly(what) && !strings.Contains(s.output.String(), "the end of the log does not decode") {
				t.Errorf("revision %d is lost without a warning", revision)
			}
		}
		return "started"
	}
	if after := digest(t, filepath.Join(s.dir, "store")); after != before {
		t.Errorf("the refused start has changed files:\n%s\nbefore:\n%s", after, before)
	}
	flag := regexp.MustCompile(`--accept-data-loss-after=(\d+)`).FindStringSubmatch(s.output.String())
	if flag == nil || !strings.Contains(s.output.String(), file) || !strings.Contains(s.output.String(), fmt.Sprint(" ", head)) {
		t.Fatalf("the error does not name %s, %d and the flag", file, head)
	}
	last, _ := strconv.ParseInt(flag[1], 10, 64)
	s.start(flag[0])
	left := revisions(t, s)
	for _, revision := range acked {
		if left[revision] != (revision <= last) {
			t.Errorf("revision %d is there: %v, and the store was cut after %d", revision, left[revision], last)
		}
	}
	if again := slices.Min(fill(t, s, 1)); again <= newest {
		t.Errorf("revision %d is used again", again)
	}
	if body, err := s.do("GET", fmt.Sprintf("%s?watch=1&timeoutSeconds=1&resourceVersion=%d", collection, newest), nil); err != nil || !strings.Contains(string(body), `"code":410`) {
		t.Errorf("a watch from revision %d: %.200s %v", newest, body, err)
	}
	s.kill()
	s.start() // without the flag
	s.kill()
	return "refused"
}

// fill creates objects and returns their revisions.
func fill(t *testing.T, s *server, n int) (acked []int64) {
	var mu sync.Mutex
	var running sync.WaitGroup
	work := make(chan int, n)
	for i := range n {
		work <- i
	}
	close(work)
	for range 4 {
		running.Go(func() {
			for range work {
				body, err := s.do("POST", collection, []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"d-"},"data":{"value":"`+strings.Repeat("x", 300)+`"}}`))
				if err != nil {
					t.Error(err)
					return
				}
				found := regexp.MustCompile(`"resourceVersion":"(\d+)"`).FindSubmatch(body)
				revision, _ := strconv.ParseInt(string(found[1]), 10, 64)
				mu.Lock()
				acked = append(acked, revision)
				mu.Unlock()
			}
		})
	}
	running.Wait()
	return acked
}

// revisions returns those of the objects that are stored.
func revisions(t *testing.T, s *server) map[int64]bool {
	body, err := s.do("GET", collection, nil)
	if err != nil {
		t.Fatal(err)
	}
	all := map[int64]bool{}
	for _, found := range regexp.MustCompile(`"resourceVersion":"(\d+)"`).FindAllSubmatch(body, -1) {
		revision, _ := strconv.ParseInt(string(found[1]), 10, 64)
		all[revision] = true
	}
	return all
}

// confirmed returns the revision that HEAD names, or 0.
func confirmed(t *testing.T, dir string) (revision int64) {
	text, err := os.ReadFile(filepath.Join(dir, "store", "HEAD"))
	if err == nil {
		_, err = fmt.Sscanf(string(text), "revision %d", &revision)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return revision
}

func await(t *testing.T, done func() bool) {
	deadline := time.Now().Add(30 * time.Second)
	for tick := time.NewTicker(5 * time.Millisecond); !done(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain")
		}
	}
}

// damageLog damages the newest log in a random way.
func damageLog(t *testing.T, dir string, random *rand.Rand) (file, what string) {
	logs, err := filepath.Glob(filepath.Join(dir, "store", "engine", "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	name := slices.Max(logs)
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	at := len(text)/4 + random.Intn(len(text)*3/4)
	switch random.Intn(4) {
	case 0:
		what, text = "cut", text[:at]
	case 1:
		what = "bit"
		text[at] ^= 1 << random.Intn(8)
	case 2:
		what = "zeroes"
		clear(text[at/4096*4096 : min(len(text), at/4096*4096+8192)])
	default:
		what = "removed"
	}
	if what == "removed" {
		err = os.Remove(name)
	} else {
		err = os.WriteFile(name, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return "engine/" + filepath.Base(name), fmt.Sprintf("%s at %d of %s", what, at, name)
}

// cutCleanly reports whether the damage can look like records that were never written.
func cutCleanly(what string) bool {
	return strings.HasPrefix(what, "cut") || strings.HasPrefix(what, "removed")
}

// digest sums up the files below dir.
func digest(t *testing.T, dir string) string {
	out, err := exec.Command("sh", "-c", `cd "$1" && find . -type f ! -name LOCK | sort | xargs cksum`, "sh", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}
