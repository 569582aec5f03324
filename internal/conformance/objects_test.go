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

	"github.com/trellis-k8s/trellis/internal/schema"
)

// widgets is a CRD with some of everything.
const widgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.conformance.example.com}
spec:
  group: conformance.example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget, shortNames: [wd], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    deprecated: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size, labelSelectorPath: .status.pods}}
    selectableFields: [{jsonPath: .spec.color}]
    additionalPrinterColumns:
    - {name: Color, type: string, jsonPath: .spec.color}
    - {name: Size, type: integer, jsonPath: .spec.size, priority: 1}
    - {name: Since, type: date, jsonPath: .spec.since}
    - {name: Items, type: string, jsonPath: ".spec.items[*].name"}
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec:
            type: object
            required: [color]
            x-kubernetes-validations:
            - {rule: "!has(self.min) || self.min <= self.size", message: min is above size, fieldPath: .min}
            - {rule: "self.color == oldSelf.color || self.color != 'black'", messageExpression: "'no ' + self.color", reason: FieldValueForbidden}
            properties:
              color: {type: string, enum: [red, green, black], default: red}
              size: {type: integer, format: int32, minimum: 0, maximum: 100, default: 1}
              min: {type: integer}
              since: {type: string, format: date-time}
              ratio: {type: number, multipleOf: 0.5, exclusiveMinimum: true, minimum: 0}
              name: {type: string, minLength: 2, maxLength: 5, pattern: '^[a-z]*$'}
              port: {x-kubernetes-int-or-string: true}
              note: {type: string, nullable: true}
              free: {type: object, x-kubernetes-preserve-unknown-fields: true}
              tags: {type: array, items: {type: string}, x-kubernetes-list-type: set, maxItems: 4}
              items:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items: {type: object, required: [name], properties: {name: {type: string}, value: {type: string, default: none}}}
              limits: {type: object, additionalProperties: {type: integer}, minProperties: 1, maxProperties: 3}
              either: {type: object, properties: {a: {type: string}, b: {type: string}}, oneOf: [{required: [a]}, {required: [b]}]}
              template: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
          status: {type: object, properties: {size: {type: integer}, pods: {type: string}}}
  - name: v1beta1
    served: true
    storage: false
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

const widget = `{"apiVersion":"conformance.example.com/v1","kind":"Widget","metadata":{"name":"w","labels":{"a":"b"}},"spec":{"color":"green","size":3,"tags":["x","y"],"items":[{"name":"one"}],"limits":{"cpu":1}}}`

// refusedWidgets are patches of a widget that its schema refuses, and some that it does not.
var refusedWidgets = []string{
	`{"spec":{"color":"blue"}}`, `{"spec":{"color":null}}`, `{"spec":{"color":7}}`, `{"spec":{"color":"black"}}`, `{"spec":null}`, `{"spec":"x"}`, `{"spec":{"size":101}}`, `{"spec":{"size":-1}}`,
	`{"spec":{"size":1.5}}`, `{"spec":{"size":1.0}}`, `{"spec":{"size":"1"}}`, `{"spec":{"size":3000000000}}`, `{"spec":{"min":4}}`, `{"spec":{"since":"today"}}`, `{"spec":{"since":"2026-01-02T03:04:05Z"}}`,
	`{"spec":{"ratio":0}}`, `{"spec":{"ratio":0.3}}`, `{"spec":{"ratio":1}}`, `{"spec":{"name":"a"}}`, `{"spec":{"name":"abcdef"}}`, `{"spec":{"name":"A1"}}`, `{"spec":{"port":"x"}}`, `{"spec":{"port":1.5}}`, `{"spec":{"port":true}}`,
	`{"spec":{"note":null}}`, `{"spec":{"free":{"a":{"b":1}}}}`, `{"spec":{"free":7}}`, `{"spec":{"tags":["x","x"]}}`, `{"spec":{"tags":["1","2","3","4","5"]}}`, `{"spec":{"tags":[1,null]}}`, `{"spec":{"tags":"x"}}`,
	`{"spec":{"items":[{"name":"a"},{"name":"a"}]}}`, `{"spec":{"items":[{}]}}`, `{"spec":{"items":[{"name":"a","value":null}]}}`, `{"spec":{"items":[{"name":"a","extra":null}]}}`, `{"spec":{"limits":{}}}`, `{"spec":{"limits":{"cpu":null}}}`,
	`{"spec":{"limits":{"cpu":"1"}}}`, `{"spec":{"limits":{"a":1,"b":2,"c":3}}}`, `{"spec":{"either":{}}}`, `{"spec":{"either":{"a":"x","b":"y"}}}`, `{"spec":{"either":{"a":"x"}}}`, `{"spec":{"template":{}}}`,
	`{"spec":{"template":{"apiVersion":"v1","kind":"Pod"}}}`, `{"spec":{"template":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"A B","labels":{"a b":"c"},"extra":1}}}}`, `{"spec":{"unknown":{"x":1}}}`, `{"unknown":{"a":1}}`,
	`{"status":{"size":1}}`, `{"metadata":{"extra":1}}`, `{"metadata":{"labels":{"a b":"c"}}}`, `{"metadata":{"labels":7}}`, `{"metadata":{"finalizers":["x"]}}`, `{"metadata":{"generation":7}}`, `{"metadata":{"managedFields":[]}}`,
	`{"apiVersion":"conformance.example.com/v1beta1"}`, `{"apiVersion":"v1"}`, `{"kind":"Other"}`, `{"apiVersion":null}`, `{"kind":null}`,
}

