package check

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
)

const oldSchema = `{type: object, required: [r], properties: {` +
	`other: {type: string}, f: {type: number}, r: {type: string, default: x}, i: {type: integer, maximum: 5}, s: ` +
	`{type: string, nullable: true}, ` +
	`l: {type: array, items: {type: string}}, o: {type: object, additionalProperties: {type: string}}, ` +
	`u: {type: object, x-kubernetes-preserve-unknown-fields: true}, p: {type: object, properties: {q: {type: ` +
	`string}}}, ` +
	`m: {type: array, items: {type: object, required: [k], properties: {k: {type: string}, v: {type: string}}}}}}`

// schemaChanges are changes of oldSchema with their effects on stored objects (KEP-4008). If the string stored is not
// empty, the test also verifies the effect with an object that has these fields.
var schemaChanges = map[string]struct{ from, to, stored, want string }{
	"nothing":        {"", "", "", ""},
	"a new field":    {"properties: {other", "properties: {new: {type: string}, other", "", ""},
	"a field gone":   {"i: {type: integer, maximum: 5}, ", "", "i: 1", "Breaking .properties"},
	"a lower bound":  {"maximum: 5", "maximum: 4", "i: 5", "Ratcheted .properties[i].maximum"},
	"a higher bound": {"maximum: 5", "maximum: 6", "i: 5", "Compatible .properties[i]"},
	"an exclusive bound": {"maximum: 5", "maximum: 5, exclusiveMaximum: true", "i: 5",
		"Ratcheted .properties[i].exclusiveMaximum"},
	"exclusive from below": {"maximum: 5", "maximum: 5, minimum: 1, exclusiveMinimum: true", "i: 1",
		"Ratcheted .properties[i].minimum Ratcheted .properties[i].exclusiveMinimum"},
	"multipleOf":        {"maximum: 5", "maximum: 5, multipleOf: 2", "i: 5", "Ratcheted .properties[i].multipleOf"},
	"no bound any more": {", maximum: 5", "", "i: 5", "Compatible .properties[i]"},
	"maxLength":         {" s: {", " s: {maxLength: 1, ", "s: ab", "Ratcheted .properties[s].maxLength"},
	"minLength":         {" s: {", " s: {minLength: 3, ", "s: ab", "Ratcheted .properties[s].minLength"},
	"pattern":           {" s: {", " s: {pattern: x, ", "s: ab", "Ratcheted .properties[s].pattern"},
	"format":            {" s: {", " s: {format: ipv4, ", "s: ab", "Ratcheted .properties[s].format"},
	"maxItems":          {" l: {", " l: {maxItems: 1, ", "l: [a, b]", "Ratcheted .properties[l].maxItems"},
	"minItems":          {" l: {", " l: {minItems: 3, ", "l: [a, b]", "Ratcheted .properties[l].minItems"},
	"maxProperties": {" o: {", " o: {maxProperties: 1, ", "o: {a: a, b: b}",
		"Ratcheted .properties[o].maxProperties"},
	"minProperties": {" o: {", " o: {minProperties: 3, ", "o: {a: a, b: b}",
		"Ratcheted .properties[o].minProperties"},
	"integer to number": {"type: integer", "type: number", "i: 5", "Compatible .properties[i].type"},
	"number to integer": {"type: number", "type: integer", "f: 1.5", "Ratcheted .properties[f].type"},
	"integer to string": {"type: integer, maximum: 5", "type: string", "i: 5",
		"Breaking .properties[i].type Compatible .properties[i]"},
	"object to string": {"{type: object, properties: {q: {type: string}}}", "{type: string}", "p: {q: a}",
		"Breaking .properties[p].type Breaking .properties[p].properties"},
	"int-or-string": {"type: integer, maximum: 5", "x-kubernetes-int-or-string: true, maximum: 5", "i: 5",
		"Compatible .properties[i].type Compatible .properties[i].x-kubernetes-int-or-string"},
	"nullable gone": {", nullable: true", "", "s: null", "Breaking .properties[s].nullable"},
	"nullable":      {" i: {", " i: {nullable: true, ", "i: 5", "Compatible .properties[i].nullable"},
	"a set": {" l: {", " l: {x-kubernetes-list-type: set, ", "l: [a, a]",
		"Ratcheted .properties[l].x-kubernetes-list-type"},
	"a list-map": {" m: {", " m: {x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k], ",
		"m: [{k: a}, {k: a}]", "Ratcheted .properties[m].x-kubernetes-list-type Ratcheted " +
			".properties[m].x-kubernetes-list-map-keys"},
	"an atomic list": {" l: {", " l: {x-kubernetes-list-type: atomic, ", "l: [a, a]",
		"Compatible .properties[l].x-kubernetes-list-type"},
	"an atomic map": {" p: {", " p: {x-kubernetes-map-type: atomic, ", "p: {q: a}",
		"Compatible .properties[p].x-kubernetes-map-type"},
	"newly required":      {"required: [r]", "required: [r, s]", "i: 1", "Breaking .required"},
	"no longer required":  {"required: [r], ", "", "i: 1", "Compatible "},
	"no default any more": {", default: x", "", "", "Breaking .required Compatible .properties[r]"},
	"a default":           {" i: {", " i: {default: 1, ", "s: a", "Compatible .properties[i].default"},
	"a map of another": {"additionalProperties: {type: string}", "additionalProperties: {type: integer}",
		"o: {a: a}", "Breaking .properties[o].additionalProperties.type"},
	"a map of anything": {"additionalProperties: {type: string}", "additionalProperties: true", "o: {a: a}",
		"Compatible .properties[o].additionalProperties"},
	"a map gone": {"type: object, additionalProperties: {type: string}", "type: object", "o: {a: a}",
		"Breaking .properties[o]"},
	"a map becomes fields": {"additionalProperties: {type: string}", "properties: {a: {type: string, maxLength: 1}}",
		"o: {b: a}", "Ratcheted .properties[o].properties[a].maxLength Breaking .properties[o]"},
	"items": {"items: {type: string}", "items: {type: string, maxLength: 1}", "l: [ab]",
		"Ratcheted .properties[l].items.maxLength"},
	"unknown fields known": {"x-kubernetes-preserve-unknown-fields: true",
		"x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: string}}", "u: {a: 1}",
		"Breaking .properties[u].properties[a]"},
	"unknown fields gone": {", x-kubernetes-preserve-unknown-fields: true", "", "u: {a: 1}",
		"Breaking .properties[u].x-kubernetes-preserve-unknown-fields"},
	"embedded": {"x-kubernetes-preserve-unknown-fields: true",
		"x-kubernetes-preserve-unknown-fields: true, x-kubernetes-embedded-resource: true", "u: {a: 1}",
		"Breaking .properties[u].x-kubernetes-embedded-resource"},
	"a rule": {" l: {", " l: {x-kubernetes-validations: [{rule: self.size() > 2}], ", "l: [a]",
		"Ratcheted .properties[l].x-kubernetes-validations[0].rule"},
	"a transition rule": {" l: {", " l: {x-kubernetes-validations: [{rule: self.size() > oldSelf.size()}], ",
		"l: [a]", "Breaking .properties[l].x-kubernetes-validations[0].rule"},
	"not":   {" i: {", " i: {not: {enum: [1]}, ", "i: 1", "Ratcheted .properties[i].not"},
	"allOf": {" i: {", " i: {allOf: [{maximum: 0}], ", "i: 1", "Ratcheted .properties[i].allOf"},
	"anyOf": {" i: {", " i: {anyOf: [{maximum: 0}], ", "i: 1", "Ratcheted .properties[i].anyOf"},
	"oneOf of an object": {"{type: object, required", "{oneOf: [{required: [o]}], type: object, required", "i: 1",
		"Breaking .oneOf"},
	"an enum": {" s: {", " s: {enum: [a], ", "s: b", "Ratcheted .properties[s].enum"},
	"fields become a map": {"u: {type: object, x-kubernetes-preserve-unknown-fields: true}",
		"u: {type: object, additionalProperties: {type: string}}", "u: {a: {b: c}}",
		"Breaking .properties[u].x-kubernetes-preserve-unknown-fields Breaking .properties[u].additionalProperties"},
}

