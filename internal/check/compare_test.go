package check

import (
	"slices"
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/internal/object"
)

// What a change of a schema does to objects that are stored (KEP-4008).
func TestCompare(t *testing.T) {
	const old = `{type: object, required: [r], properties: {r: {type: string, default: x}, i: {type: integer, maximum: 5}, s: {type: string, nullable: true}, l: {type: array, items: {type: string}}, o: {type: object, additionalProperties: {type: string}}, u: {type: object, x-kubernetes-preserve-unknown-fields: true}}}`
	for name, c := range map[string]struct{ from, to, want string }{
		"nothing":              {"", "", ""},
		"a new field":          {"properties: {r", "properties: {new: {type: string}, r", ""},
		"a field gone":         {"i: {type: integer, maximum: 5}, ", "", "Breaking .properties"},
		"a lower bound":        {"maximum: 5", "maximum: 4", "Ratcheted .properties[i].maximum"},
		"a higher bound":       {"maximum: 5", "maximum: 6", "Compatible .properties[i]"},
		"a bound that is new":  {"type: array,", "type: array, maxItems: 1,", "Ratcheted .properties[l].maxItems"},
		"integer to number":    {"type: integer", "type: number", "Compatible .properties[i].type"},
		"integer to string":    {"type: integer", "type: string", "Ratcheted .properties[i].type"},
		"int-or-string":        {"type: integer", "x-kubernetes-int-or-string: true", "Compatible .properties[i].type Compatible .properties[i].x-kubernetes-int-or-string"},
		"nullable gone":        {", nullable: true", "", "Breaking .properties[s].nullable"},
		"a set":                {"type: array,", "type: array, x-kubernetes-list-type: set,", "Breaking .properties[l].x-kubernetes-list-type"},
		"newly required":       {"required: [r]", "required: [r, s]", "Breaking .required"},
		"no default any more":  {", default: x", "", "Breaking .required Compatible .properties[r]"},
		"a map of another":     {"additionalProperties: {type: string}", "additionalProperties: {type: integer}", "Ratcheted .properties[o].additionalProperties.type"},
		"a map gone":           {"type: object, additionalProperties: {type: string}", "type: object", "Breaking .properties[o]"},
		"unknown fields known": {"x-kubernetes-preserve-unknown-fields: true", "x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: string}}", "Ratcheted .properties[u].properties[a]"},
		"unknown fields gone":  {", x-kubernetes-preserve-unknown-fields: true", "", "Breaking .properties[u]"},
		"embedded":             {"x-kubernetes-preserve-unknown-fields: true", "x-kubernetes-preserve-unknown-fields: true, x-kubernetes-embedded-resource: true", "Breaking .properties[u].x-kubernetes-embedded-resource"},
		"a rule":               {"type: array,", "type: array, x-kubernetes-validations: [{rule: self.size() > 0}],", "Ratcheted .properties[l].x-kubernetes-validations[0].rule"},
		"a transition rule":    {"type: array,", "type: array, x-kubernetes-validations: [{rule: self == oldSelf}],", "Breaking .properties[l].x-kubernetes-validations[0].rule"},
		"a junctor":            {"type: integer,", "type: integer, not: {enum: [1]},", "Breaking .properties[i].not"},
		"an enum":              {"type: string, nullable", "type: string, enum: [a], nullable", "Ratcheted .properties[s].enum"},
		"fields become a map":  {"u: {type: object, x-kubernetes-preserve-unknown-fields: true}", "u: {type: object, additionalProperties: {type: string}}", "Breaking .properties[u]"},
	} {
		if !strings.Contains(old, c.from) {
			t.Fatalf("%s: %q is not in the old schema", name, c.from)
		}
		w := comparison{}
		w.schema("", schemaTree(t, old), schemaTree(t, strings.Replace(old, c.from, c.to, 1)))
		var got []string
		for _, change := range w.changes {
			got = append(got, string(change.Effect)+" "+change.Path)
		}
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func schemaTree(t *testing.T, text string) object.Tree {
	t.Helper()
	tree, _, err := object.DecodeYAML([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// A list of a kind's objects need not say their kind; kubectl takes it from the list.
func TestElements(t *testing.T) {
	c := newChecker()
	all, err := parse("f", strings.NewReader("apiVersion: v1\nkind: ConfigMapList\nitems:\n- metadata: {name: a}\n"), c)
	if err != nil || !slices.ContainsFunc(all, func(d *document) bool { return d.String() == "ConfigMap a" }) {
		t.Errorf("%v, %v, %v", all, c.report.Findings, err)
	}
}