// Custom objects: of a CRD that has some of everything, and of those of the corpus.
func testObjects(t *testing.T, p *pair) {
	p.installCRDs(t)
	p.unordered = true
	for _, c := range p.crds {
		p.settle(t, c.collection("conformance"), served)
	}
	testWidgets(t, p)
	for _, c := range p.crds[:len(p.crds)-1] {
		if len(nested[[]any](c.object, "spec", "versions")) > 1 && nested[string](c.object, "spec", "conversion", "strategy") == "Webhook" {
			continue // nobody is there to convert
		}
		for i, o := range c.samples(t) {
			p.workWithCustom(t, c, o, i == 0)
		}
	}
}

func testWidgets(t *testing.T, p *pair) {
	const all = "/apis/conformance.example.com/v1/namespaces/conformance/widgets"
	p.do(t, "POST "+all, "", widget)
	p.mark()
	for _, patch := range refusedWidgets {
		for _, validation := range []string{"Ignore", "Warn", "Strict"} {
			p.do(t, "PATCH "+all+"/w?dryRun=All&fieldValidation="+validation, asMerge, patch)
		}
		body := merged(t, widget, patch)
		p.do(t, "POST "+all+"?dryRun=All", "", changed(body, func(_, m object) { m["name"] = "new" }))
		p.do(t, "PUT "+all+"/w?dryRun=All&fieldValidation=Warn", "", text(body))
		p.do(t, "PATCH "+all+"/w?dryRun=All&fieldManager=other", asApply, text(body))
	}
	p.do(t, "POST "+all+"?fieldValidation=Strict", asYAML, widget+"\n")
	p.do(t, "POST "+all+"?fieldValidation=Strict&dryRun=All", asYAML, "apiVersion: conformance.example.com/v1\nkind: Widget\nmetadata: {name: y}\nspec: {color: red, color: green, x: 1}\n")
	for _, q := range []string{"spec.color%3Dgreen", "spec.color!%3Dgreen", "spec.size%3D3", "metadata.name%3Dw,spec.color%3Dgreen"} {
		p.get(t, all+"?fieldSelector="+q)
	}
	for _, body := range []string{
		`{"status":{"size":2,"pods":"a=b"}}`, `{"status":{"size":"x"}}`, `{"status":{"pods":7}}`, `{"spec":{"size":7},"status":{"size":3}}`, `{"metadata":{"labels":{"c":"d"}}}`, `{"status":null}`,
	} {
		p.do(t, "PATCH "+all+"/w/status", asMerge, body)
		p.get(t, all+"/w/scale")
	}
	for _, body := range []string{`{"spec":{"replicas":5}}`, `{"spec":{"replicas":500}}`, `{"spec":{"replicas":-1}}`, `{"spec":{"replicas":"x"}}`, `{"spec":null}`, `{"metadata":{"resourceVersion":"1"}}`, `{"metadata":{"name":"x"}}`} {
		p.do(t, "PATCH "+all+"/w/scale", asMerge, body)
	}
	p.do(t, "PUT "+all+"/w/scale", "", `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"w","namespace":"conformance"},"spec":{"replicas":6}}`)
	p.do(t, "PUT "+all+"/w/scale", "", `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"x"},"spec":{"replicas":6}}`)
	p.do(t, "PUT "+all+"/w/scale", "", widget)
	p.table(t, all+"/w/scale")
	p.table(t, all)
	p.get(t, "/apis/conformance.example.com/v1beta1/namespaces/conformance/widgets/w")
	p.get(t, "/apis/conformance.example.com/v1/widgets")
	p.get(t, "/apis/conformance.example.com/v1/widgets/w")
	p.get(t, "/apis/conformance.example.com/v2/widgets")
	p.do(t, "PATCH "+all+"/w", asStrategic, `{}`)
	p.do(t, "DELETE /apis/conformance.example.com/v1/widgets", "", "")
	p.watch(t, all, "w", 3)
	p.do(t, "DELETE "+all, "", "")
}

// merged is a merge patch applied to an object.
func merged(t *testing.T, text, patch string) object {
	t.Helper()
	var o, with object
	for from, to := range map[string]*object{text: &o, patch: &with} {
		if err := yaml.Unmarshal([]byte(from), to); err != nil {
			t.Fatal(err)
		}
	}
	merge(o, with)
	return o
}

