package garbage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/trellis-k8s/trellis/internal/controllers/informer"
)

// A controller's write is based on objects that the controller has read. The tests in this file check that each write
// has preconditions, such as the resourceVersion. Other tests check that the server enforces preconditions.

// fakeAPI is an API server that returns a fixed response for each path and records the writes.
type fakeAPI struct {
	answers map[string]string
	writes  []recordedWrite
	reads   map[string]int // number of GET requests by path
}

type recordedWrite struct {
	request string // method and path
	body    map[string]any
}

func (c *fakeAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	code, answer := http.StatusOK, c.answers[r.URL.Path]
	if c.reads == nil {
		c.reads = map[string]int{}
	}
	if r.Method == http.MethodGet {
		c.reads[r.URL.Path]++
	}
	if r.Method != http.MethodGet {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		w := recordedWrite{request: r.Method + " " + r.URL.Path}
		if err := json.Unmarshal(body, &w.body); err != nil {
			return nil, fmt.Errorf("%s: %w in %q", w.request, err, body)
		}
		c.writes = append(c.writes, w)
		switch r.Method {
		case http.MethodPut:
			answer = string(body)
		case http.MethodDelete:
			answer = `{"kind":"Status","apiVersion":"v1","status":"Success"}`
		case http.MethodPatch:
			answer = fmt.Sprintf(aThing, "patched", "patched", "")
		}
	} else if answer == "" {
		code = http.StatusNotFound
		answer = fmt.Sprintf(
			`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,`+
				`"details":{"name":%q}}`,
			r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:])
	}
	return &http.Response{
		StatusCode: code,
		Status:     http.StatusText(code),
		Header:     http.Header{"Content-Type": {"application/json"}},
		Body:       io.NopCloser(bytes.NewBufferString(answer)),
		Request:    r,
	}, nil
}

// expect compares the recorded writes with want, and clears them. Only the request and the given part of the body of
// each write are compared.
func (c *fakeAPI) expect(t *testing.T, part string, want ...string) {
	t.Helper()
	var got []string
	for _, w := range c.writes {
		text, _ := json.Marshal(w.body[part])
		got = append(got, w.request+" "+string(text))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	c.writes = nil
}

const (
	thingsPath = "/apis/g/v1/namespaces/n/things/"
	aThing     = `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1",` +
		`"metadata":{"name":%q,"namespace":"n","uid":%q,"resourceVersion":"7"%s}}`
	twoOwners = `,"ownerReferences":[{"apiVersion":"g/v1","kind":"Thing","name":"gone","uid":"gone"},` +
		`{"apiVersion":"g/v1","kind":"Thing","name":"there","uid":"there"}]`
	oneOwner = `,"ownerReferences":[{"apiVersion":"g/v1","kind":"Thing","name":"gone","uid":"gone"}]`
)

// newTestCollector returns a garbage collector that watches things. Not all kinds have been listed yet.
func newTestCollector(t *testing.T, api *fakeAPI) *Collector {
	t.Helper()
	m, err := metadata.NewForConfig(&rest.Config{Host: "http://canned", Transport: api, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return New(nil, m, &fakeKinds{found: map[schema.GroupKind]informer.Kind{things.GroupKind(): things}})
}

type fakeKinds struct {
	found  map[schema.GroupKind]informer.Kind
	synced bool
}

func (f *fakeKinds) Find(id schema.GroupKind) (informer.Kind, bool) {
	k, ok := f.found[id]
	return k, ok
}

func (f *fakeKinds) Synced() bool { return f.synced }

// TestCollectorSetsPreconditions checks that the garbage collector deletes or patches an object only in the state
// that it has read. (CRD-066)
func TestCollectorSetsPreconditions(t *testing.T) {
	id := objectID{things, "n", "a", "a"}
	api := &fakeAPI{answers: map[string]string{thingsPath + "a": fmt.Sprintf(aThing, "a", "a", oneOwner)}}
	if err := newTestCollector(t, api).attemptToDelete(t.Context(), id); err != nil {
		t.Error(err)
	}
	api.expect(t, "preconditions", "DELETE "+thingsPath+`a {"resourceVersion":"7","uid":"a"}`)

	api.answers[thingsPath+"a"] = fmt.Sprintf(aThing, "a", "a", twoOwners)
	api.answers[thingsPath+"there"] = fmt.Sprintf(aThing, "there", "there", "")
	if err := newTestCollector(t, api).attemptToDelete(t.Context(), id); err != nil {
		t.Error(err)
	}
	api.expect(
		t,
		"metadata",
		"PATCH "+thingsPath+`a {"ownerReferences":[{"apiVersion":"g/v1","kind":"Thing","name":"there","uid":"there"}],`+
			`"resourceVersion":"7","uid":"a"}`,
	)

	api.answers[thingsPath+"a"] = fmt.Sprintf(aThing, "a", "another", oneOwner)
	if err := newTestCollector(t, api).attemptToDelete(t.Context(), id); err != nil {
		t.Error(err)
	}
	api.expect(t, "metadata")
}

// TestOwnerSearchesAreLimited checks that references to many missing owners cause few lists of the owners' kind.
func TestOwnerSearchesAreLimited(t *testing.T) {
	const all = "/apis/g/v1/things"
	api := &fakeAPI{
		answers: map[string]string{
			all: `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{},"items":[]}`,
		},
	}
	c := newTestCollector(t, api)
	c.searchLimiter = flowcontrol.NewFakeNeverRateLimiter()
	owner := ownerID{apiVersion: "g/v1", kind: "Thing", namespace: "n", name: "none", uid: "none"}
	if err := c.findOwner(t.Context(), owner); err != nil || api.reads[all] > 0 || api.reads[thingsPath+"none"] != 1 {
		t.Errorf("got error %v, requests %v, want one GET and no list", err, api.reads)
	}
	c = newTestCollector(t, api)
	for i := range 4 * searchBurst {
		owner.name = fmt.Sprint("none-", i)
		if err := c.findOwner(t.Context(), owner); err != nil {
			t.Fatal(err)
		}
	}
	if n := api.reads[all]; n < searchBurst || n == 4*searchBurst {
		t.Errorf("got %d lists for %d owners, want about %d", n, 4*searchBurst, searchBurst)
	}
}

// TestFinishDeletionWaitsForLists checks that a deletion is finished only after every kind has been listed, because an
// unlisted kind may have more dependents. (CRD-066)
func TestFinishDeletionWaitsForLists(t *testing.T) {
	id := objectID{things, "n", "a", "a"}
	api := &fakeAPI{
		answers: map[string]string{
			thingsPath + "a": fmt.Sprintf(
				aThing,
				"a",
				"a",
				`,"deletionTimestamp":"2026-01-01T00:00:00Z","finalizers":["x/y","foregroundDeletion"]`,
			),
		},
	}
	c := newTestCollector(t, api)
	if err := c.finishDeletion(t.Context(), id); !errors.Is(err, errNotSynced) {
		t.Error(err)
	}
	api.expect(t, "metadata")
	c.kinds.(*fakeKinds).synced = true
	if err := c.finishDeletion(t.Context(), id); err != nil {
		t.Error(err)
	}
	api.expect(t, "metadata", "PATCH "+thingsPath+`a {"finalizers":["x/y"],"resourceVersion":"7","uid":"a"}`)
}
