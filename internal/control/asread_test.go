package control

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

// What a loop writes relies on what it has read. That the server holds a write to it is shown where the server is; here it is
// shown that each write says what it relies on.

// canned is an API server that answers a GET with what it was given for its path and keeps the writes that it gets.
type canned struct {
	answers map[string]string
	writes  []write
	reads   map[string]int // GETs by path
}

type write struct {
	what string // the method and the path
	body map[string]any
}

func (c *canned) RoundTrip(r *http.Request) (*http.Response, error) {
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
		w := write{what: r.Method + " " + r.URL.Path}
		if err := json.Unmarshal(body, &w.body); err != nil {
			return nil, fmt.Errorf("%s: %w in %q", w.what, err, body)
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
		answer = fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"details":{"name":%q}}`, r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:])
	}
	return &http.Response{StatusCode: code, Status: http.StatusText(code), Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewBufferString(answer)), Request: r}, nil
}

func (c *canned) clients(t *testing.T) *clients {
	t.Helper()
	out, err := newClients(&rest.Config{Host: "http://canned", Transport: c}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// expect checks the writes so far, each by what it is and the text of a part of its body, and forgets them.
func (c *canned) expect(t *testing.T, part string, want ...string) {
	t.Helper()
	var got []string
	for _, w := range c.writes {
		text, _ := json.Marshal(w.body[part])
		got = append(got, w.what+" "+string(text))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	c.writes = nil
}

const (
	thingsPath = "/apis/g/v1/namespaces/n/things/"
	aThing     = `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":%q,"namespace":"n","uid":%q,"resourceVersion":"7"%s}}`
	twoOwners  = `,"ownerReferences":[{"apiVersion":"g/v1","kind":"Thing","name":"gone","uid":"gone"},{"apiVersion":"g/v1","kind":"Thing","name":"there","uid":"there"}]`
	oneOwner   = `,"ownerReferences":[{"apiVersion":"g/v1","kind":"Thing","name":"gone","uid":"gone"}]`
)

// collecting is a collector that follows things, before all kinds have been listed.
func collecting(t *testing.T, api *canned) *collector {
	c := api.clients(t)
	k := newKinds(c)
	k.followed[things.groupKind()] = &follower{kinds: k, kind: things}
	return newCollector(c, k)
}

// CRD-066: what is collected is the object that was judged, in the state that it was judged by.
func TestCollectsWhatItRead(t *testing.T) {
	id := objectID{things, "n", "a", "a"}
	api := &canned{answers: map[string]string{thingsPath + "a": fmt.Sprintf(aThing, "a", "a", oneOwner)}}
	if err := collecting(t, api).attemptToDelete(t.Context(), id); err != nil {
		t.Error(err)
	}
	api.expect(t, "preconditions", "DELETE "+thingsPath+`a {"resourceVersion":"7","uid":"a"}`)

	api.answers[thingsPath+"a"] = fmt.Sprintf(aThing, "a", "a", twoOwners)
	api.answers[thingsPath+"there"] = fmt.Sprintf(aThing, "there", "there", "")
	if err := collecting(t, api).attemptToDelete(t.Context(), id); err != nil {
		t.Error(err)
	}
	api.expect(t, "metadata", "PATCH "+thingsPath+`a {"ownerReferences":[{"apiVersion":"g/v1","kind":"Thing","name":"there","uid":"there"}],"resourceVersion":"7","uid":"a"}`)

	api.answers[thingsPath+"a"] = fmt.Sprintf(aThing, "a", "another", oneOwner)
	if err := collecting(t, api).attemptToDelete(t.Context(), id); err != nil {
		t.Error(err)
	}
	api.expect(t, "metadata")
}

// TestSearchesForOwnersAreLimited checks that many references to missing owners do not cause a list for each owner.
func TestSearchesForOwnersAreLimited(t *testing.T) {
	const all = "/apis/g/v1/things"
	api := &canned{answers: map[string]string{all: `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{},"items":[]}`}}
	c := collecting(t, api)
	c.searches = flowcontrol.NewFakeNeverRateLimiter()
	owner := ownerID{apiVersion: "g/v1", kind: "Thing", namespace: "n", name: "none", uid: "none"}
	if err := c.findOwner(t.Context(), owner); err != nil || api.reads[all] > 0 || api.reads[thingsPath+"none"] != 1 {
		t.Errorf("%v, requests %v", err, api.reads)
	}
	c = collecting(t, api)
	for i := range 4 * searchBurst {
		owner.name = fmt.Sprint("none-", i)
		if err := c.findOwner(t.Context(), owner); err != nil {
			t.Fatal(err)
		}
	}
	if n := api.reads[all]; n < searchBurst || n == 4*searchBurst {
		t.Errorf("%d lists for %d owners", n, 4*searchBurst)
	}
}

