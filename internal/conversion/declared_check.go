package conversion

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/schema"
)

// Limits of the samples that a declaration is tried on when a CRD is written.
const (
	maxSamples    = 500 // for all ways
	maxSeparators = 4
)

// CheckDeclared says what is wrong with the conversion that a CRD declares, of which d has been made, and what
// its expressions cost. Nothing may be lost on the way from a version to the storage version and back, nor the other
// way round:
//
//   - each field of a schema has to be carried over, or to be read by an expression of that way;
//   - samples made from the schema, in which single fields are left out, have to come back as they were.
//
// An expression may lose part of what it reads nevertheless, for values that no sample has.
func CheckDeclared(ctx context.Context, d *resource.Definition) ([]Cost, field.ErrorList) {
	if d.Custom == nil || d.Custom.Conversion.Declared == "" {
		return nil, nil
	}
	c := compiler{definition: d, budget: celconfig.RuntimeCELCostBudget}
	if c.compile(); len(c.errs) > 0 {
		return c.costs, c.errs
	}
	for _, check := range []func(context.Context, *resource.Version, *resource.Version){c.reads, c.samples} {
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

// reads checks that each field of a version is carried over to another, or read.
func (c *compiler) reads(_ context.Context, from, to *resource.Version) {
	a, err := from.Schema()
	b, toErr := to.Schema()
	if err != nil || toErr != nil {
		c.refuse(from, to, ".", "has no schema")
		return
	}
	var set, read [][]string
	for _, d := range c.result.ways[route{versionName(from), versionName(to)}] {
		set, read = append(set, d.Target), append(read, d.Reads...)
	}
	for _, l := range schema.LostFields(a, b, set, read) {
		c.refuse(from, to, l.Path, l.Reason)
	}
}

func (c *compiler) refuse(from, to *resource.Version, path, why string) {
	c.errs = append(c.errs, field.Invalid(annotation(), path, fmt.Sprintf("lost on the way from %s to %s: it %s", versionName(from), versionName(to), why)))
}

// separators are what expressions take strings apart by, or put them together with.
func separators(ways ...[]*schema.Derivation) []string {
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

// texts are the kinds of strings that samples have, the likeliest first.
func texts(separators []string) []func(int) string {
	all := []func(int) string{func(i int) string { return "aB" + strconv.Itoa(i) }}
	for _, s := range separators {
		all = append(all, func(i int) string { return "aB" + strconv.Itoa(i) + s + strconv.Itoa(i) })
	}
	return append(all, strconv.Itoa)
}

// samples sends an object there and back: with all fields, and without each of those that expressions deal with. Of the
// kinds of strings the first counts that the way there can take.
func (c *compiler) samples(ctx context.Context, from, to *resource.Version) {
	s, err := from.Schema()
	if err != nil {
		return // said before
	}
	there, back := c.result.ways[route{versionName(from), versionName(to)}], c.result.ways[route{versionName(to), versionName(from)}]
	var fields [][]string
	for _, d := range there {
		fields = append(fields, d.Reads...)
	}
	for _, d := range back {
		fields = append(fields, d.Target)
	}
	kinds := texts(separators(there, back))
	for _, without := range append([][]string{nil}, fields...) {
		for _, text := range kinds {
			if c.tries++; c.tries > maxSamples {
				return
			}
			t, ok := s.Sample(ctx, text, without)
			if !ok {
				continue
			}
			path, why, decided := c.roundTrip(ctx, t, from, to)
			if why != "" && len(without) > 0 {
				why += " where there is no " + schema.PathText(without)
			}
			if c.budget <= 0 {
				return
			}
			if why != "" {
				c.refuse(from, to, path, why)
				return
			}
			if decided {
				break
			}
		}
	}
}

// roundTrip says what became of t; decided is false where the expressions cannot take it.
func (c *compiler) roundTrip(ctx context.Context, t object.Tree, from, to *resource.Version) (path, why string, decided bool) {
	out := object.Copy(t)
	out["apiVersion"], out["kind"] = from.APIVersion, from.Definition.Names.Kind
	if c.result.hop(ctx, out, from, to, &c.budget) != nil {
		return "", "", false
	}
	there := object.Copy(out)
	if err := c.result.hop(ctx, out, to, from, &c.budget); err != nil {
		return ".", fmt.Sprintf("cannot come back as %s: %v", object.AppendJSON(nil, without(there)), err), true
	}
	if path = lost(t, out, ""); path == "" {
		return "", "", true
	}
	return path, fmt.Sprintf("is not what it was in %s, which became %s", object.AppendJSON(nil, without(t)), object.AppendJSON(nil, without(there))), true
}

// without is t without what no conversion touches.
func without(t object.Tree) object.Tree {
	out := object.Tree{}
	for k, v := range t {
		if k != "metadata" && k != "apiVersion" && k != "kind" {
			out[k] = v
		}
	}
	return out
}

// lost is the path of the first value in was that is not in is, or not the same; "" if there is none. An object
// without fields may go.
func lost(was, is any, path string) string {
	switch a := was.(type) {
	case object.Tree:
		b, _ := is.(object.Tree)
		for _, name := range slices.Sorted(maps.Keys(a)) {
			if p := lost(a[name], b[name], path+"."+name); p != "" {
				return p
			}
		}
		return ""
	case []any:
		b, _ := is.([]any)
		if len(a) != len(b) {
			return path
		}
		for i := range a {
			if p := lost(a[i], b[i], path+"["+strconv.Itoa(i)+"]"); p != "" {
				return p
			}
		}
		return ""
	}
	if !object.Equal(was, is) {
		return path
	}
	return ""
}