func TestCompare(t *testing.T) {
	for name, c := range schemaChanges {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(oldSchema, c.from) {
				t.Fatalf("%q is not in the old schema", c.from)
			}
			newSchema := strings.Replace(oldSchema, c.from, c.to, 1)
			if got := changesOf(t, oldSchema, newSchema); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			if c.stored == "" {
				return
			}
			worst := Compatible
			for _, e := range []Effect{Ratcheted, Breaking} {
				if strings.Contains(c.want, string(e)) {
					worst = e
				}
			}
			if got, why := effectInEngine(t, oldSchema, newSchema, c.stored); got != worst {
				t.Errorf("got effect %s in the engine: %v", got, why)
			}
		})
	}
}

func changesOf(t *testing.T, old, now string) string {
	w := comparison{}
	w.schema("", yamlNode(t, old), yamlNode(t, now))
	var got []string
	for _, change := range w.changes {
		got = append(got, string(change.Effect)+" "+change.Path)
	}
	return strings.Join(got, " ")
}

// TestCompareLoosened checks that loosened schemas are compatible. It also checks changes that loosen one part of a
// schema and tighten another part.
func TestCompareLoosened(t *testing.T) {
	for name, c := range map[string]struct{ old, now, want string }{
		"enum":         {"{enum: [a]}", "{enum: [a, b]}", "Compatible .enum"},
		"enum gone":    {"{enum: [a]}", "{}", "Compatible "},
		"enum changed": {"{enum: [a]}", "{enum: [b]}", "Compatible .enum Ratcheted .enum"},
		"anyOf":        {"{anyOf: [{maxLength: 1}]}", "{anyOf: [{maxLength: 1}, {pattern: a}]}", "Compatible "},
		"allOf":        {"{allOf: [{maxLength: 1}, {pattern: a}]}", "{allOf: [{pattern: a}]}", "Compatible "},
		"oneOf": {"{type: string, oneOf: [{maxLength: 1}]}",
			"{type: string, oneOf: [{maxLength: 1}, {pattern: a}]}", "Ratcheted .oneOf"},
		"not":  {"{not: {enum: [a]}}", "{}", "Compatible "},
		"rule": {"{x-kubernetes-validations: [{rule: a}]}", "{}", "Compatible "},
		"optional": {"{x-kubernetes-validations: [{rule: oldSelf.a}]}",
			"{x-kubernetes-validations: [{rule: oldSelf.a, optionalOldSelf: true}]}",
			"Breaking .x-kubernetes-validations[0].rule Compatible "},
		"message": {"{x-kubernetes-validations: [{rule: a}]}",
			"{x-kubernetes-validations: [{rule: a, message: b}]}", ""},
		"exclusive": {"{exclusiveMaximum: true}", "{}", "Compatible "},
		"keys": {"{x-kubernetes-list-map-keys: [a]}", "{x-kubernetes-list-map-keys: [b]}",
			"Ratcheted .x-kubernetes-list-map-keys"},
		"list":     {"{x-kubernetes-list-type: set}", "{}", "Compatible .x-kubernetes-list-type"},
		"embedded": {"{x-kubernetes-embedded-resource: true}", "{}", "Breaking "},
		"embedded, kept": {"{x-kubernetes-preserve-unknown-fields: true, x-kubernetes-embedded-resource: true}",
			"{x-kubernetes-preserve-unknown-fields: true}", "Compatible "},
		"titles": {"{title: a, description: b, example: c, externalDocs: {url: a}}", "{}", ""},
	} {
		if got := changesOf(t, c.old, c.now); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestCompareCoversKeywords checks that schemaChanges covers every keyword of a schema. Exceptions are keywords
// without an effect on objects and keywords that no CRD may have.
func TestCompareCoversKeywords(t *testing.T) {
	silent := []string{"id", "$schema", "$ref", "description", "title", "example", "externalDocs", "definitions",
		"dependencies", "patternProperties", "additionalItems", "uniqueItems"}
	var tried strings.Builder
	for _, c := range schemaChanges {
		tried.WriteString(c.from + c.to + "\n")
	}
	kind := reflect.TypeFor[apiextensionsv1.JSONSchemaProps]()
	for i := range kind.NumField() {
		key, _, _ := strings.Cut(kind.Field(i).Tag.Get("json"), ",")
		if !slices.Contains(silent, key) && !strings.Contains(tried.String(), key+":") {
			t.Errorf("no change of %s in schemaChanges", key)
		}
	}
}

// effectInEngine changes the schema of spec in the engine and determines the effect on a stored object. It checks
// whether the object keeps its fields, and whether an update and server-side apply succeed. It also checks whether a
// similar object can be created.
func effectInEngine(t *testing.T, old, now, stored string) (Effect, error) {
	t.Helper()
	ctx := t.Context()
	s, err := newScratch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if _, _, err := s.create(ctx, schemaCRD(t, old)); err != nil {
		t.Fatal(err)
	}
	manifest := yamlTree(t, "{apiVersion: example.com/v1, kind: Thing, metadata: {name: a}, spec: {other: a, "+stored+
		"}}")
	target, err := s.target(ctx, manifest)
	if err != nil {
		t.Fatal(err)
	}
	caller, _ := newCaller(target.Version)
	created, err := s.engine.Create(ctx, target, verb.Body{Tree: object.Copy(manifest)}, caller)
	if err != nil {
		t.Fatal(err)
	}
	before, err := created.Packed().Tree(created.Revision)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.update(ctx, schemaCRD(t, now)); err != nil {
		t.Fatal(err)
	}
	change := object.Copy(before)
	child(change, "spec")["other"] = "b"
	if _, err := s.update(ctx, change); err != nil {
		return Breaking, err
	}
	if target, err = s.target(ctx, manifest); err != nil {
		t.Fatal(err)
	}
	target.Name = "a"
	caller, _ = newCaller(target.Version)
	apply := verb.Patch{Type: types.ApplyYAMLPatchType, Force: true,
		Data: []byte("{apiVersion: example.com/v1, kind: Thing, metadata: {name: a}, spec: {other: c}}")}
	if _, _, err := s.engine.Patch(ctx, target, apply, caller); err != nil {
		return Breaking, err
	}
	got, err := s.engine.Get(ctx, target, "")
	if err != nil {
		t.Fatal(err)
	}
	after, err := got.Packed().Tree(got.Revision)
	if err != nil {
		t.Fatal(err)
	}
	for name, was := range child(before, "spec") {
		if is, ok := child(after, "spec")[name]; name != "other" && (!ok || !object.Equal(was, is)) {
			return Breaking, fmt.Errorf("%s is lost", name)
		}
	}
	manifest["metadata"] = object.Tree{"name": "b"}
	if _, _, err := s.create(ctx, manifest); err != nil {
		return Ratcheted, err
	}
	return Compatible, nil
}

func schemaCRD(t *testing.T, spec string) object.Tree {
	t.Helper()
	return yamlTree(t, `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: `+
		`things.example.com}, spec: {group: example.com, scope: Namespaced, `+
		`names: {plural: things, singular: thing, kind: Thing}, versions: [{name: v1, served: true, storage: true, `+
		`schema: {openAPIV3Schema: {type: object, properties: {spec: `+spec+`}}}}]}}`)
}

func yamlTree(t *testing.T, text string) object.Tree {
	t.Helper()
	tree, _, err := object.DecodeYAML([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func yamlNode(t *testing.T, text string) *schema.Node {
	t.Helper()
	s, err := schema.Parse(object.AppendJSON(nil, yamlTree(t, text)), false)
	if err != nil {
		t.Fatal(err)
	}
	return s.Root
}

// TestElements checks that items of a typed list such as ConfigMapList may omit the kind. As in kubectl, they get the
// kind from the list.
func TestElements(t *testing.T) {
	c := newChecker()
	all, err := parse("f", strings.NewReader("apiVersion: v1\nkind: ConfigMapList\nitems:\n- metadata: {name: a}\n"), c)
	if err != nil || !slices.ContainsFunc(all, func(d *document) bool { return d.String() == "ConfigMap a" }) {
		t.Errorf("%v, %v, %v", all, c.report.Findings, err)
	}
}
