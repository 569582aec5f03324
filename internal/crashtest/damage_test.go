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

	"github.com/trellis-k8s/trellis/internal/fixture/program"
)

// damageRounds returns the number of servers whose disk is damaged: the value of CRASHTEST, or 6 by default.
func damageRounds() int {
	if n, err := strconv.Atoi(os.Getenv("CRASHTEST")); err == nil && n > 0 {
		return n
	}
	return 6
}

// TestDamagedServerRefusesToStart kills servers under load and damages the end of their logs at random places. Then
// one of two things happens. Either the server does not start, and its error contains the file, the last revision
// in the log, the revision in HEAD, and a flag. With this flag, the server starts without the lost revisions. Or
// the server starts with all revisions up to the one in HEAD, and logs a warning if it detects the loss of later
// ones (CRD-071).
func TestDamagedServerRefusesToStart(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Log("seed", seed)
	random := rand.New(rand.NewSource(seed))
	binary := program.Build(t)
	outcomes := map[string]int{}
	for i := range damageRounds() {
		s := &server{t: t, binary: binary, dir: filepath.Join(t.TempDir(), "data")}
		outcomes[damageOnce(t, s, random, i%2 == 0)]++
		if t.Failed() {
			return
		}
	}
	t.Log(outcomes)
}

func damageOnce(t *testing.T, s *server, random *rand.Rand, waitForHead bool) string {
	s.start()
	acked := fill(t, s, 50+random.Intn(300))
	newest := slices.Max(acked)
	if waitForHead { // the revision in HEAD is then at or after all acknowledged ones
		await(t, func() bool { return confirmed(t, s.dir) >= newest })
	}
	s.kill()
	head := confirmed(t, s.dir)
	file, damage := damageLog(t, s.dir, random)
	before := digest(t, filepath.Join(s.dir, "store"))
	defer func() {
		if t.Failed() {
			t.Logf("%s; revision %d acknowledged, HEAD at %d\n%s", damage, newest, head, s.output)
		}
	}()
	if s.tryStart() {
		defer s.kill()
		left := revisions(t, s)
		for _, revision := range acked {
			if revision <= head && !left[revision] {
				t.Errorf("revision %d is lost, but HEAD confirmed %d", revision, head)
			}
			warned := strings.Contains(s.output.String(), "the end of the log cannot be decoded")
			if !left[revision] && !looksUnwritten(damage) && !warned {
				t.Errorf("revision %d is lost without a warning", revision)
			}
		}
		return "started"
	}
	if after := digest(t, filepath.Join(s.dir, "store")); after != before {
		t.Errorf("the refused start has changed files:\n%s\nbefore:\n%s", after, before)
	}
	flag := regexp.MustCompile(`--accept-data-loss-after=(\d+)`).FindStringSubmatch(s.output.String())
	if flag == nil || !strings.Contains(s.output.String(), file) ||
		!strings.Contains(s.output.String(), fmt.Sprint(" ", head)) {
		t.Fatalf("the error does not contain %s, revision %d and the flag", file, head)
	}
	last, _ := strconv.ParseInt(flag[1], 10, 64)
	s.start(flag[0])
	left := revisions(t, s)
	for _, revision := range acked {
		if left[revision] != (revision <= last) {
			t.Errorf("revision %d is present: %v, but the store continues after %d", revision, left[revision], last)
		}
	}
	if again := slices.Min(fill(t, s, 1)); again <= newest {
		t.Errorf("revision %d is used again", again)
	}
	path := fmt.Sprintf("%s?watch=1&timeoutSeconds=1&resourceVersion=%d", collection, newest)
	if body, err := s.do("GET", path, nil); err != nil || !strings.Contains(string(body), `"code":410`) {
		t.Errorf("a watch from revision %d: got %.200s %v, want code 410", newest, body, err)
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
				body, err := s.do("POST", collection, []byte(
					`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"d-"},"data":{"value":"`+
						strings.Repeat("x", 300)+`"}}`))
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

// revisions returns the revisions of the stored objects.
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

// confirmed returns the revision in the file HEAD, or 0 if the file does not exist.
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
			t.Fatal("the condition did not become true within 30 seconds")
		}
	}
}

// damageLog damages the newest log in a random way. It returns the name of the file and a description of the damage.
func damageLog(t *testing.T, dir string, random *rand.Rand) (file, damage string) {
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
		damage, text = "cut", text[:at]
	case 1:
		damage = "bit"
		text[at] ^= 1 << random.Intn(8)
	case 2:
		damage = "zeroes"
		clear(text[at/4096*4096 : min(len(text), at/4096*4096+8192)])
	default:
		damage = "removed"
	}
	if damage == "removed" {
		err = os.Remove(name)
	} else {
		err = os.WriteFile(name, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return "engine/" + filepath.Base(name), fmt.Sprintf("%s at %d of %s", damage, at, name)
}

// looksUnwritten reports whether the server cannot detect the damage. The log then looks as if the lost records had
// never been written.
func looksUnwritten(damage string) bool {
	return strings.HasPrefix(damage, "cut") || strings.HasPrefix(damage, "removed")
}

// digest returns the checksums of all files below dir, except LOCK.
func digest(t *testing.T, dir string) string {
	const script = `cd "$1" && find . -type f ! -name LOCK | sort | xargs cksum`
	out, err := exec.Command("sh", "-c", script, "sh", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}
