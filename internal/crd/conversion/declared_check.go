package conversion

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/trellis-k8s/trellis/internal/crd"
	"github.com/trellis-k8s/trellis/internal/crd/cel"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Limits of the samples on which a declared conversion is tested when a CRD is written.
const (
	maxSamples    = 500 // for all conversions
	maxSeparators = 4
)

// CheckDeclared validates the conversion that the CRD of d declares, and returns the costs of its expressions. A
// conversion from a version to the storage version and back must lose nothing, and neither must the opposite
// direction:
//
//   - Each field of a schema must be copied, or be read by an expression of the conversion.
//   - Samples generated from the schema, in which single fields are missing, must be equal after the round trip.
//
// An expression can still lose part of a value that no sample contains.
func CheckDeclared(ctx context.Context, d *resource.Definition) ([]Cost, field.ErrorList) {
	if d.Conversion().Declared == "" {
		return nil, nil
	}
	c := compiler{definition: d, budget: celconfig.RuntimeCELCostBudget}
	if c.compile(); len(c.errs) > 0 {
		return c.costs, c.errs
	}
	for _, check := range []func(context.Context, *resource.Version, *resource.Version){c.checkReads, c.checkSamples} {
		if len(c.errs) > 0 {
			break
		}
		for _, v := range d.Versions {
			if v != d.Storage {
				check(ctx, v, d.Storage)
				check(ctx, d.Storage, v)
			}
		}
	}
	return c.costs, c.errs
}

// checkReads checks that the conversion copies or reads each field of a version.
func (c *compiler) checkReads(_ context.Context, from, to *resource.Version) {
	a, err := from.Schema()
	b, toErr := to.Schema()
	if err != nil || toErr != nil {
		c.reject(from, to, ".", "a version has no schema")
		return
	}
	var set, read [][]string
	for _, d := range c.result.conversions[versionPair{versionName(from), versionName(to)}] {
		set, read = append(set, d.Target), append(read, d.Reads...)
	}
	for _, l := range crd.LostFields(a.Schema, b.Schema, set, read) {
		c.reject(from, to, l.Path, l.Reason)
	}
}

func (c *compiler) reject(from, to *resource.Version, path, reason string) {
	c.errs = append(c.errs, field.Invalid(annotation(), path,
		fmt.Sprintf("lost in the conversion from %s to %s: %s", versionName(from), versionName(to), reason)))
}

// separators returns the short string literals in the expressions, because these may be separators for splitting or
// joining strings.
func separators(ways ...[]*cel.Derivation) []string {
	seen := map[string]bool{}
	for _, w := range ways {
		for _, d := range w {
			for _, s := range d.Texts {
				if s != "" && len(s) <= 8 && len(seen) < maxSeparators {
					seen[s] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// sampleTexts returns generators for the strings in samples. They are sorted by how likely the conversion accepts
// their strings.
func sampleTexts(separators []string) []func(int) string {
	all := []func(int) string{func(i int) string { return "aB" + strconv.Itoa(i) }}
	for _, s := range separators {
		all = append(all, func(i int) string { return "aB" + strconv.Itoa(i) + s + strconv.Itoa(i) })
	}
	return append(all, strconv.Itoa)
}

// checkSamples checks round trips of sample objects. One sample has all fields. For each field that the expressions
// use, another sample lacks this field. The strings in a sample come from the first generator whose strings the
// conversion accepts.
func (c *compiler) checkSamples(ctx context.Context, from, to *resource.Version) {
	s, err := from.Schema()
	if err != nil {
		return // already reported
	}
	there, back := c.result.conversions[versionPair{versionName(from), versionName(to)}],
		c.result.conversions[versionPair{versionName(to), versionName(from)}]
	var fields [][]string
	for _, d := range there {
		fields = append(fields, d.Reads...)
	}
	for _, d := range back {
		fields = append(fields, d.Target)
	}
	kinds := sampleTexts(separators(there, back))
	for _, without := range append([][]string{nil}, fields...) {
		for _, text := range kinds {
			if c.tries++; c.tries > maxSamples {
				return
			}
			t, ok := s.Sample(ctx, text, without)
			if !ok {
				continue
			}
			path, reason, decided := c.roundTrip(ctx, t, from, to)
			if reason != "" && len(without) > 0 {
				reason = "in an object without " + crd.PathText(without) + ", " + reason
			}
			if c.budget <= 0 {
				return
			}
			if reason != "" {
				c.reject(from, to, path, reason)
				return
			}
			if decided {
				break
			}
		}
	}
}

// roundTrip converts t to the other version and back. It returns the path of the first lost value and the reason. If
// the expressions cannot convert t to the other version, decided is false.
func (c *compiler) roundTrip(ctx context.Context, t object.Tree, from, to *resource.Version) (path, reason string,
	decided bool) {
	out := object.Copy(t)
	out["apiVersion"], out["kind"] = from.APIVersion, from.Definition.Names.Kind
	if c.result.step(ctx, out, from, to, &c.budget) != nil {
		return "", "", false
	}
	there := object.Copy(out)
	if err := c.result.step(ctx, out, to, from, &c.budget); err != nil {
		return ".", fmt.Sprintf("cannot convert %s back: %v", object.AppendJSON(nil, convertedFields(there)),
			err), true
	}
	if path = firstDifference(t, out, ""); path == "" {
		return "", "", true
	}
	return path, fmt.Sprintf("the value changes in a round trip: %s is converted to %s",
		object.AppendJSON(nil, convertedFields(t)), object.AppendJSON(nil, convertedFields(there))), true
}

// convertedFields returns the fields of t except metadata, apiVersion and kind.
func convertedFields(t object.Tree) object.Tree {
	out := object.Tree{}
	for k, v := range t {
		if k != "metadata" && k != "apiVersion" && k != "kind" {
			out[k] = v
		}
	}
	return out
}

// firstDifference returns the path of the first value in a sample that is missing or different in the converted sample.
// It returns "" if there is no such value. Empty objects may be missing.
func firstDifference(sample, converted any, path string) string {
	switch a := sample.(type) {
	case object.Tree:
		b, _ := converted.(object.Tree)
		for _, name := range slices.Sorted(maps.Keys(a)) {
			if p := firstDifference(a[name], b[name], path+"."+name); p != "" {
				return p
			}
		}
		return ""
	case []any:
		b, _ := converted.([]any)
		if len(a) != len(b) {
			return path
		}
		for i := range a {
			if p := firstDifference(a[i], b[i], path+"["+strconv.Itoa(i)+"]"); p != "" {
				return p
			}
		}
		return ""
	}
	if !object.Equal(sample, converted) {
		return path
	}
	return ""
}
