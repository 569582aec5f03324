package schematest

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/internal/fixture/outside"
	"github.com/trellis-k8s/trellis/internal/object"
)

// corpus is the directory of real CRDs and objects next to the module.
var corpus = outside.Path("corpus")

// kind is a served version of a CRD with objects at this version.
type kind struct {
	name    string
	schema  object.Tree
	objects []sample
}

type sample struct {
	file string
	tree object.Tree
}

func yamlFiles(t testing.TB, folder string) (all []sample) {
	t.Helper()
	if _, err := os.Stat(corpus); err != nil {
		t.Skip("the corpus of real CRDs does not exist: ../shared/corpus, beside the module")
	}
	err := filepath.WalkDir(filepath.Join(corpus, folder), func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".yaml") {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		tree, _, err := object.DecodeYAML(data)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, sample{strings.TrimPrefix(path, corpus+"/"), tree})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// nested returns the value at a path of fields, or the zero value.
func nested[T any](v any, path ...string) T {
	for _, p := range path {
		m, _ := v.(object.Tree)
		v = m[p]
	}
	out, _ := v.(T)
	return out
}

// kinds returns all versions of all CRDs with the objects of the given directories, sorted by name.
func kinds(t testing.TB, folders ...string) []*kind {
	t.Helper()
	byType := map[string][]*kind{}
	var all []*kind
	for _, crd := range yamlFiles(t, "crds") {
		for _, v := range nested[[]any](crd.tree, "spec", "versions") {
			k := &kind{name: strings.TrimSuffix(crd.file, ".yaml") + " " + nested[string](v, "name"),
				schema: nested[object.Tree](v, "schema", "openAPIV3Schema")}
			if k.schema == nil {
				continue
			}
			id := nested[string](crd.tree, "spec", "group") + "/" + nested[string](v, "name") + " " +
				nested[string](crd.tree, "spec", "names", "kind")
			byType[id] = append(byType[id], k)
			all = append(all, k)
		}
	}
	for _, folder := range folders {
		for _, s := range yamlFiles(t, folder) {
			for _, k := range byType[nested[string](s.tree, "apiVersion")+" "+nested[string](s.tree, "kind")] {
				k.objects = append(k.objects, s)
			}
		}
	}
	slices.SortFunc(all, func(a, b *kind) int { return cmp.Compare(a.name, b.name) })
	return all
}

// run selects the tested part of the corpus and the number of random changes.
type run struct {
	changes      int // of each object
	seed         int
	shard, every int // kinds with index%every == shard are tested
}

// corpusRun returns the run that environment variables select. By default it is a small part of the corpus.
func corpusRun(t *testing.T) run {
	r := run{changes: 2, every: 24}
	n, err := strconv.Atoi(os.Getenv("TEST_MUTATIONS"))
	if err != nil {
		return r
	}
	r.changes, r.every = n, 1
	r.seed, _ = strconv.Atoi(os.Getenv("TEST_SEED"))
	if shard := os.Getenv("TEST_SHARD"); shard != "" {
		if _, err := fmt.Sscanf(shard, "%d/%d", &r.shard, &r.every); err != nil || r.every < 1 {
			t.Fatalf("TEST_SHARD is %q, not like 0/8", shard)
		}
	}
	return r
}

// change modifies t at random. It keeps apiVersion, kind and metadata.
func (g *gen) change(t object.Tree) {
	kept := object.Tree{}
	for _, k := range []string{"apiVersion", "kind", "metadata"} {
		if v, ok := t[k]; ok {
			kept[k] = v
			delete(t, k)
		}
	}
	g.mutated(t)
	maps.Copy(t, kept)
}

// mutated returns v with one change at a random position.
func (g *gen) mutated(v any) any {
	switch v := v.(type) {
	case object.Tree:
		if len(v) > 0 && g.n(5) > 0 {
			k := pick(g.source, slices.Sorted(maps.Keys(v))...)
			switch g.n(12) {
			case 0:
				delete(v, k)
			case 1:
				v[k+"x"] = v[k]
			case 2:
				v[k] = nil
			default:
				v[k] = g.mutated(v[k])
			}
			return v
		}
	case []any:
		if len(v) > 0 && g.n(5) > 0 {
			i := g.n(len(v))
			switch g.n(8) {
			case 0:
				return append(v, copied(v[i]))
			case 1:
				return slices.Delete(v, i, i+1)
			case 2:
				return v[:0]
			case 3:
				v[0], v[i] = v[i], v[0]
			default:
				v[i] = g.mutated(v[i])
			}
			return v
		}
	case string:
		return pick[any](g.source, v+"x", "", strings.ToUpper(v), v+"é", " "+v, strings.Repeat(v, 9), int64(1), nil,
			copied(pick(g.source, oddities...)), pick(g.source, texts...))
	case int64:
		return pick[any](g.source, v+1, -v, v-1, v*1000, float64(v)+0.5, float64(v), strconv.FormatInt(v, 10), nil,
			int64(0))
	case bool:
		return pick[any](g.source, !v, "true", nil)
	}
	return copied(pick(g.source, oddities...))
}

// check compares the results of both implementations for the objects of k, for changed copies of these objects, and
// for generated objects.
func (k *kind) check(c *tally, r run) error {
	p, err := newPair(object.AppendJSON(nil, k.schema))
	if err != nil {
		return fmt.Errorf("%s: %w", k.name, err)
	}
	try := func(what string, t, old object.Tree) error {
		v, difference := p.write(t, old)
		if difference != "" {
			return fmt.Errorf("%s: %s\n%s\nobject %s\nold    %s", k.name, what, difference, object.AppendJSON(nil, t),
				object.AppendJSON(nil, old))
		}
		c.add(v)
		return nil
	}
	name := fnv.New32a()
	_, _ = name.Write([]byte(k.name))
	g := &gen{source: seeded(int(name.Sum32()) + r.seed<<32)}
	for i := range 4 {
		g.wrongValueRate = []int{0, 40, 0, 10}[i]
		t := g.object(k.schema)
		g.wrongValueRate = 30
		old := g.changed(object.Copy(t), g.object(k.schema)).(object.Tree)
		if i < 2 {
			old = nil
		}
		if err := try("made "+strconv.Itoa(i), t, old); err != nil {
			return err
		}
	}
	for _, s := range k.objects {
		if err := cmp.Or(try(s.file, s.tree, nil), try(s.file, s.tree, s.tree)); err != nil {
			return err
		}
		for i := range r.changes {
			t, old := object.Copy(s.tree), object.Tree(nil)
			for range 1 + g.n(3) {
				g.change(t)
			}
			if i%3 > 0 {
				old = object.Copy(s.tree)
				for i%3 > 1 && g.n(3) > 0 {
					old = object.Copy(t)
					g.change(t)
				}
			}
			if err := try(fmt.Sprint(s.file, " changed ", i), t, old); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestCorpus checks that real objects of real CRDs have upstream's results on create and on update, unchanged and
// with random changes. By default it tests a part of the corpus. TEST_MUTATIONS sets the number of changes number of
// random changes of each object. TEST_SEED=7 selects other changes. TEST_SHARD=0/8 tests an eighth of the kinds. The
// same settings always select the same objects and changes.
// SCH-003, VAL-018, VAL-029, VAL-166
func TestCorpus(t *testing.T) {
	r := corpusRun(t)
	var c tally
	for i, k := range kinds(t, "samples", "samples-placeholder", "samples-negative-path", "rejected") {
		if i%r.every != r.shard {
			continue
		}
		if err := k.check(&c, r); err != nil {
			t.Errorf("%v", err)
		}
		c.schemas++
		k.objects = nil
	}
	t.Logf("%+v", c)
	if os.Getenv("TEST_SHARD") == "" && (c.accepted < 50 || c.refused < 50) { // some shards have no samples
		t.Errorf("too few samples in the corpus: %+v", c)
	}
}
