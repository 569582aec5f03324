package corpus_test

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/conversionwebhook"
	"github.com/trellis-k8s/trellis/testserver"
)

// CNV-004 CNV-005 CNV-022 CNV-025 CNV-072 VER-009 VER-047 VER-053: CRDs whose projects have a conversion webhook are accepted with
// the projects' own configuration, whose Services are not there, and served in all their versions once a webhook is.
func TestConversionPatches(t *testing.T) {
	requireCorpus(t)
	hook := newHook(t)
	for _, project := range projects(t, "conversion-patches") {
		t.Run(project, func(t *testing.T) {
			server := testserver.Start(t)
			c := newClient(t, server.Config)
			kinds := map[string]served{}
			for _, patch := range read(t, "conversion-patches", project) {
				paths, _ := filepath.Glob(filepath.Join(root, "crds", "*", patch.name()+".yaml"))
				speaks := nested[[]any](patch.tree, "spec", "conversion", "webhook", "conversionReviewVersions")
				if len(paths) == 0 || !slices.Contains(speaks, any("v1")) {
					continue // a patch for any CRD, which names none; or one that upstream refuses as well (v2), or of something else
				}
				crd := read(t, "crds", filepath.Base(filepath.Dir(paths[0])))
				for _, f := range crd {
					if f.name() == patch.name() {
						for _, s := range hook.install(t, c, f, patch) {
							kinds[s.apiVersion()+" "+s.kind] = s
						}
					}
				}
			}
			hook.samples(t, c, project, kinds)
		})
	}
	if !small() && hook.calls.Load() == 0 {
		t.Error("no object was converted")
	}
}

// hook is a webhook in whose eyes all versions of a kind are alike.
type hook struct {
	*httptest.Server
	handler *conversionwebhook.Handler
	calls   atomic.Int64
}

func newHook(t *testing.T) *hook {
	h := &hook{handler: &conversionwebhook.Handler{Kinds: map[schema.GroupKind]conversionwebhook.Func{}}}
	h.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.calls.Add(1)
		h.handler.ServeHTTP(w, r)
	}))
	t.Cleanup(h.Close)
	return h
}

// install applies a CRD with the conversion of a patch, then with h at the place of the patch's Service.
func (h *hook) install(t *testing.T, c *client, crd, patch file) (versions []served) {
	t.Helper()
	spec := nested[map[string]any](crd.tree, "spec")
	for _, config := range []any{
		nested[map[string]any](patch.tree, "spec", "conversion"),
		map[string]any{"strategy": "Webhook", "webhook": map[string]any{
			"conversionReviewVersions": nested[[]any](patch.tree, "spec", "conversion", "webhook", "conversionReviewVersions"),
			"clientConfig": map[string]any{"url": h.URL, "caBundle": pem.EncodeToMemory(&pem.Block{
				Type: "CERTIFICATE", Bytes: h.Certificate().Raw,
			})},
		}},
	} {
		spec["conversion"] = config
		var err error
		if crd.yaml, err = yaml.Marshal(crd.tree); err != nil {
			t.Fatal(err)
		}
		kind := schema.GroupKind{Group: nested[string](spec, "group"), Kind: nested[string](spec, "names", "kind")}
		h.handler.Kinds[kind] = func(o *unstructured.Unstructured, _ string) (*unstructured.Unstructured, error) { return o, nil }
		versions = install(t, c, crd)
	}
	return versions
}

// samples creates what a project has of some kinds, and reads each object at every version and back.
func (h *hook) samples(t *testing.T, c *client, project string, kinds map[string]served) {
	for _, sample := range read(t, "samples", project) {
		s, ok := kinds[nested[string](sample.tree, "apiVersion")+" "+nested[string](sample.tree, "kind")]
		if !ok {
			continue
		}
		meta := nested[map[string]any](sample.tree, "metadata")
		meta["namespace"] = "default"
		if !s.namespaced {
			delete(meta, "namespace")
		}
		body, _ := json.Marshal(sample.tree)
		created, err := c.do("POST", s.collection("default"), "application/json", body)
		if err != nil {
			continue // samples that do not fit are TestCorpus' business
		}
		var seen identity
		if err := json.Unmarshal(created, &seen); err != nil {
			t.Fatal(err)
		}
		for _, other := range kinds {
			if other.kind == s.kind && other.group == s.group {
				h.compare(t, c, other, sample, seen)
			}
		}
		again, err := c.do("GET", s.collection("default")+"/"+seen.Metadata.Name, "", nil)
		if err != nil || !bytes.Equal(bytes.TrimSpace(again), bytes.TrimSpace(created)) {
			t.Errorf("%s: read back at its version it is\n%s\n(%v), and was\n%s", sample.path, again, err, created)
		}
	}
}

// identity is what no conversion may change, but for apiVersion.
type identity struct {
	APIVersion, Kind string
	Metadata         struct{ Name, Namespace, UID, ResourceVersion string }
}

// compare reads an object at a version.
func (h *hook) compare(t *testing.T, c *client, s served, sample file, want identity) {
	t.Helper()
	body, err := c.do("GET", s.collection("default")+"/"+want.Metadata.Name, "", nil)
	if err != nil {
		t.Errorf("%s at %s: %v", sample.path, s.version, err)
		return
	}
	var got identity
	if err := json.Unmarshal(body, &got); err != nil {
		t.Errorf("%s: %v", sample.path, err)
	}
	if want.APIVersion = s.apiVersion(); got != want {
		t.Errorf("%s at %s: got %+v, want %+v", sample.path, s.version, got, want)
	}
}
