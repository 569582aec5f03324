// Package corpus_test installs real CRDs of well-known projects and creates, updates and watches their sample objects.
package corpus_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	explain "k8s.io/kubectl/pkg/explain/v2"
	"sigs.k8s.io/yaml"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/openapi/cached"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/testserver"
)

// TestCorpus checks that real CRDs are served and explained, and that their samples are stored as upstream stores them.
// Objects survive a restart (CRD-001 CRD-015 CRD-016 CRD-027 CRD-052 CRD-062 CRD-071 DEF-002 VAL-018).
func TestCorpus(t *testing.T) {
	requireCorpus(t)
	for _, project := range projects(t, "crds") {
		t.Run(project, func(t *testing.T) {
			testProject(t, project)
		})
	}
}

func testProject(t *testing.T, project string) {
	server := testserver.Start(t, testserver.OnDisk())
	c := newClient(t, server.Config)
	crds := read(t, "crds", project)
	kinds := map[string]served{}
	for _, crd := range crds {
		for _, s := range install(t, c, crd) {
			kinds[s.apiVersion()+" "+s.kind] = s
		}
	}
	explainAll(t, server, kinds)
	objects := createSamples(t, c, project, kinds)
	server.Restart()
	c = newClient(t, server.Config)
	for path, want := range objects {
		got, err := c.do("GET", path, "", nil)
		if err != nil {
			t.Errorf("after a restart: %v", err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("%s after a restart: got\n%s\nwant\n%s", path, got, want)
		}
	}
	for _, crd := range crds {
		remove(t, c, crd)
	}
}

// served is a served version of a CRD.
type served struct {
	group, version, plural, kind string
	namespaced                   bool
	crd                          file
}

func (s served) apiVersion() string { return s.group + "/" + s.version }

func (s served) collection(namespace string) string {
	path := "/apis/" + s.apiVersion() + "/"
	if s.namespaced && namespace != "" {
		path += "namespaces/" + namespace + "/"
	}
	return path + s.plural
}

const crdPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"

// install applies a CRD and lists each of its served versions.
func install(t *testing.T, c *client, crd file) (versions []served) {
	t.Helper()
	body, err := c.do("PATCH", crdPath+crd.name()+"?fieldManager=corpus&force=true", asApply, crd.yaml)
	if err != nil {
		t.Errorf("%s: %v", crd.path, err)
		return nil
	}
	if !established(body) {
		t.Errorf("%s: got a CRD that is not established when the call returns: %.2000s", crd.path, body)
		return nil
	}
	spec := nested[map[string]any](crd.tree, "spec")
	// The Service of the conversion webhook does not exist in the test.
	if nested[any](spec, "conversion", "webhook", "clientConfig", "service") != nil {
		if _, err := c.do("PATCH", crdPath+crd.name(), asMerge,
			[]byte(`{"spec":{"conversion":{"strategy":"None","webhook":null}}}`)); err != nil {
			t.Errorf("%s: %v", crd.path, err)
		}
	}
	list, _ := spec["versions"].([]any)
	for _, v := range list {
		if nested[bool](v, "served") {
			versions = append(versions, served{
				nested[string](spec, "group"), nested[string](v, "name"), nested[string](spec, "names", "plural"),
				nested[string](spec, "names", "kind"), nested[string](spec, "scope") == "Namespaced", crd,
			})
		}
	}
	for _, s := range versions {
		body, err := c.do("GET", s.collection(""), "", nil)
		if err != nil {
			t.Errorf("%s: %v", crd.path, err)
			continue
		}
		var got struct{ APIVersion, Kind string }
		if err := json.Unmarshal(body, &got); err != nil || got.APIVersion != s.apiVersion() ||
			!strings.HasSuffix(got.Kind, "List") {
			t.Errorf("%s: got %s, want a list at %s", crd.path, body, s.apiVersion())
		}
	}
	return versions
}

// established reports whether a CRD has the condition Established.
func established(crd []byte) bool {
	var c struct {
		Status struct {
			Conditions []struct{ Type, Status string }
		}
	}
	if json.Unmarshal(crd, &c) != nil {
		return false
	}
	for _, k := range c.Status.Conditions {
		if k.Type == "Established" && k.Status == "True" {
			return true
		}
	}
	return false
}

// explainAll runs kubectl explain --recursive for every kind.
func explainAll(t *testing.T, server *testserver.Server, kinds map[string]served) {
	t.Helper()
	disc, err := discovery.NewDiscoveryClientForConfig(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	client := cached.NewClient(disc.OpenAPIV3())
	for _, s := range kinds {
		var out bytes.Buffer
		gvr := schema.GroupVersionResource{Group: s.group, Version: s.version, Resource: s.plural}
		err := explain.PrintModelDescription(nil, &out, client, gvr, true, 0, "plaintext")
		if err != nil {
			t.Errorf("explain %v: %v", gvr, err)
		} else if !strings.Contains(out.String(), s.kind) {
			t.Errorf("explain %v: got an output without %s:\n%.1000s", gvr, s.kind, out.String())
		}
	}
}

// createSamples creates, reads, watches and updates a project's samples. It returns the responses to GET requests, by
// path.
func createSamples(t *testing.T, c *client, project string, kinds map[string]served) map[string][]byte {
	t.Helper()
	objects := map[string][]byte{}
	for i, sample := range read(t, "samples", strings.Replace(project, "-experimental", "-standard", 1)) {
		s, ok := kinds[nested[string](sample.tree, "apiVersion")+" "+nested[string](sample.tree, "kind")]
		if !ok {
			if !strings.HasSuffix(project, "-standard") { // -standard lacks some kinds of -experimental
				t.Errorf("%s: its kind is not served", sample.path)
			}
			continue
		}
		namespace := nested[string](sample.tree, "metadata", "namespace")
		if len(utilvalidation.IsDNS1123Label(namespace)) > 0 { // the namespace is empty or a placeholder of a template
			if namespace != "" {
				delete(nested[map[string]any](sample.tree, "metadata"), "namespace")
				sample.yaml, _ = yaml.Marshal(sample.tree)
			}
			namespace = "default"
		}
		ensureNamespace(t, c, namespace)
		path, body := create(t, c, s, sample, namespace, i)
		if path == "" {
			continue
		}
		updated := watchUpdate(t, c, s, namespace, path, body)
		if updated != nil {
			objects[path] = updated
		}
	}
	return objects
}

func ensureNamespace(t *testing.T, c *client, name string) {
	t.Helper()
	body := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, name)
	if _, err := c.do("POST", "/api/v1/namespaces", "application/json", body); err != nil &&
		!strings.Contains(err.Error(), "AlreadyExists") {
		t.Fatal(err)
	}
}

// create posts a sample as YAML. If an object with its name exists, it uses another name. It compares the response
// with the object that upstream stores, or with upstream's errors. path is "" if the sample is rejected.
func create(t *testing.T, c *client, s served, sample file, namespace string, i int) (path string, body []byte) {
	t.Helper()
	collection := s.collection(namespace)
	body, err := c.do("POST", collection, asYAML, sample.yaml)
	if err != nil && strings.Contains(err.Error(), "AlreadyExists") {
		meta := nested[map[string]any](sample.tree, "metadata")
		meta["name"] = fmt.Sprintf("%s-%d", sample.name(), i)
		renamed, _ := json.Marshal(sample.tree)
		body, err = c.do("POST", collection, "application/json", renamed)
	}
	if err != nil && invalidMetadata(sample) {
		return "", nil
	}
	version, storage := s.upstreamVersions(t)
	want, causes := upstreamObject(t, version, storage, sample)
	if err != nil || causes != nil {
		if err == nil {
			t.Errorf("%s: got a created object, want the errors %q", sample.path, causes)
		} else if got := causesOf(t, body); !slices.Equal(got, causes) {
			t.Errorf("%s: %v\ngot  %q\nwant %q", sample.path, err, got, causes)
		}
		return "", nil
	}
	sameContent(t, sample, body, want)
	var created struct{ Metadata struct{ Name string } }
	if err := json.Unmarshal(body, &created); err != nil {
		t.Errorf("%s: %v", sample.path, err)
		return "", nil
	}
	path = collection + "/" + created.Metadata.Name
	read, err := c.do("GET", path, "", nil)
	if err != nil || !bytes.Equal(bytes.TrimSpace(read), bytes.TrimSpace(body)) {
		t.Errorf("%s: got from GET\n%s (%v)\nwant the response of the create\n%s", sample.path, read, err, body)
	}
	return path, body
}

// sameContent compares an object, except its metadata, with the object that upstream stores.
func sameContent(t *testing.T, sample file, body []byte, want object.Tree) {
	t.Helper()
	got, _, err := object.DecodeJSON(body)
	if err != nil {
		t.Errorf("%s: %v", sample.path, err)
	}
	delete(got, "metadata")
	delete(want, "metadata")
	if !object.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s", sample.path, object.AppendJSON(nil, got), object.AppendJSON(nil, want))
	}
}

