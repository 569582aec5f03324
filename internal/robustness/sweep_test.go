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
	maxRatio    = 3                     // maximum ratio of the processor times for 2N and N items
	minMeasured = 50 * time.Millisecond // shorter times are not compared
	maxBodySize = 3 << 20               // in bytes, the server's limit
)

// sweep sends objects of every kind with growing lists and maps, and measures the processor time of the process.
type sweep struct {
	*fixture
	noTimeoutClient *http.Client
	maxBody         int    // in bytes
	objects         int    // number of objects created
	nameFilter      string // run only cases whose name contains this text; "" runs all
}

// target is a version of a kind with an object of the kind.
type target struct {
	version      *resource.Version
	path         string // path of the collection
	base         []byte
	subresources []string // subresources that accept a PUT of the object
}

// TestSweep checks that requests for built-in kinds take time proportional to the size of the object. This covers
// validation, defaulting, conversion and tables. When a list or map at any depth grows from N to 2N items, the
// processor time may grow by a factor of at most 3.
//
// By default, the test covers one occurrence of each Go field in bodies up to 64 KiB. It uses distinct items in JSON
// and protobuf, and equal items in JSON. SWEEP=all covers every occurrence, variant and format, up to the largest body.
// SWEEP_ONLY runs only the cases whose name contains its value.
func TestSweep(t *testing.T) {
	if testing.Short() || raceFactor > 1 {
		t.Skip("measures processor time, which the race detector distorts")
	}
	s := &sweep{fixture: newFixture(t), maxBody: 64 << 10, nameFilter: os.Getenv("SWEEP_ONLY")}
	all := os.Getenv("SWEEP") == "all"
	if all {
		s.maxBody = maxBodySize
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // collectGarbage runs between the measurements
	s.noTimeoutClient = s.fixture.newClient(true)
	s.noTimeoutClient.Timeout = time.Hour
	s.send(http.MethodPost, "/api/v1/namespaces", asJSON, []byte(`{"metadata":{"name":"ns"}}`))
	s.send(http.MethodPost, "/api/v1/namespaces/ns/serviceaccounts", asJSON, []byte(`{"metadata":{"name":"default"}}`))
	seen := map[string]bool{}
	for _, target := range s.targets() {
		start := processorTime()
		for _, field := range collectionFields(reflect.TypeOf(target.version.Type.New())) {
			if all || !seen[field.owner] {
				s.sweepField(target, field, all)
			}
			seen[field.owner] = true
		}
		t.Logf("%s: %v", target.path, processorTime()-start)
	}
	t.Logf("total: %v", processorTime())
}

// sweepField runs the cases of one field. all selects every variant and format.
func (s *sweep) sweepField(o target, field collectionField, all bool) {
	for _, v := range variants {
		for _, format := range []string{asJSON, asProtobuf} {
			if all || v != empty && (format == asJSON || v == distinct) {
				s.runCase(&growthCase{target: o, collectionField: field, variant: v, format: format})
			}
		}
	}
}

// growthCase is an object in which one list or map grows.
type growthCase struct {
	target
	collectionField
	variant
	format string
}

func (g *growthCase) String() string {
	return fmt.Sprintf("%s %s %s %s %s", g.version.APIVersion, g.version.Definition.Names.Kind, g.name, g.variant,
		strings.TrimPrefix(g.format, "application/"))
}

// requestTimes holds the processor times of the requests for one number of items, by operation.
type requestTimes map[string]time.Duration

func (t requestTimes) longest() (d time.Duration) {
	for _, requestTime := range t {
		d = max(d, requestTime)
	}
	return d
}

// runCase increases the number of items until a request takes minMeasured or the body reaches its maximum size. Then it
// compares the times with those for half the number.
func (s *sweep) runCase(g *growthCase) {
	if !strings.Contains(g.String(), s.nameFilter) {
		return
	}
	collectGarbage()
	const first, factor = 64, 4
	n, full := first, s.measure(g, first)
	for {
		size := len(g.body(n, "x", "", false))
		if full.longest() > minMeasured || size*2 > s.maxBody {
			break
		}
		n *= min(factor, max(2, s.maxBody/size))
		full = s.measure(g, n)
	}
	if full.longest() < minMeasured {
		return
	}
	half := s.measure(g, n/2)
	for try := 0; try < 5 && full.ratio(half) > maxRatio; try++ { // a garbage collection may have distorted the times
		full.keepMinimum(s.measure(g, n))
		half.keepMinimum(s.measure(g, n/2))
	}
	if r := full.ratio(half); r > maxRatio {
		s.t.Errorf("%s: %d items take %v, %d take %v: ratio %.1f, want at most %d", g, n/2, half, n, full, r, maxRatio)
	} else if s.nameFilter != "" {
		s.t.Logf("%s: %d items take %v, %d take %v", g, n/2, half, n, full)
	}
}

// collectGarbage runs the garbage collector if the heap has more than 1 GiB.
func collectGarbage() {
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	if m.HeapAlloc > 1<<30 {
		goruntime.GC()
	}
}

// ratio divides each time in t by the time of the same operation for half the number of items. It returns the
// largest result, but ignores times in t up to minMeasured.
func (t requestTimes) ratio(half requestTimes) (r float64) {
	for operation, d := range t {
		if halfTime := half[operation]; d > minMeasured && halfTime > 0 {
			r = max(r, float64(d)/float64(halfTime))
		}
	}
	return r
}

// keepMinimum adds another measurement to t. The shorter time of each operation remains.
func (t requestTimes) keepMinimum(other requestTimes) {
	for operation, d := range other {
		if previous, ok := t[operation]; ok {
			t[operation] = min(previous, d)
		}
	}
}

// measure creates an object with n items, updates it, reads it as a Table and deletes it. If the object cannot be
// created, measure updates the base object instead. It also updates the subresources of the base object.
func (s *sweep) measure(g *growthCase, n int) requestTimes {
	times := requestTimes{}
	s.objects++
	name := fmt.Sprint("x", s.objects)
	code, response := s.timed(times, "create", http.MethodPost, g.path, g.format, g.body(n, name, "", false))
	if !g.version.Definition.Stored() || strings.Contains(g.path, "/base/") {
		return times
	}
	if code == http.StatusCreated {
		path := g.path + "/" + name
		s.timed(times, "update", http.MethodPut, path, g.format, g.body(n, name, resourceVersionOf(response), true))
		s.timed(times, "table", http.MethodGet, path, "", nil)
		s.timed(times, "delete", http.MethodDelete, path+"?gracePeriodSeconds=0", "", nil)
	} else {
		s.measurePut(times, g, "", n)
	}
	for _, sub := range g.subresources {
		s.measurePut(times, g, sub, n)
	}
	return times
}

// measurePut updates the base object or its subresource twice, reads it as a Table, and restores the base object.
func (s *sweep) measurePut(times requestTimes, g *growthCase, sub string, n int) {
	path := g.path + "/" + g.baseName()
	_, base := s.send(http.MethodGet, path, "", nil)
	path += sub
	code, response := s.timed(times, "put"+sub, http.MethodPut, path, g.format,
		g.body(n, g.baseName(), resourceVersionOf(base), false))
	if code != http.StatusOK {
		return
	}
	if code, second := s.timed(times, "second put"+sub, http.MethodPut, path, g.format,
		g.body(n, g.baseName(), resourceVersionOf(response), true)); code == http.StatusOK {
		response = second
	}
	s.timed(times, "table"+sub, http.MethodGet, path, "", nil)
	var o map[string]any
	_ = json.Unmarshal(g.base, &o)
	o["metadata"].(map[string]any)["resourceVersion"] = resourceVersionOf(response)
	text, _ := json.Marshal(o)
	s.send(http.MethodPut, path, asJSON, text)
}

// baseName returns the name of the base object.
func (o *target) baseName() string {
	var m metav1.PartialObjectMetadata
	_ = json.Unmarshal(o.base, &m)
	return m.Name
}

// resourceVersionOf returns the first resourceVersion in a response, or "".
func resourceVersionOf(response []byte) string {
	_, after, _ := bytes.Cut(response, []byte(`"resourceVersion":"`))
	before, _, _ := bytes.Cut(after, []byte(`"`))
	return string(before)
}

// body encodes the object with n items. If reversed is set, it reverses the items of a list and adds a label.
func (g *growthCase) body(n int, name, revision string, reversed bool) []byte {
	obj := g.version.Type.New()
	if err := json.Unmarshal(g.base, obj); err != nil {
		panic(err)
	}
	g.visit(reflect.ValueOf(obj), func(v reflect.Value) {
		field := g.owner[strings.LastIndex(g.owner, ".")+1:]
		grow(v, strings.ToLower(field), g.variant, n)
		if reversed && v.Kind() == reflect.Slice {
			for i, swap := 0, reflect.Swapper(v.Interface()); i < n/2; i++ {
				swap(i, n-1-i)
			}
		}
	})
	md := obj.(metav1.Object)
	md.SetName(name)
	md.SetResourceVersion(revision)
	if reversed {
		md.SetLabels(map[string]string{"reversed": "true"})
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

// timed sends a request and records the processor time that the process used for it.
func (s *sweep) timed(times requestTimes, operation, method, path, contentType string, body []byte) (code int,
	response []byte) {
	before := processorTime()
	code, response = s.send(method, path, contentType, body)
	times[operation] = processorTime() - before
	return code, response
}

// send sends a request and returns the status code and the body of the response. It requests a Table for a GET of a
// created object.
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
	response, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, response
}

// processorTime returns the processor time of the process in user mode. System time is left out, because most of it is
// spent on new memory pages.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano())
}
