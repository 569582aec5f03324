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

	"github.com/trellis-k8s/trellis/internal/crd/crdvalidation"
)

// crdOf returns a CRD with one version. root is its schema.
func crdOf(root props, selectable []any) []byte {
	return asJSON(props{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": props{"name": "foos.example.com", "uid": "u", "creationTimestamp": "2020-01-02T03:04:05Z"},
		"spec": props{"group": "example.com", "scope": "Cluster", "conversion": props{"strategy": "None"},
			"names": props{"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"},
			"versions": []any{props{"name": "v1", "served": true, "storage": true,
				"schema": props{"openAPIV3Schema": root}, "selectableFields": selectable}}},
		"status": props{"storedVersions": []any{"v1"}, "conditions": nil,
			"acceptedNames": props{"plural": "", "kind": ""}},
	})
}

var (
	// calls for which Trellis estimates lower costs than upstream (docs/compatibility.md)
	cheaper   = regexp.MustCompile(`string\(|filter\(`)
	unordered = regexp.MustCompile(`properties\[p\d+\]`) // properties that upstream visits in random order
	costWord  = regexp.MustCompile(`estimated (rule|messageExpression) cost|contributed to estimated|cost ` +
		`total exceeds`)
)

// sameCosts reports whether both implementations must estimate the same costs for the CRDs in data. The costs may
// differ for some calls, and because upstream ignores bounds inside allOf.
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
			if inside && (k == "maxLength" || k == "maxItems" || k == "maxProperties") ||
				hasBoundInAllOf(w, inside || k == "allOf") {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, func(w any) bool { return hasBoundInAllOf(w, inside) })
	}
	return false
}

// crdErrorTexts returns the texts of the errors of a CRD. If costs is false, it omits errors about estimated costs.
func crdErrorTexts(errs field.ErrorList, costs bool) (all []string) {
	for _, e := range errs {
		// the choice among equal costs is random
		if costWord.MatchString(e.Detail) && (!costs || strings.HasPrefix(e.Detail, "contributed to")) {
			continue
		}
		if strings.HasPrefix(e.Field, "metadata.") && !strings.Contains(e.Detail, "must be spec.names.plural") &&
			!strings.Contains(e.Field, "api-approved") {
			continue // tested elsewhere
		}
		if _, isText := e.BadValue.(string); !isText && (strings.HasSuffix(e.Field, "versions") ||
			strings.HasSuffix(e.Field, "openAPIV3Schema")) {
			e.BadValue = "" // the value in upstream's error has pruned defaults
		}
		all = append(all, unordered.ReplaceAllString(selfType.ReplaceAllString(e.Error(), "selfType"), "properties[p]"))
	}
	slices.Sort(all)
	return all
}

// selectable returns random selectableFields. Some of their paths are valid.
func (g *gen) selectable(root props) []any {
	all := []any{}
	if fields, ok := root["properties"].(props); ok && g.oneIn(12) { // fields with random names and values
		fields["open"] = props{"type": "object", "additionalProperties": pick[any](g.source, true,
			props{"type": "string"}, props{"type": "number"})}
		all = append(all, props{"jsonPath": ".open.any"})
	}
	for range g.n(3) * g.n(2) {
		path := (&ruleWriter{gen: g}).fieldPath(root)
		if path = strings.NewReplacer("['", ".", "']", "").Replace(path); g.mistakeHere() {
			path += pick(g.source, pathTokens...)
		}
		all = append(all, props{"jsonPath": path})
	}
	return all
}

// trialCRD generates a CRD, sometimes with mistakes in its schema, and compares its errors in both implementations.
func trialCRD(from *source, c *tally) error {
	g := &gen{source: from, rules: true, mistakeRate: pick(from, 0, 0, 120, 12, 0)}
	root := g.root()
	return compareCRD(crdOf(root, g.selectable(root)), c)
}

// compareCRD compares the errors of both implementations for a CRD.
func compareCRD(data []byte, c *tally) error {
	crd, err := crdvalidation.Read(data)
	if err != nil {
		c.skipped++
		return nil
	}
	got, difference := compareCRDErrors(crdvalidation.Create(crd), sameCosts(data), func() field.ErrorList {
		return crdupstream.ValidateCustomResourceDefinition(context.Background(), crd.Upstream())
	})
	if difference != "" {
		return fmt.Errorf("%s\ncrd %s", difference, data)
	}
	c.count(len(got) == 0)
	return nil
}

