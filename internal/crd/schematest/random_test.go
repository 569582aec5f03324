package schematest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/warning"

	"github.com/trellis-k8s/trellis/internal/crd"
	"github.com/trellis-k8s/trellis/internal/object"
)

// pair is one schema that both implementations have compiled.
type pair struct {
	text   []byte
	ours   *crd.Compiled
	theirs *upstream
}

func newPair(text []byte) (*pair, error) { return newPairOf(text, false) }

// newPairOf returns a pair for a CRD that may preserve unknown fields.
func newPairOf(text []byte, preserve bool) (*pair, error) {
	theirs, err := newUpstream(text, preserve)
	if err != nil {
		return nil, err
	}
	ours, err := crd.Compile(text, preserve)
	if err != nil {
		return nil, fmt.Errorf("only Trellis rejects the schema: %w", err)
	}
	return &pair{text, ours, theirs}, nil
}

// verdict is the result for an object.
type verdict int

const (
	accepted verdict = iota
	refused
	malformed // an embedded resource could not be coerced
)

// normalize normalizes copies of t with both implementations and returns the result and the difference. The result is
// nil if t cannot be normalized.
func (p *pair) normalize(t object.Tree) (object.Tree, string) {
	a, b := object.Copy(t), object.Copy(t)
	got, gotErr := p.ours.Normalize(a)
	want, wantErr := p.theirs.normalize(b, true)
	switch {
	case (gotErr == nil) != (wantErr == nil):
		return nil, fmt.Sprintf("coercion: ours %v, upstream %v", gotErr, wantErr)
	case gotErr != nil:
		for range 64 { // upstream's error is about a random one of several values
			if gotErr.Error() == wantErr.Error() {
				return nil, ""
			}
			_, wantErr = p.theirs.normalize(object.Copy(t), true)
		}
		return nil, fmt.Sprintf("coercion: ours %v, upstream %v", gotErr, wantErr)
	case !slices.Equal(got, want):
		return nil, fmt.Sprintf("unknown fields:\nours     %q\nupstream %q", got, want)
	}
	if c := object.Copy(t); p.normalizeUncollected(c) {
		return a, sameTrees(a, c)
	}
	return a, sameTrees(a, b)
}

// normalizeUncollected normalizes t with upstream's implementation without collecting unknown fields, and reports
// whether that succeeds. It does nothing and returns false if collecting makes no difference.
func (p *pair) normalizeUncollected(t object.Tree) bool {
	if !bytes.Contains(p.text, []byte("embedded-resource")) {
		return false
	}
	_, err := p.theirs.normalize(t, false)
	return err == nil
}

func sameTrees(a, b object.Tree) string {
	if x, y := object.AppendJSON(nil, a), object.AppendJSON(nil, b); !bytes.Equal(x, y) || !object.Equal(a, b) {
		return fmt.Sprintf("object:\nours     %s\nupstream %s", x, y)
	}
	return ""
}

// normalizeStored does the same as normalize for stored objects.
func (p *pair) normalizeStored(t object.Tree) (object.Tree, string) {
	a, b := object.Copy(t), object.Copy(t)
	p.ours.NormalizeStored(a)
	p.theirs.normalizeStored(b)
	return a, sameTrees(a, b)
}

// warnings collects upstream's warnings.
type warnings []string

func (w *warnings) AddWarning(_, text string) { *w = append(*w, text) }

// validate validates a create of t, or an update from old to t if old is not nil. If status is true, it validates a
// write of the status.
func (p *pair) validate(t, old object.Tree, status bool) (accepted bool, difference string) {
	var ours warnings
	before := object.AppendJSON(nil, t)
	validate, theirs := p.ours.Validate, p.theirs.validate
	if status {
		validate, theirs = p.ours.ValidateStatus, p.theirs.validateStatus
	}
	got := append(errorTexts(validate(context.Background(), t, old,
		func(text string) { ours = append(ours, "warning "+text) })), ours...)
	if !bytes.Equal(before, object.AppendJSON(nil, t)) {
		return false, "ours changed the object"
	}
	if old != nil && !status && p.theirs.panicsOnUpdate() {
		return len(got) == len(ours), ""
	}
	accepted, got = len(got) == len(ours), without(got, p.theirs.permittedListErrors(t, old))
	var want, seen []string
	for range upstreamRuns {
		var warnings warnings
		want = errorTexts(theirs(warning.WithWarningRecorder(context.Background(), &warnings), t, old))
		for _, text := range warnings {
			want = append(want, "warning "+text)
		}
		if seen = append(seen, want...); sameErrors(got, want) {
			return accepted, ""
		}
	}
	slices.Sort(seen)
	if len(got) == len(want) && len(without(got, seen)) == 0 {
		return false, ""
	}
	if len(p.ours.ValidateValues(context.Background(), t, nil)) > 0 && sameExceptTexts(got, want) {
		return false, ""
	}
	return false, fmt.Sprintf("errors, of %d and %d:\nours     %q\nupstream %q", len(got), len(want),
		without(got, want), without(want, got))
}

// sameExceptTexts compares only the paths and types of errors. With ratcheting, rules can be evaluated on values of
// wrong types. The texts of their errors depend on the iteration order of a map in both implementations.
func sameExceptTexts(got, want []string) bool {
	place := func(lines []string) []string {
		for i, line := range lines {
			lines[i], _, _ = strings.Cut(line, " Invalid value: ")
		}
		return lines
	}
	return slices.Equal(place(without(got, want)), place(without(want, got)))
}

