package robustness_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	goruntime "runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/trellis-k8s/trellis/internal/resource"
)

const (
	maxRatio    = 3                     // of the processor time at 2N to that at N
	minMeasured = 50 * time.Millisecond // what takes less is not judged
	maxBodySize = 3 << 20               // of a body, as the server accepts it
)

// sweep sends grown objects of every kind and measures the processor time of the process.
type sweep struct {
	*fixture
	noTimeoutClient *http.Client
	maxBody         int    // of a body in bytes
	objects         int    // of names
	nameFilter      string // part of the name of the cases to run
}

// target is a kind, and an object of it.
type target struct {
	version      *resource.Version
	path         string // of the collection
	base         []byte
	subresources []string // subresources that an object is put to
}

// Every validation, default, conversion and view of the built-in kinds takes time in proportion to the size of an object: with any list or
// map, at any depth, grown from N to 2N items, the processor time of a request grows to the threefold at most. SWEEP=all covers every
// place, variant and format up to the largest body. Otherwise the sweep covers one place of each Go field, in bodies of 64 KiB, with items
// that differ, also as protobuf, and with equal ones. SWEEP_ONLY is a part of the names of the cases to run.
func TestSweep(t *testing.T) {
	if testing.Short() || raceFactor > 1 {
		t.Skip("measures processor time, which the race detector distorts")
	}
	s := &sweep{fixture: newFixture(t), maxBody: 64 << 10, nameFilter: os.Getenv("SWEEP_ONLY")}
	all := os.Getenv("SWEEP") == "all"
	if all {
		s.maxBody = maxBodySize
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // collections come between measurements
	s.noTimeoutClient = s.fixture.newClient(true)
	s.noTimeoutClient.Timeout = time.Hour
	s.send(http.MethodPost, "/api/v1/namespaces", asJSON, []byte(`{"metadata":{"name":"ns"}}`))
	s.send(http.MethodPost, "/api/v1/namespaces/ns/serviceaccounts", asJSON, []byte(`{"metadata":{"name":"default"}}`))
	seen := map[string]bool{}
	for _, o := range s.targets() {
		begun := processorTime()
		for _, p := range collectionFields(reflect.TypeOf(o.version.Type.New())) {
			if all || !seen[p.owner] {
				s.sweepField(o, p, all)
			}
			seen[p.owner] = true
		}
		t.Logf("%s: %v", o.path, processorTime()-begun)
	}
	t.Logf("all: %v", processorTime())
}

// sweepField runs the cases of one place.
func (s *sweep) sweepField(o target, p collectionField, sweepField bool) {
	for _, v := range variants {
		for _, format := range []string{asJSON, asProtobuf} {
			if sweepField || v != empty && (format == asJSON || v == distinct) {
				s.runCase(&growthCase{target: o, collectionField: p, variant: v, format: format})
			}
		}
	}
}

// growthCase is an object with one list or map that grows.
type growthCase struct {
	target
	collectionField
	variant
	format string
}

func (g *growthCase) String() string {
	return fmt.Sprintf("%s %s %s %s %s", g.version.APIVersion, g.version.Definition.Names.Kind, g.name, g.variant, strings.TrimPrefix(g.format, "application/"))
}

// requestTimes are the processor times of the requests of one size, by what they do.
type requestTimes map[string]time.Duration

func (t requestTimes) longest() (d time.Duration) {
	for _, took := range t {
		d = max(d, took)
	}
	return d
}

// runCase grows a case until it takes long enough to be judged, or is as large as a body may be.
func (s *sweep) runCase(g *growthCase) {
	if !strings.Contains(g.String(), s.nameFilter) {
		return
	}
	collectGarbage()
	const first, factor = 64, 4
	n, at := first, s.measure(g, first)
	for {
		size := len(g.body(n, "x", "", false))
		if at.longest() > minMeasured || size*2 > s.maxBody {
			break
		}
		n *= min(factor, max(2, s.maxBody/size))
		at = s.measure(g, n)
	}
	if at.longest() < minMeasured {
		return
	}
	half := s.measure(g, n/2)
	for try := 0; try < 5 && at.ratio(half) > maxRatio; try++ { // a collection of garbage may have come in between
		at.keepMinimum(s.measure(g, n))
		half.keepMinimum(s.measure(g, n/2))
	}
	if r := at.ratio(half); r > maxRatio {
		s.t.Errorf("%s: %d items take %v, %d take %v", g, n/2, half, n, at)
	} else if s.nameFilter != "" {
		s.t.Logf("%s: %d items take %v, %d take %v", g, n/2, half, n, at)
	}
}

// collectGarbage frees memory once there is much to free.
func collectGarbage() {
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	if m.HeapAlloc > 1<<30 {
		goruntime.GC()
	}
}

// ratio returns the largest one of the requests that take long enough.
func (t requestTimes) ratio(half requestTimes) (r float64) {
	for what, took := range t {
		if before := half[what]; took > minMeasured && before > 0 {
			r = max(r, float64(took)/float64(before))
		}
	}
	return r
}

func (t requestTimes) keepMinimum(other requestTimes) {
	for what, took := range other {
		if had, ok := t[what]; ok {
			t[what] = min(had, took)
		}
	}
}

// measure creates an object with n items, updates it and reads it as a table. What cannot be created is put onto another one, and to its
// subresources.
func (s *sweep) measure(g *growthCase, n int) requestTimes {
	took := requestTimes{}
	s.objects++
	name := fmt.Sprint("x", s.objects)
	code, answer := s.timed(took, "create", http.MethodPost, g.path, g.format, g.body(n, name, "", false))
	if !g.version.Definition.Stored() || strings.Contains(g.path, "/base/") {
		return took
	}
	if code == http.StatusCreated {
		at := g.path + "/" + name
		s.timed(took, "update", http.MethodPut, at, g.format, g.body(n, name, resourceVersionOf(answer), true))
		s.timed(took, "table", http.MethodGet, at, "", nil)
		s.timed(took, "delete", http.MethodDelete, at+"?gracePeriodSeconds=0", "", nil)
	} else {
		s.measurePut(took, g, "", n)
	}
	for _, sub := range g.subresources {
		s.measurePut(took, g, sub, n)
	}
	return took
}

// measurePut updates the base of a case, or a part of it, twice, and takes that back.
func (s *sweep) measurePut(took requestTimes, g *growthCase, sub string, n int) {
	at := g.path + "/" + g.baseName()
	_, base := s.send(http.MethodGet, at, "", nil)
	at += sub
	code, answer := s.timed(took, "put"+sub, http.MethodPut, at, g.format, g.body(n, g.baseName(), resourceVersionOf(base), false))
	if code != http.StatusOK {
		return
	}
	if code, again := s.timed(took, "put again"+sub, http.MethodPut, at, g.format, g.body(n, g.baseName(), resourceVersionOf(answer), true)); code == http.StatusOK {
		answer = again
	}
	s.timed(took, "table"+sub, http.MethodGet, at, "", nil)
	var o map[string]any
	_ = json.Unmarshal(g.base, &o)
	o["metadata"].(map[string]any)["resourceVersion"] = resourceVersionOf(answer)
	text, _ := json.Marshal(o)
	s.send(http.MethodPut, at, asJSON, text)
}

// baseName returns the name of the base.
func (o *target) baseName() string {
	var m metav1.PartialObjectMetadata
	_ = json.Unmarshal(o.base, &m)
	return m.Name
}

// resourceVersionOf finds the resourceVersion in an answer.
func resourceVersionOf(answer []byte) string {
	_, after, _ := bytes.Cut(answer, []byte(`"resourceVersion":"`))
	before, _, _ := bytes.Cut(after, []byte(`"`))
	return string(before)
}

// body encodes a case with n items; turned, the items are in reverse order and a label is new.
func (g *growthCase) body(n int, name, revision string, turned bool) []byte {
	obj := g.version.Type.New()
	if err := json.Unmarshal(g.base, obj); err != nil {
		panic(err)
	}
	g.visit(reflect.ValueOf(obj), func(v reflect.Value) {
		field := g.owner[strings.LastIndex(g.owner, ".")+1:]
		grow(v, strings.ToLower(field), g.variant, n)
		if turned && v.Kind() == reflect.Slice {
			for i, swap := 0, reflect.Swapper(v.Interface()); i < n/2; i++ {
				swap(i, n-1-i)
			}
		}
	})
	md := obj.(metav1.Object)
	md.SetName(name)
	md.SetResourceVersion(revision)
	if turned {
		md.SetLabels(map[string]string{"turned": "true"})
	}
	return g.encode(obj)
}

func (g *growthCase) encode(obj runtime.Object) []byte {
	var text []byte
	var err error
	if g.format == asProtobuf {
		text, err = resource.AppendProtobuf(nil, g.version.APIVersion, g.version.Definition.Names.Kind, obj)
	} else {
		text, err = json.Marshal(obj)
	}
	if err != nil {
		panic(err)
	}
	return text
}

// timed sends a request and adds the processor time that the process has used for it.
func (s *sweep) timed(took requestTimes, what, method, path, contentType string, body []byte) (code int, answer []byte) {
	before := processorTime()
	code, answer = s.send(method, path, contentType, body)
	took[what] = processorTime() - before
	return code, answer
}

func (s *sweep) send(method, path, contentType string, body []byte) (int, []byte) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, "https://"+s.host+path, bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	r.Header.Set("Accept", asJSON)
	if method == http.MethodGet && contentType == "" && strings.Contains(path, "/x") {
		r.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	}
	resp, err := s.noTimeoutClient.Do(r)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, answer
}

// processorTime returns the time of the process in user mode. What the system needs to provide memory for the first time says little.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano())
}
