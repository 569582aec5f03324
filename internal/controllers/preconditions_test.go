package controllers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
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

func (c *fakeAPI) clients(t *testing.T) *clients {
	t.Helper()
	out, err := newClients(&rest.Config{Host: "http://canned", Transport: c}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
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
func newTestCollector(t *testing.T, api *fakeAPI) *garbageCollector {
	c := api.clients(t)
	k := newKindWatchers(c)
	k.active[things.groupKind()] = &kindWatcher{watchers: k, kind: things}
	return newGarbageCollector(c, k)
}

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
	c.watchers.discovered = true
	if err := c.finishDeletion(t.Context(), id); err != nil {
		t.Error(err)
	}
	api.expect(t, "metadata", "PATCH "+thingsPath+`a {"finalizers":["x/y"],"resourceVersion":"7","uid":"a"}`)
}

// TestFinalizeSetsResourceVersion checks that a namespace is finalized only in the state in which it was found empty.
// (CRD-031)
func TestFinalizeSetsResourceVersion(t *testing.T) {
	api := &fakeAPI{answers: map[string]string{
		"/api":  `{"kind":"APIVersions","apiVersion":"v1","versions":[]}`,
		"/apis": `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`,
		"/api/v1/namespaces/old": `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"old","uid":"u",` +
			`"resourceVersion":"7","deletionTimestamp":"2026-01-01T00:00:00Z"},"spec":{"finalizers":["kubernetes"]}}`,
	}}
	if err := newNamespaceController(api.clients(t), nil).reconcile(t.Context(), "old"); err != nil {
		t.Error(err)
	}
	const read = ` {"deletionTimestamp":"2026-01-01T00:00:00Z","name":"old","resourceVersion":"7","uid":"u"}`
	api.expect(t, "metadata", "PUT /api/v1/namespaces/old/status"+read, "PUT /api/v1/namespaces/old/finalize"+read)
}

// TestMigrationSetsPreconditions checks that a migration writes objects and CRDs, and deletes finished migrations,
// only in the state that it has read. (VER-054)
func TestMigrationSetsPreconditions(t *testing.T) {
	const (
		crdPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.g"
		svmPath = "/apis/storagemigration.k8s.io/v1/storageversionmigrations"
	)
	svm := func(name, resource, condition string) string {
		return fmt.Sprintf(
			`{"apiVersion":"storagemigration.k8s.io/v1","kind":"StorageVersionMigration",`+
				`"metadata":{"name":%q,"uid":%q,"labels":{%q:"true"}},"spec":{"resource":{"group":"g","resource":%q}},`+
				`"status":{"conditions":[{"type":%q,"status":"True"}]}}`,
			name,
			name,
			automaticLabel,
			resource,
			condition,
		)
	}
	api := &fakeAPI{answers: map[string]string{
		crdPath: `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",` +
			`"metadata":{"name":"things.g","uid":"u","generation":2,"resourceVersion":"7"}}`,
		svmPath: `{"apiVersion":"storagemigration.k8s.io/v1","kind":"StorageVersionMigrationList","metadata":{},` +
			`"items":[` + strings.Join([]string{
			svm("this", "things", "Running"), svm("done", "things", "Succeeded"),
			svm("waits", "things", "Other"), svm("other", "others", "Succeeded"),
		}, ",") + `]}`,
	}}
	g := &migration{
		migrationController: newMigrationController(api.clients(t), true, nil),
		object:              &unstructured.Unstructured{},
		crd:                 "things.g",
		storage:             "v1",
	}
	if err := json.Unmarshal([]byte(svm("this", "things", "Running")), &g.object.Object); err != nil {
		t.Fatal(err)
	}
	resource := schema.GroupVersionResource{Group: "g", Version: "v1", Resource: "things"}
	one := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a", ResourceVersion: "7"}}
	if err := g.writeOne(t.Context(), one, g.clients.dynamic.Resource(resource).Namespace("n")); err != nil {
		t.Error(err)
	}
	api.expect(t, "metadata", "PATCH "+thingsPath+`a {"resourceVersion":"7","uid":"a"}`)
	if err := g.deleteOtherAutomatic(t.Context()); err != nil {
		t.Error(err)
	}
	api.expect(t, "preconditions", "DELETE "+svmPath+`/done {"uid":"done"}`)

	g.crdState = "u/1"
	if err := g.finish(t.Context()); !errors.Is(err, errCRDChanged) {
		t.Error(err)
	}
	api.expect(t, "metadata")
	g.crdState = "u/2"
	if err := g.finish(t.Context()); err != nil {
		t.Error(err)
	}
	api.expect(
		t,
		"metadata",
		"PUT "+crdPath+`/status {"generation":2,"name":"things.g","resourceVersion":"7","uid":"u"}`,
		"DELETE "+svmPath+"/done null",
	)
}
