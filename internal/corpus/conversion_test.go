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

// TestConversionPatches checks CRDs of projects that have a conversion webhook. A CRD is accepted with the project's
// conversion, although the Service in it does not exist. All versions are served as soon as a webhook runs (CNV-004
// CNV-005 CNV-022 CNV-025 CNV-072 VER-009 VER-047 VER-053).
func TestConversionPatches(t *testing.T) {
	requireCorpus(t)
	hook := newConversionHook(t)
	for _, project := range projects(t, "conversion-patches") {
		t.Run(project, func(t *testing.T) {
			server := testserver.Start(t)
			c := newClient(t, server.Config)
			kinds := map[string]served{}
			for _, patch := range read(t, "conversion-patches", project) {
				paths, _ := filepath.Glob(filepath.Join(root, "crds", "*", patch.name()+".yaml"))
				reviewVersions := nested[[]any](patch.tree, "spec", "conversion", "webhook", "conversionReviewVersions")
				if len(paths) == 0 || !slices.Contains(reviewVersions, any("v1")) {
					continue // the corpus has no such CRD, or upstream also rejects its review versions (v2)
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
	if !smallRun() && hook.calls.Load() == 0 {
		t.Error("got no converted object")
	}
}

// conversionHook is a conversion webhook that changes only the apiVersion of objects.
type conversionHook struct {
	*httptest.Server
	handler *conversionwebhook.Handler
	calls   atomic.Int64
}

func newConversionHook(t *testing.T) *conversionHook {
	h := &conversionHook{handler: &conversionwebhook.Handler{Kinds: map[schema.GroupKind]conversionwebhook.Func{}}}
	h.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.calls.Add(1)
		h.handler.ServeHTTP(w, r)
	}))
	t.Cleanup(h.Close)
	return h
}

// install applies a CRD twice, first with the conversion in a patch, and then with h as the webhook instead of the
// patch's Service.
func (h *conversionHook) install(t *testing.T, c *client, crd, patch file) (versions []served) {
	t.Helper()
	spec := nested[map[string]any](crd.tree, "spec")
	for _, config := range []any{
		nested[map[string]any](patch.tree, "spec", "conversion"),
		map[string]any{"strategy": "Webhook", "webhook": map[string]any{
			"conversionReviewVersions": nested[[]any](patch.tree, "spec", "conversion", "webhook",
				"conversionReviewVersions"),
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
		h.handler.Kinds[kind] = func(o *unstructured.Unstructured, _ string) (*unstructured.Unstructured, error) {
			return o, nil
		}
		versions = install(t, c, crd)
	}
	return versions
}

// samples creates the project's samples of the given kinds. It reads each object at every version, and then again at
// the version of the sample.
func (h *conversionHook) samples(t *testing.T, c *client, project string, kinds map[string]served) {
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
			continue // TestCorpus covers samples that are rejected
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
			t.Errorf("%s: got after reads at other versions\n%s\n(%v), want\n%s", sample.path, again, err, created)
		}
	}
}

// identity holds apiVersion and the fields that a conversion must not change.
type identity struct {
	APIVersion, Kind string
	Metadata         struct{ Name, Namespace, UID, ResourceVersion string }
}

// compare reads an object at the version s and compares its identity with want.
func (h *conversionHook) compare(t *testing.T, c *client, s served, sample file, want identity) {
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
