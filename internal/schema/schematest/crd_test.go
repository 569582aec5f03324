package schematest

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	crdupstream "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/kinds/crdvalidation"
)

// crdOf is a CRD of one version with the schema root.
func crdOf(root props, selectable []any) []byte {
	return asJSON(props{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": props{"name": "foos.example.com", "uid": "u", "creationTimestamp": "2020-01-02T03:04:05Z"},
		"spec": props{"group": "example.com", "scope": "Cluster", "conversion": props{"strategy": "None"},
			"names":    props{"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"},
			"versions": []any{props{"name": "v1", "served": true, "storage": true, "schema": props{"openAPIV3Schema": root}, "selectableFields": selectable}}},
		"status": props{"storedVersions": []any{"v1"}, "conditions": nil, "acceptedNames": props{"plural": "", "kind": ""}},
	})
}

var (
	cheaper  = regexp.MustCompile(`string\(|filter\(`)  // calls that docs/compatibility.md estimates lower than upstream
	alike    = regexp.MustCompile(`properties\[p\d+\]`) // properties that upstream visits in any order
	costWord = regexp.MustCompile(`estimated (rule|messageExpression) cost|contributed to estimated|cost total exceeds`)
)

// sameCosts reports whether both servers estimate the same costs for the CRDs of data. Upstream ignores bounds inside allOf.
func sameCosts(data ...[]byte) bool {
	for _, d := range data {
		var v any
		if cheaper.Match(d) || json.Unmarshal(d, &v) == nil && hasBoundInAllOf(v, false) {
			return false
		}
	}
	return true
}

