package conformance_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	ourcrd "github.com/trellis-k8s/trellis/internal/crd"
)

// testObjects compares custom objects of the CRD widgets and of the CRDs in the corpus.
func testObjects(t *testing.T, p *pair) {
	p.installCRDs(t)
	p.sortCauses = true
	for _, c := range p.crds {
		p.waitFor(t, c.collection("conformance"), isServed)
	}
	testWidgets(t, p)
	testLifecycle(t, p)
	testVersions(t, p)
	samples := corpusSamples(t)
	for _, c := range p.crds[:len(p.crds)-1] {
		if len(nested[[]any](c.object, "spec", "versions")) > 1 &&
			nested[string](c.object, "spec", "conversion", "strategy") == "Webhook" {
			continue // no conversion webhook runs
		}
		for i, o := range c.objects(t, samples) {
			p.exerciseCustom(t, c, o, i == 0)
		}
	}
}

// markRevision records the revision of the last response. The function watch starts at this revision.
func (p *pair) markRevision() {
	for _, s := range []*server{p.trellis, p.upstream} {
		s.last["start"] = s.last["rv"]
	}
}

// watch compares the first n events of one object after the revision that markRevision has recorded.
func (p *pair) watch(t *testing.T, collection, name string, n int) {
	t.Helper()
	p.send(t, request{method: http.MethodGet, events: n, path: collection +
		"?watch=1&resourceVersion={start}&timeoutSeconds=20&fieldSelector=metadata.name%3D" + name})
}

// corpusSamples returns the first object of each apiVersion and kind in the corpus.
func corpusSamples(t *testing.T) map[string]object {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(corpus, "samples", "*", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]object{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var o object
		if err := yaml.Unmarshal(data, &o); err != nil {
			t.Fatal(err)
		}
		if kind := fmt.Sprint(o["apiVersion"], " ", o["kind"]); all[kind] == nil &&
			nested[string](o, "metadata", "name") != "" {
			delete(o["metadata"].(object), "namespace")
			all[kind] = o
		}
	}
	return all
}

// objects returns an object generated from the schema of c. If samples contains an object of this kind, objects
// returns it first.
func (c *crd) objects(t *testing.T, samples map[string]object) (all []object) {
	t.Helper()
	apiVersion, kind := c.group+"/"+c.version, nested[string](c.object, "spec", "names", "kind")
	if o := samples[apiVersion+" "+kind]; o != nil {
		all = append(all, o)
	}
	for _, v := range nested[[]any](c.object, "spec", "versions") {
		if !nested[bool](v, "storage") {
			continue
		}
		s, err := ourcrd.Compile([]byte(text(nested[any](v, "schema", "openAPIV3Schema"))), false)
		if err != nil {
			t.Fatal(err)
		}
		generated, _ := s.Sample(context.Background(), func(i int) string { return fmt.Sprintf("text-%d", i) }, nil)
		if generated != nil {
			generated["apiVersion"], generated["kind"] = apiVersion, kind
			generated["metadata"] = object{"name": "generated"}
			all = append(all, generated)
		}
	}
	return all
}

// exerciseCustom compares reads, writes and the deletion of o. If thorough is set, it also compares invalid writes.
func (p *pair) exerciseCustom(t *testing.T, c *crd, o object, thorough bool) {
	collection := c.collection("conformance")
	one := collection + "/" + nested[string](o, "metadata", "name")
	if thorough {
		for _, body := range invalidCustom(o) {
			p.do(t, "POST "+collection+"?dryRun=All", "", body)
		}
		unknown := modified(o, func(o, _ object) {
			o["unknown"] = 1
			if spec, ok := o["spec"].(object); ok {
				spec["unknown"] = object{"a": []any{1}}
			}
		})
		for _, validation := range []string{"Ignore", "Warn", "Strict"} {
			p.do(t, "POST "+collection+"?dryRun=All&fieldValidation="+validation, "", unknown)
		}
	}
	got, _ := p.do(t, "POST "+collection, "", text(o))
	if got.code != http.StatusCreated {
		return
	}
	p.markRevision()
	p.get(t, one)
	p.do(t, "PUT "+one, "", modified(o, func(_, m object) {
		m["labels"] = object{"put": "yes"}
		m["resourceVersion"] = "{rv}"
	}))
	p.do(t, "PUT "+one, "", modified(o, func(_, m object) { m["resourceVersion"] = "1" }))
	p.do(t, "PATCH "+one, asMerge, `{"metadata":{"labels":{"merge":"yes"}}}`)
	p.do(t, "PATCH "+one, asJSONPatch, `[{"op":"add","path":"/metadata/labels/json","value":"yes"}]`)
	p.watch(t, collection, nested[string](o, "metadata", "name"), 3)
	for _, q := range []string{"fieldManager=a", "fieldManager=b", "fieldManager=b&force=true"} {
		p.do(t, "PATCH "+one+"?"+q, asApply, modified(o, func(_, m object) { m["labels"] = object{"apply": q[13:14]} }))
	}
	p.do(t, "PUT "+one+"/status", "", modified(o, func(o, m object) { m["resourceVersion"] = "{rv}" }))
	p.do(t, "PATCH "+one+"/status", asMerge, `{"status":{"conditions":[{"type":"Ready"}],"phase":7}}`)
	p.get(t, one+"/scale")
	p.do(t, "PATCH "+one+"/scale", asMerge, `{"spec":{"replicas":2}}`)
	p.table(t, one)
	p.table(t, collection)
	p.get(t, collection+"?labelSelector=apply%3Db")
	p.get(t, collection+"?labelSelector=apply%3Dnone&fieldSelector=metadata.name%3Dx")
	p.do(t, "DELETE "+one, "", `{"preconditions":{"uid":"8d7e1a36-0000-0000-0000-000000000000"}}`)
	p.do(t, "DELETE "+one, "", `{"preconditions":{"resourceVersion":"1"}}`)
	p.do(t, "DELETE "+collection+"?labelSelector=apply%3Db", "", "")
	p.get(t, one)
}

// invalidCustom returns variants of o with missing fields or with values of a wrong type.
func invalidCustom(o object) []string {
	all := []string{
		modified(o, func(_, m object) { m["name"] = "Not/Valid" }),
		modified(o, func(o, _ object) { delete(o, "spec") }),
		modified(o, func(o, _ object) { o["spec"] = "wrong" }),
		modified(o, func(o, _ object) { o["status"] = 7 }),
	}
	spec, _ := o["spec"].(object)
	names := make([]string, 0, len(spec))
	for name := range spec {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names[:min(4, len(names))] {
		for _, value := range []any{nil, wrongType(spec[name]), emptyValue(spec[name])} {
			all = append(all, modified(o, func(o, _ object) {
				if o["spec"].(object)[name] = value; value == nil {
					delete(o["spec"].(object), name)
				}
			}))
		}
	}
	return all
}