// invalidMetadata reports whether upstream's validation of owner references rejects the sample.
func invalidMetadata(sample file) bool {
	u := &unstructured.Unstructured{Object: sample.tree}
	return len(validation.ValidateOwnerReferences(u.GetOwnerReferences(),
		field.NewPath("metadata", "ownerReferences"))) > 0
}

// watchUpdate updates an object and checks that a watch from its creation returns the update. It returns the response
// of GET, or nil after an error.
func watchUpdate(t *testing.T, c *client, s served, namespace, path string, created []byte) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var was struct {
		Metadata struct{ Name, ResourceVersion string }
	}
	if err := json.Unmarshal(created, &was); err != nil {
		t.Error(err)
		return nil
	}
	updated, err := c.do("PATCH", path, asMerge,
		[]byte(`{"metadata":{"annotations":{"corpus.example.com/seen":"yes"}}}`))
	if err != nil {
		t.Error(err)
		return nil
	}
	resp, err := c.open(ctx, "GET", s.collection(namespace)+"?watch=1&fieldSelector=metadata.name="+was.Metadata.Name+
		"&resourceVersion="+was.Metadata.ResourceVersion, "", nil)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer resp.Body.Close()
	line, err := bufio.NewReaderSize(resp.Body, 1<<20).ReadBytes('\n')
	if err != nil {
		t.Errorf("watch of %s: %v", path, err)
		return nil
	}
	var event struct {
		Type   string
		Object json.RawMessage
	}
	if err := json.Unmarshal(line, &event); err != nil || event.Type != "MODIFIED" {
		t.Errorf("watch of %s: got %s (%v), want MODIFIED", path, line, err)
		return nil
	}
	if !bytes.Equal(bytes.TrimSpace(event.Object), bytes.TrimSpace(updated)) {
		t.Errorf("watch of %s: got\n%s\nwant the response of the patch\n%s", path, event.Object, updated)
	}
	body, err := c.do("GET", path, "", nil)
	if err != nil {
		t.Error(err)
		return nil
	}
	return body
}

// remove deletes a CRD and blocks until a watch reports its deletion.
func remove(t *testing.T, c *client, crd file) {
	t.Helper()
	if _, err := c.do("DELETE", crdPath+crd.name(), "", nil); err != nil {
		t.Errorf("%s: %v", crd.path, err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	resp, err := c.open(ctx, "GET", strings.TrimSuffix(crdPath, "/")+"?watch=1&fieldSelector=metadata.name="+crd.name(),
		"", nil)
	if err != nil {
		t.Errorf("%s: %v", crd.path, err)
		return
	}
	defer resp.Body.Close()
	if _, err := c.do("GET", crdPath+crd.name(), "", nil); err != nil && strings.Contains(err.Error(), " 404 ") {
		return
	}
	events := bufio.NewReaderSize(resp.Body, 4<<20)
	for {
		line, err := events.ReadBytes('\n')
		if err != nil {
			t.Errorf("%s: waiting for the deletion: %v", crd.path, err)
			return
		}
		if bytes.HasPrefix(line, []byte(`{"type":"DELETED"`)) {
			return
		}
	}
}