// CRD-066: a deletion that waits for dependents is not finished before every kind has been listed: there may be some.
func TestFinishesWhenAllIsListed(t *testing.T) {
	id := objectID{things, "n", "a", "a"}
	api := &canned{answers: map[string]string{thingsPath + "a": fmt.Sprintf(aThing, "a", "a", `,"deletionTimestamp":"2026-01-01T00:00:00Z","finalizers":["x/y","foregroundDeletion"]`)}}
	c := collecting(t, api)
	if err := c.finish(t.Context(), id); !errors.Is(err, errNotSynced) {
		t.Error(err)
	}
	api.expect(t, "metadata")
	c.kinds.looked = true
	if err := c.finish(t.Context(), id); err != nil {
		t.Error(err)
	}
	api.expect(t, "metadata", "PATCH "+thingsPath+`a {"finalizers":["x/y"],"resourceVersion":"7","uid":"a"}`)
}

// CRD-031: a namespace is let go in the state in which it was found empty.
func TestEndsTheNamespaceItRead(t *testing.T) {
	api := &canned{answers: map[string]string{
		"/api":                   `{"kind":"APIVersions","apiVersion":"v1","versions":[]}`,
		"/apis":                  `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`,
		"/api/v1/namespaces/old": `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"old","uid":"u","resourceVersion":"7","deletionTimestamp":"2026-01-01T00:00:00Z"},"spec":{"finalizers":["kubernetes"]}}`,
	}}
	if err := newNamespaces(api.clients(t), nil).end(t.Context(), "old"); err != nil {
		t.Error(err)
	}
	const read = ` {"deletionTimestamp":"2026-01-01T00:00:00Z","name":"old","resourceVersion":"7","uid":"u"}`
	api.expect(t, "metadata", "PUT /api/v1/namespaces/old/status"+read, "PUT /api/v1/namespaces/old/finalize"+read)
}

// VER-054: a migration writes an object, and says that a CRD is migrated, in the state that it has read, and forgets the
// finished migrations that it has read.
func TestMigratesWhatItRead(t *testing.T) {
	const crdPath, svmPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.g", "/apis/storagemigration.k8s.io/v1/storageversionmigrations"
	svm := func(name, resource, condition string) string {
		return fmt.Sprintf(`{"apiVersion":"storagemigration.k8s.io/v1","kind":"StorageVersionMigration","metadata":{"name":%q,"uid":%q,"labels":{%q:"true"}},"spec":{"resource":{"group":"g","resource":%q}},"status":{"conditions":[{"type":%q,"status":"True"}]}}`,
			name, name, automaticLabel, resource, condition)
	}
	api := &canned{answers: map[string]string{
		crdPath: `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"things.g","uid":"u","generation":2,"resourceVersion":"7"}}`,
		svmPath: `{"apiVersion":"storagemigration.k8s.io/v1","kind":"StorageVersionMigrationList","metadata":{},"items":[` + strings.Join([]string{
			svm("this", "things", "Running"), svm("done", "things", "Succeeded"), svm("waits", "things", "Other"), svm("other", "others", "Succeeded")}, ",") + `]}`,
	}}
	g := &migration{migrations: newMigrations(api.clients(t), true, nil), object: &unstructured.Unstructured{}, crd: "things.g", storage: "v1"}
	if err := json.Unmarshal([]byte(svm("this", "things", "Running")), &g.object.Object); err != nil {
		t.Fatal(err)
	}
	resource := schema.GroupVersionResource{Group: "g", Version: "v1", Resource: "things"}
	one := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a", ResourceVersion: "7"}}
	if err := g.writeOne(t.Context(), one, g.clients.dynamic.Resource(resource).Namespace("n")); err != nil {
		t.Error(err)
	}
	api.expect(t, "metadata", "PATCH "+thingsPath+`a {"resourceVersion":"7","uid":"a"}`)
	if err := g.forgetOthers(t.Context()); err != nil {
		t.Error(err)
	}
	api.expect(t, "preconditions", "DELETE "+svmPath+`/done {"uid":"done"}`)

	g.of = "u/1"
	if err := g.finish(t.Context()); !errors.Is(err, errStartOver) {
		t.Error(err)
	}
	api.expect(t, "metadata")
	g.of = "u/2"
	if err := g.finish(t.Context()); err != nil {
		t.Error(err)
	}
	api.expect(t, "metadata", "PUT "+crdPath+`/status {"generation":2,"name":"things.g","resourceVersion":"7","uid":"u"}`, "DELETE "+svmPath+"/done null")
}