// sameErrors reports whether both lists of errors are equal. It sorts them, because upstream iterates over maps in
// random order. If a list-type map has a non-scalar key, a rule that compares the list panics in upstream, and
// upstream reports the panic as an error. sameErrors ignores the errors of such a list.
func sameErrors(got, want []string) bool {
	for _, w := range want {
		if at, _, _ := strings.Cut(w, " Invalid value "); strings.Contains(w, "hash of unhashable type") {
			there := func(line string) bool { return strings.HasPrefix(strings.TrimPrefix(line, "warning "), at+" ") }
			got, want = slices.DeleteFunc(slices.Clone(got), there), slices.DeleteFunc(slices.Clone(want), there)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if len(got) >= maxErrors && len(want) > len(got) { // Trellis reports at most maxErrors errors
		got = slices.DeleteFunc(slices.Clone(got), func(g string) bool {
			_,
				found := slices.BinarySearch(want, g)
			return !found
		})
		if len(got) < maxErrors {
			return false
		}
		want = slices.DeleteFunc(slices.Clone(want), func(w string) bool {
			_,
				found := slices.BinarySearch(got, w)
			return !found
		})
	}
	return slices.Equal(got, want)
}

// upstreamRuns is the maximum number of runs of upstream's validation, whose errors depend on the iteration order of
// maps. Go iterates over a small map from a random one of eight slots. An order that begins with the second of two
// keys has a probability of only 1/8, so 40 runs miss it once in 200 tests.
const upstreamRuns = 400

// maxErrors is the maximum number of errors that Trellis reports for an object.
const maxErrors = 1000

// without returns the elements of a that are missing in b. a and b are sorted.
func without(a, b []string) (rest []string) {
	for _, v := range a {
		if i, found := slices.BinarySearch(b, v); found {
			b = slices.Delete(slices.Clone(b), i, i+1)
		} else {
			rest = append(rest, v)
		}
	}
	return rest
}

// write creates t, or updates old to t. difference is empty if both implementations have the same result.
func (p *pair) write(t, old object.Tree) (v verdict, difference string) {
	if old != nil {
		if old, difference = p.normalizeStored(old); difference != "" {
			return 0, "restored: " + difference
		}
	}
	t, difference = p.normalize(t)
	if difference != "" || t == nil {
		return malformed, difference
	}
	if old != nil {
		if _, difference := p.validate(t, old, true); difference != "" {
			return 0, "status: " + difference
		}
	}
	ok, difference := p.validate(t, old, false)
	if !ok {
		v = refused
	}
	return v, difference
}

// tally counts verdicts.
type tally struct{ schemas, skipped, accepted, refused, malformed int }

func (c *tally) add(v verdict) {
	switch v {
	case accepted:
		c.accepted++
	case refused:
		c.refused++
	default:
		c.malformed++
	}
}

func (c *tally) count(ok bool) {
	if ok {
		c.accepted++
	} else {
		c.refused++
	}
}

func (c *tally) writes() int { return c.accepted + c.refused + c.malformed }

// trial generates a schema and objects from the source and compares the results of both implementations.
func trial(from *source, c *tally) error {
	g := &gen{source: from, rules: true, old: true}
	root, preserve := g.root(), false
	if g.oneIn(12) {
		root, preserve = g.legacy(root)
	}
	p, err := newPairOf(asJSON(root), preserve)
	if err != nil || !preserve && root != nil && p.theirs.structuralError() != nil {
		c.skipped++
		return nil
	}
	c.schemas++
	for i, rate := range []int{0, 30, 0, 6} {
		g.wrongValueRate = rate
		t := g.object(root)
		var old object.Tree
		if i%2 == 1 || g.oneIn(4) {
			g.wrongValueRate = pick(g.source, 0, 20, 5)
			if old = copied(t).(map[string]any); g.oneIn(4) {
				old = g.object(root)
			} else {
				old = g.changed(old, g.object(root)).(map[string]any)
			}
		}
		v, difference := p.write(t, old)
		if difference != "" {
			return fmt.Errorf("%s\npreserve %t schema %s\nobject %s\nold    %s", difference, preserve, p.text,
				object.AppendJSON(nil, t), object.AppendJSON(nil, old))
		}
		c.add(v)
	}
	return nil
}

func seeds(otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv("TEST_SEEDS")); err == nil {
		return n
	}
	return otherwise
}

// TestRandom checks that random objects of random schemas have upstream's results. At least three of ten objects
// are accepted and at least three of ten are rejected.
// SCH-003, SCH-019, SCH-028, DEF-002, DEF-006, VAL-018, VAL-024, VAL-025, VAL-029
func TestRandom(t *testing.T) {
	var c tally
	failures := 0
	for seed := range seeds(400) {
		if err := trial(seeded(seed), &c); err != nil {
			t.Errorf("seed %d: %v", seed, err)
			if failures++; failures == 5 {
				break
			}
		}
	}
	t.Logf("%+v", c)
	if 10*c.accepted < 3*c.writes() || 10*c.refused < 3*c.writes() || c.skipped > c.schemas/3 {
		t.Errorf("the generator produces too few accepted or rejected objects: %+v", c)
	}
}