func merge(o, patch object) {
	for k, v := range patch {
		inner, isMap := v.(object)
		if was, ok := o[k].(object); ok && isMap {
			merge(was, inner)
		} else {
			o[k] = v
		}
	}
}

// mark remembers where a watch is to start: after the last answer.
func (p *pair) mark() {
	for _, s := range []*server{p.ours, p.theirs} {
		s.last["start"] = s.last["rv"]
	}
}

// watch compares n events of one object since the mark.
func (p *pair) watch(t *testing.T, collection, name string, n int) {
	t.Helper()
	p.send(t, request{method: http.MethodGet, events: n, path: collection + "?watch=1&resourceVersion={start}&timeoutSeconds=20&fieldSelector=metadata.name%3D" + name})
}

// samples are an object of the corpus, if there is one, and one made from the schema.
func (c *crd) samples(t *testing.T) (all []object) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(corpus, "samples", "*", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	apiVersion, kind := c.group+"/"+c.version, nested[string](c.object, "spec", "names", "kind")
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var o object
		if err := yaml.Unmarshal(data, &o); err != nil {
			t.Fatal(err)
		}
		if o["apiVersion"] == apiVersion && o["kind"] == kind && nested[string](o, "metadata", "name") != "" {
			delete(o["metadata"].(object), "namespace")
			all = append(all, o)
			break
		}
	}
	for _, v := range nested[[]any](c.object, "spec", "versions") {
		if !nested[bool](v, "storage") {
			continue
		}
		s, err := schema.Compile([]byte(text(nested[any](v, "schema", "openAPIV3Schema"))), false)
		if err != nil {
			t.Fatal(err)
		}
		if made, _ := s.Sample(context.Background(), func(i int) string { return fmt.Sprintf("text-%d", i) }, nil); made != nil {
			made["apiVersion"], made["kind"], made["metadata"] = apiVersion, kind, object{"name": "made"}
			all = append(all, made)
		}
	}
	return all
}

func (p *pair) workWithCustom(t *testing.T, c *crd, o object, thorough bool) {
	collection := c.collection("conformance")
	one := collection + "/" + nested[string](o, "metadata", "name")
	if thorough {
		for _, body := range spoilt(o) {
			p.do(t, "POST "+collection+"?dryRun=All", "", body)
		}
		unknown := changed(o, func(o, _ object) {
			o["unknown"] = 1
			if spec, ok := o["spec"].(object); ok {
				spec["unknown"] = object{"a": []any{1}}
			}
		})
		for _, validation := range []string{"Ignore", "Warn", "Strict"} {
			p.do(t, "POST "+collection+"?dryRun=All&fieldValidation="+validation, "", unknown)
		}
	}
	ours, _ := p.do(t, "POST "+collection, "", text(o))
	if ours.code != http.StatusCreated {
		return
	}
	p.mark()
	p.get(t, one)
	p.do(t, "PUT "+one, "", changed(o, func(_, m object) { m["labels"] = object{"put": "yes"}; m["resourceVersion"] = "{rv}" }))
	p.do(t, "PUT "+one, "", changed(o, func(_, m object) { m["resourceVersion"] = "1" }))
	p.do(t, "PATCH "+one, asMerge, `{"metadata":{"labels":{"merge":"yes"}}}`)
	p.do(t, "PATCH "+one, asJSONPatch, `[{"op":"add","path":"/metadata/labels/json","value":"yes"}]`)
	p.watch(t, collection, nested[string](o, "metadata", "name"), 3)
	for _, q := range []string{"fieldManager=a", "fieldManager=b", "fieldManager=b&force=true"} {
		p.do(t, "PATCH "+one+"?"+q, asApply, changed(o, func(_, m object) { m["labels"] = object{"apply": q[13:14]} }))
	}
	p.do(t, "PUT "+one+"/status", "", changed(o, func(o, m object) { m["resourceVersion"] = "{rv}" }))
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

// spoilt are objects that lack something, or have a value of a wrong type.
func spoilt(o object) []string {
	all := []string{
		changed(o, func(_, m object) { m["name"] = "Not/Valid" }),
		changed(o, func(o, _ object) { delete(o, "spec") }),
		changed(o, func(o, _ object) { o["spec"] = "wrong" }),
		changed(o, func(o, _ object) { o["status"] = 7 }),
	}
	spec, _ := o["spec"].(object)
	names := make([]string, 0, len(spec))
	for name := range spec {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names[:min(4, len(names))] {
		for _, value := range []any{nil, wrong(spec[name]), emptied(spec[name])} {
			all = append(all, changed(o, func(o, _ object) {
				if o["spec"].(object)[name] = value; value == nil {
					delete(o["spec"].(object), name)
				}
			}))
		}
	}
	return all
}