// compareCRDErrors returns the texts of errs, and their difference from the errors that the function theirs returns.
// It ignores the difference if theirs panics, because upstream panics for some paths.
func compareCRDErrors(errs field.ErrorList, costs bool, theirs func() field.ErrorList) (got []string,
	difference string) {
	got = crdErrorTexts(errs, costs)
	recovered := func() (errs field.ErrorList, panicked bool) {
		defer func() { panicked = recover() != nil }()
		return theirs(), false
	}
	var want []string
	for range 10 { // upstream's error depends on its iteration order
		errs, panicked := recovered()
		if want = crdErrorTexts(errs, costs); panicked || slices.Equal(got, want) {
			return got, ""
		}
	}
	return got, fmt.Sprintf("errors, of %d and %d:\nours     %q\nupstream %q", len(got), len(want), without(got, want),
		without(want, got))
}

// trialUpdate generates a complete CRD and an old state of it. It compares the errors of both states, of the update,
// and of a write of the status.
func trialUpdate(from *source, c *tally) error {
	g := &gen{source: from, rules: true, mistakeRate: pick(from, 0, 200, 60, 20)}
	tree := g.crd()
	if g.mistakeRate = pick(from, 60, 12); g.oneIn(3) {
		g.mistakeRate = 0
	}
	return compareUpdate(asJSON(tree), asJSON(g.changedCRD(tree, g.crd())), c)
}

// compareUpdate compares the errors of both implementations for a CRD that replaces an old CRD.
func compareUpdate(data, oldData []byte, c *tally) error {
	costs, ctx := sameCosts(data, oldData), context.Background()
	type internal = apiextensions.CustomResourceDefinition
	for _, write := range []struct {
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
		{"update without a change", func(_, old crdvalidation.CRD) field.ErrorList {
			return crdvalidation.Update(old,
				old)
		},
			func(_, old *internal) field.ErrorList {
				return withoutAccepted(crdupstream.ValidateCustomResourceDefinitionUpdate(ctx, old, old))
			}},
		{"status", func(crd, old crdvalidation.CRD) field.ErrorList {
			return withoutStored(crdvalidation.Status(crd,
				old))
		},
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
		// on copies, because upstream prunes defaults
		got, difference := compareCRDErrors(write.ours(crd, old), costs, func() field.ErrorList {
			return write.theirs(crd.Upstream(), old.Upstream())
		})
		if difference != "" {
			return fmt.Errorf("%s: %s\ncrd %s\nold %s", write.what, difference, data, oldData)
		}
		c.count(len(got) == 0)
	}
	return nil
}

// withoutStored omits errors about status.storedVersions. In contrast to upstream, Trellis also checks this field in
// writes of the status (docs/compatibility.md).
func withoutStored(errs field.ErrorList) field.ErrorList {
	return slices.DeleteFunc(errs, func(e *field.Error) bool {
		return strings.HasPrefix(e.Field,
			"status.storedVersions")
	})
}

// withoutAccepted omits errors about status.acceptedNames. The server derives these names from the names in the spec,
// and Trellis reports errors only for the names in the spec.
func withoutAccepted(errs field.ErrorList) field.ErrorList {
	return slices.DeleteFunc(errs, func(e *field.Error) bool {
		return strings.HasPrefix(e.Field,
			"status.acceptedNames")
	})
}

// TestRandomCRDs checks that random CRDs, with and without mistakes, have upstream's errors. The mistakes are in the
// structure of schemas, in defaults, and in rules with their messages, field paths and costs.
// SCH-001, DEF-012, DEF-013, VAL-048
func TestRandomCRDs(t *testing.T) {
	randomCRDs(t, trialCRD, seeds(150))
}

// TestRandomUpdatesOfCRDs checks that complete CRDs have upstream's errors. It checks the same for updates of stored
// CRDs that are no longer valid.
// CRD-036, CRD-042, CRD-048, VAL-167
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
		t.Errorf("the generator produces too few accepted or rejected CRDs: %+v", c)
	}
}
