package schematest

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	crdupstream "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/builtin/crdvalidation"
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
	cheaper  = regexp.MustCompile(`string\(|filter\(`)  // what docs/compatibility.md estimates lower than upstream
	alike    = regexp.MustCompile(`properties\[p\d+\]`) // properties that upstream visits in any order
	costWord = regexp.MustCompile(`estimated (rule|messageExpression) cost|contributed to estimated|cost total exceeds`)
)

// crdWords are what is said of a CRD, without estimated costs where those may differ.
func crdWords(errs field.ErrorList, costs bool) (all []string) {
	for _, e := range errs {
		if costWord.MatchString(e.Detail) && (!costs || strings.HasPrefix(e.Detail, "contributed to")) { // which of equal ones is chance
			continue
		}
		all = append(all, alike.ReplaceAllString(selfType.ReplaceAllString(e.Error(), "selfType"), "properties[p]"))
	}
	slices.Sort(all)
	return all
}

// selectable are a few paths, some of which lead to what may be selected by.
func (g *gen) selectable(root props) []any {
	all := []any{}
	for range g.n(3) * g.n(2) {
		path := (&ruleWriter{gen: g}).fieldPath(root)
		if path = strings.NewReplacer("['", ".", "']", "").Replace(path); g.err() {
			path += pick(g.source, pathTokens...)
		}
		all = append(all, props{"jsonPath": path})
	}
	return all
}

// judged is upstream's verdict. It panics for a fieldPath that leads through additionalProperties without a schema.
func judged(crd crdvalidation.CRD) (errs field.ErrorList, panicked bool) {
	defer func() { panicked = recover() != nil }()
	return crdupstream.ValidateCustomResourceDefinition(context.Background(), crd.CustomResourceDefinition), false
}

// trialCRD makes a schema, that may be wrong in places, and compares what is said of a CRD with it.
func trialCRD(from *source, c *tally) error {
	g := &gen{source: from, rules: true, wrong: pick(from, 0, 60, 12)}
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
	costs := !cheaper.Match(data)
	got := crdWords(crdvalidation.Create(crd), costs)
	var want []string
	for range 10 { // upstream names whichever value it happens to see first
		errs, panicked := judged(crd)
		if want = crdWords(errs, costs); panicked || slices.Equal(got, want) {
			want = got
			break
		}
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("errors, of %d and %d:\nours     %q\nupstream %q\ncrd %s", len(got), len(want), without(got, want), without(want, got), data)
	}
	if len(got) == 0 {
		c.accepted++
	} else {
		c.refused++
	}
	return nil
}

// SCH-001, DEF-012, DEF-013, VAL-048: whatever the schema of a CRD, with mistakes or without, it gets upstream's verdict: its structure,
// its defaults, its rules with their messages, field paths and costs.
func TestRandomCRDs(t *testing.T) {
	var c tally
	failures := 0
	for seed := range seeds(150) {
		if err := trialCRD(seeded(seed), &c); err != nil {
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