func hasBoundInAllOf(v any, inside bool) bool {
	switch v := v.(type) {
	case map[string]any:
		for k, w := range v {
			if inside && (k == "maxLength" || k == "maxItems" || k == "maxProperties") || hasBoundInAllOf(w, inside || k == "allOf") {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, func(w any) bool { return hasBoundInAllOf(w, inside) })
	}
	return false
}

// crdWords are what is said of a CRD, without estimated costs where those may differ.
func crdWords(errs field.ErrorList, costs bool) (all []string) {
	for _, e := range errs {
		if costWord.MatchString(e.Detail) && (!costs || strings.HasPrefix(e.Detail, "contributed to")) { // which of equal ones is chance
			continue
		}
		if strings.HasPrefix(e.Field, "metadata.") && !strings.Contains(e.Detail, "must be spec.names.plural") && !strings.Contains(e.Field, "api-approved") {
			continue // looked at elsewhere
		}
		if _, isText := e.BadValue.(string); !isText && (strings.HasSuffix(e.Field, "versions") || strings.HasSuffix(e.Field, "openAPIV3Schema")) {
			e.BadValue = "" // upstream prunes the defaults in it on its way
		}
		all = append(all, alike.ReplaceAllString(selfType.ReplaceAllString(e.Error(), "selfType"), "properties[p]"))
	}
	slices.Sort(all)
	return all
}

// selectable are a few paths, some of which lead to what may be selected by.
func (g *gen) selectable(root props) []any {
	all := []any{}
	if fields, ok := root["properties"].(props); ok && g.once(12) { // fields with any names and values
		fields["open"] = props{"type": "object", "additionalProperties": pick[any](g.source, true, props{"type": "string"}, props{"type": "number"})}
		all = append(all, props{"jsonPath": ".open.any"})
	}
	for range g.n(3) * g.n(2) {
		path := (&ruleWriter{gen: g}).fieldPath(root)
		if path = strings.NewReplacer("['", ".", "']", "").Replace(path); g.err() {
			path += pick(g.source, pathTokens...)
		}
		all = append(all, props{"jsonPath": path})
	}
	return all
}

// trialCRD makes a schema, that may be wrong in places, and compares what is said of a CRD with it.
func trialCRD(from *source, c *tally) error {
	g := &gen{source: from, rules: true, wrong: pick(from, 0, 0, 120, 12, 0)}
	root := g.root()
	return sameVerdict(crdOf(root, g.selectable(root)), c)
}

// sameVerdict compares what is said of a CRD.
func sameVerdict(data []byte, c *tally) error {
	crd, err := crdvalidation.Read(data)
	if err != nil {
		c.skipped++
		return nil
	}
	got, difference := compared(crdvalidation.Create(crd), sameCosts(data), func() field.ErrorList {
		return crdupstream.ValidateCustomResourceDefinition(context.Background(), crd.CustomResourceDefinition)
	})
	if difference != "" {
		return fmt.Errorf("%s\ncrd %s", difference, data)
	}
	c.count(len(got) == 0)
	return nil
}

// compared are the words of got, and how they differ from what theirs says. Upstream panics for a path that leads
// through additionalProperties without a schema.
func compared(errs field.ErrorList, costs bool, theirs func() field.ErrorList) (got []string, difference string) {
	got = crdWords(errs, costs)
	judged := func() (errs field.ErrorList, panicked bool) {
		defer func() { panicked = recover() != nil }()
		return theirs(), false
	}
	var want []string
	for range 10 { // upstream names whichever value it happens to see first
		errs, panicked := judged()
		if want = crdWords(errs, costs); panicked || slices.Equal(got, want) {
			return got, ""
		}
	}
	return got, fmt.Sprintf("errors, of %d and %d:\nours     %q\nupstream %q", len(got), len(want), without(got, want), without(want, got))
}

// trialUpdate makes a whole CRD and one that it replaces, and compares what is said of either, of the update and of
// a write of status.
func trialUpdate(from *source, c *tally) error {
	g := &gen{source: from, rules: true, wrong: pick(from, 0, 200, 60, 20)}
	tree := g.crd()
	if g.wrong = pick(from, 60, 12); g.once(3) {
		g.wrong = 0
	}
	return sameUpdate(asJSON(tree), asJSON(g.changedCRD(tree, g.crd())), c)
}

// sameUpdate compares what is said of a CRD that is to replace an old one.
func sameUpdate(data, oldData []byte, c *tally) error {
	costs, ctx := sameCosts(data, oldData), context.Background()
	type internal = apiextensions.CustomResourceDefinition
	for _, way := range []struct {
		what   string
		ours   func(crd, old crdvalidation.CRD) field.ErrorList
		theirs func(crd, old *internal) field.ErrorList
	}{
		{"create", func(crd, _ crdvalidation.CRD) field.ErrorList { return crdvalidation.Create(crd) },
			func(crd, _ *internal) field.ErrorList {
				return withoutAccepted(crdupstream.ValidateCustomResourceDefinition(ctx, crd))
			}},
		{"update", crdvalidation.Update,
			func(crd, old *internal) field.ErrorList {
				return withoutAccepted(crdupstream.ValidateCustomResourceDefinitionUpdate(ctx, crd, old))
			}},
		{"update without a change", func(_, old crdvalidation.CRD) field.ErrorList { return crdvalidation.Update(old, old) },
			func(_, old *internal) field.ErrorList {
				return withoutAccepted(crdupstream.ValidateCustomResourceDefinitionUpdate(ctx, old, old))
			}},
		{"status", func(crd, old crdvalidation.CRD) field.ErrorList { return withoutStored(crdvalidation.Status(crd, old)) },
			func(crd, old *internal) field.ErrorList {
				return crdupstream.ValidateUpdateCustomResourceDefinitionStatus(ctx, crd, old)
			}},
	} {
		crd, err := crdvalidation.Read(data)
		old, oldErr := crdvalidation.Read(oldData)
		if err != nil || oldErr != nil {
			c.skipped++
			return nil
		}
		got, difference := compared(way.ours(crd, old), costs, func() field.ErrorList { // of copies: upstream prunes defaults on its way
			return way.theirs(crd.DeepCopy(), old.DeepCopy())
		})
		if difference != "" {
			return fmt.Errorf("%s: %s\ncrd %s\nold %s", way.what, difference, data, oldData)
		}
		c.count(len(got) == 0)
	}
	return nil
}

// withoutStored leaves out what docs/compatibility.md lists: status.storedVersions are looked at in a write of status too.
func withoutStored(errs field.ErrorList) field.ErrorList {
	return slices.DeleteFunc(errs, func(e *field.Error) bool { return strings.HasPrefix(e.Field, "status.storedVersions") })
}

// withoutAccepted leaves out status.acceptedNames: where the spec is written the server makes them of its names itself, and
// what is wrong with those is told once.
func withoutAccepted(errs field.ErrorList) field.ErrorList {
	return slices.DeleteFunc(errs, func(e *field.Error) bool { return strings.HasPrefix(e.Field, "status.acceptedNames") })
}

// SCH-001, DEF-012, DEF-013, VAL-048: whatever the schema of a CRD, with mistakes or without, it gets upstream's verdict: its structure,
// its defaults, its rules with their messages, field paths and costs.
func TestRandomCRDs(t *testing.T) {
	randomCRDs(t, trialCRD, seeds(150))
}

// CRD-036, CRD-042, CRD-048, VAL-167: so do whole CRDs, and updates of stored ones that have what is no longer accepted.
func TestRandomUpdatesOfCRDs(t *testing.T) {
	randomCRDs(t, trialUpdate, seeds(200)/2)
}

func randomCRDs(t *testing.T, trial func(*source, *tally) error, n int) {
	var c tally
	failures := 0
	for seed := range n {
		if err := trial(seeded(seed), &c); err != nil {
			t.Errorf("seed %d: %v", seed, err)
			if failures++; failures == 5 {
				break
			}
		}
	}
	t.Logf("%+v", c)
	if n := c.accepted + c.refused; 10*c.accepted < 3*n || 10*c.refused < 3*n || c.skipped > n/3 {
		t.Errorf("the generator is lopsided: %+v", c)
	}
}
