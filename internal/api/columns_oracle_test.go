package api

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/api/encoding"
	"github.com/trellis-k8s/trellis/internal/crd/definition"
	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/fixture/outside"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// tableComparer compares Trellis' Tables of a custom kind with the Tables of upstream's convertor. Both use the
// same columns.
type tableComparer struct {
	t       testing.TB
	columns []apiextensionsv1.CustomResourceColumnDefinition
	version *resource.Version
	rest.TableConvertor
}

// withColumns returns a tableComparer for a CRD with the given columns.
func withColumns(t testing.TB, columns []apiextensionsv1.CustomResourceColumnDefinition) *tableComparer {
	t.Helper()
	crd := object.Tree{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": object.Tree{"name": "shows.example.com"},
		"spec": object.Tree{"group": "example.com", "scope": "Namespaced",
			"names": object.Tree{"plural": "shows", "kind": "Show"},
			"versions": []any{object.Tree{"name": "v1", "served": true, "storage": true,
				"additionalPrinterColumns": plainTree(t, columns)}}}}
	d := definition.FromCRD(&storage.Record{Key: definition.CRDPrefix + "shows.example.com",
		Value: object.Pack(crd, 0).JSON()})
	if d == nil {
		t.Fatal("FromCRD returned no definition")
	}
	if len(columns) == 0 { // upstream's handler uses this default
		columns = []apiextensionsv1.CustomResourceColumnDefinition{{Name: "Age", Type: "date",
			JSONPath:    ".metadata.creationTimestamp",
			Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]}}
	}
	c := &tableComparer{t: t, columns: columns, version: d.Storage}
	c.TableConvertor, _ = tableconvertor.New(columns)
	return c
}

// plainTree converts v to decoded JSON.
func plainTree(t testing.TB, v any) any {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	tree, _, err := object.DecodeJSON(append(append([]byte(`{"v":`), data...), '}'))
	if err != nil {
		t.Fatal(err)
	}
	return tree["v"]
}

// decodedTable holds the parts of a Table that are compared.
type decodedTable struct {
	ColumnDefinitions []metav1.TableColumnDefinition
	Rows              []struct{ Cells []any }
}

// trellis returns Trellis' Table of an object. tableVersion is the version of the Table: v1 or v1beta1.
func (c *tableComparer) trellis(o record.Object, tableVersion string) decodedTable {
	c.t.Helper()
	m := encoding.Media{View: encoding.ViewTable, Version: tableVersion}
	data, err := m.AppendObject(nil, o, encoding.NewTable(c.version, tableVersion,
		&metav1.TableOptions{IncludeObject: metav1.IncludeNone}))
	if err != nil {
		c.t.Fatal(err)
	}
	return decodeTable(c.t, data)
}

func decodeTable(t testing.TB, data []byte) (s decodedTable) {
	t.Helper()
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatalf("cannot decode Table %s: %v", data, err)
	}
	return s
}

// upstream returns the Table of upstream's convertor. Tables of the same object may differ between calls, because the
// order of Go's maps is random.
func (c *tableComparer) upstream(o record.Object) decodedTable {
	c.t.Helper()
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(o.AppendJSON(nil)); err != nil {
		c.t.Fatal(err)
	}
	table, err := c.ConvertToTable(c.t.Context(), u, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	data, err := json.Marshal(table)
	if err != nil {
		c.t.Fatal(err)
	}
	return decodeTable(c.t, data)
}

// compare reports whether Trellis and upstream return the same Table for an object. It fails the test if they differ.
func (c *tableComparer) compare(tree object.Tree) bool {
	c.t.Helper()
	o := record.NewObject(c.version, 7, object.Pack(tree, 0))
	got, want := c.trellis(o, "v1"), c.upstream(o)
	for range 300 { // both sides iterate over a map in random order if the path has a wildcard
		if reflect.DeepEqual(got, want) {
			return true
		}
		if !c.nondeterministic() {
			break
		}
		want = c.upstream(o)
	}
	c.t.Errorf("object %s\ncolumns  %+v\n     got %+v\nupstream %+v", o.AppendJSON(nil), c.columns, got, want)
	return false
}

// nondeterministic reports whether the JSONPath of a column has a wildcard or a recursive descent. Both visit the
// keys of a map in random order.
func (c *tableComparer) nondeterministic() bool {
	for _, col := range c.columns {
		if strings.ContainsAny(col.JSONPath, "*") || strings.Contains(col.JSONPath, "..") {
			return true
		}
	}
	return false
}

// generator generates random JSONPaths and objects. Both contain the same few names, so that paths often match a
// value.
type generator struct{ *rand.Rand }

var (
	generatedNames = []string{"a", "b", "c", "a.b", "x/y", "x-y", "list", "n", "ünï", "with space", `q"t`, "it's", "",
		"0", "a[0]", "true"}
	generatedTypes = []string{"string", "integer", "number", "boolean", "date"}
	randomBytes    = ".[]()'\"\\,:*?@$ -+/=<>!0123abc|&~#\t"
)

func pick[T any](d generator, all []T) T { return all[d.IntN(len(all))] }

func (d generator) value(depth int) any {
	now := time.Now()
	n := 15
	if depth > 0 {
		n = 24
	}
	switch d.IntN(n) {
	case 0:
		return nil
	case 1:
		return d.IntN(2) == 0
	case 2, 3:
		return d.Int64N(20) - 10
	case 4:
		return pick(d, []any{int64(1) << 40, int64(-1) << 62, 1e18, 1e300, 0.1, 2.5, -3.0, 12345678.9, 1e-9,
			float64(1 << 53)})
	case 5:
		return pick(d, []any{"", "null", "yesterday", "0001-01-01T00:00:00Z", "2020-13-01T00:00:00Z", "2020-01-01",
			"<b>&", "5", "true", "a\nb\t\u2028", "é"})
	case 6:
		return now.Add(-pick(d, []time.Duration{30*time.Minute + 30*time.Second, 40*time.Hour + 30*time.Minute,
			20*24*time.Hour + time.Hour, -5 * time.Hour})).UTC().Format(time.RFC3339)
	case 7:
		return now.Add(-50*24*time.Hour - time.Hour).In(time.FixedZone("", 3600)).Format(time.RFC3339Nano)
	case 8, 9, 10, 11, 12, 13, 14:
		return pick(d, []any{"red", "green", "x", "a"})
	case 15, 16, 17, 18:
		list := make([]any, d.IntN(4))
		for i := range list {
			list[i] = d.value(depth - 1)
		}
		return list
	default:
		return d.tree(depth - 1)
	}
}

func (d generator) tree(depth int) object.Tree {
	t := object.Tree{}
	for range 1 + d.IntN(5) {
		t[pick(d, generatedNames)] = d.value(depth)
	}
	return t
}

func (d generator) step() string {
	name := pick(d, generatedNames)
	escaped := strings.NewReplacer(".", `\.`, "[", `\[`, "]", `\]`, " ", `\ `).Replace(name)
	switch d.IntN(16) {
	case 0:
		return "['" + name + "']"
	case 1:
		return `["` + name + `"]`
	case 2:
		return fmt.Sprintf("[%d]", d.IntN(6)-2)
	case 3:
		return pick(d, []string{"[*]", ".*", "[:]", "[]"})
	case 4:
		return fmt.Sprintf("[%d:%d]", d.IntN(4)-1, d.IntN(5)-1)
	case 5:
		return pick(d, []string{"[1:]", "[:2]", "[::2]", "[0:3:2]", "[-1:]", "[:-1]", "[::0]", "[99]", "[1:1]",
			"[9223372036854775807]", "[99999999999999999999]"})
	case 6:
		return pick(d, []string{"['a','b']", `["a","n"]`, "[0,1]", "['a', 0]", "[0,'a']", "[,]"})
	case 7:
		left := pick(d, []string{"@.a", "@.n", "@", "@.b.c", "@['a']", "$.a", "1"})
		right := pick(d, []string{`"x"`, `'red'`, "1", "2.5", "true", "@.b", `"a)b"`, `"\"q"`, "null"})
		return "[?(" + left + pick(d, []string{"==", "!=", "<", ">=", "=", " == ", "=~"}) + right + ")]"
	case 8:
		return pick(d, []string{"[?(@.a)]", "[?(@)]", "[?(@.b.c)]", "[?(!@.a)]", "[?()]", `[?(@.a=="x"&&@.b=="x")]`})
	case 9:
		return ".." + escaped
	default:
		return "." + escaped
	}
}

func (d generator) path() string {
	if d.IntN(6) == 0 {
		return pick(d, []string{".metadata.creationTimestamp", ".metadata.name", `.metadata.labels.x\.y/z`,
			".metadata.labels['x.y/z']", ".metadata", ".kind", ".apiVersion", ".metadata.resourceVersion",
			".metadata.finalizers[0]", ".metadata.generation"})
	}
	var b strings.Builder
	b.WriteString(pick(d, []string{".spec", ".spec", ".spec", ".status", ""}))
	for range 1 + d.IntN(3) {
		b.WriteString(d.step())
	}
	text := b.String()
	for d.IntN(5) == 0 { // insert or delete a character
		i := d.IntN(len(text) + 1)
		switch d.IntN(2) {
		case 0:
			text = text[:i] + string(randomBytes[d.IntN(len(randomBytes))]) + text[i:]
		default:
			text = text[:i] + text[min(i+1, len(text)):]
		}
	}
	return strings.ToValidUTF8(text, "") // strings in the JSON of a CRD are valid UTF-8
}

func (d generator) columns() []apiextensionsv1.CustomResourceColumnDefinition {
	columns := make([]apiextensionsv1.CustomResourceColumnDefinition, d.IntN(4))
	for i := range columns {
		columns[i] = apiextensionsv1.CustomResourceColumnDefinition{
			Name: fmt.Sprintf("C%d", i), Type: pick(d, generatedTypes), JSONPath: d.path(), Priority: int32(d.IntN(3)),
			Format: pick(d, []string{"", "", "int32", "int64", "float", "double", "byte", "date", "date-time",
				"password"}),
			Description: pick(d, []string{"", "a <description>"}),
		}
	}
	return columns
}

func (d generator) object() object.Tree {
	return object.Tree{"apiVersion": "example.com/v1", "kind": "Show", "spec": d.tree(3), "status": d.tree(2),
		"metadata": object.Tree{"name": "x", "namespace": "default", "uid": "u", "generation": int64(3),
			"labels":            object.Tree{"x.y/z": "label"},
			"finalizers":        []any{"example.com/f"},
			"creationTimestamp": time.Now().Add(-90*time.Hour - 30*time.Minute).UTC().Format(time.RFC3339)}}
}

// TestColumnsMatchUpstream compares Tables with upstream's for random columns and objects (PRN-002, PRN-007, PRN-009,
// PRN-010, PRN-011, PRN-012, PRN-013, PRN-014, PRN-015, PRN-017, PRN-018).
func TestColumnsMatchUpstream(t *testing.T) {
	rounds := 2000
	if testing.Short() {
		rounds = 300
	}
	seed := uint64(time.Now().UnixNano())
	d := generator{rand.New(rand.NewPCG(seed, 1))}
	nonEmpty := 0
	for range rounds {
		c := withColumns(t, d.columns())
		for range 4 {
			tree := d.object()
			if !c.compare(tree) {
				t.Fatalf("the Tables differ with seed %d", seed)
			}
			for _, cell := range c.upstream(record.NewObject(c.version, 0, object.Pack(tree, 0))).Rows[0].Cells[1:] {
				if cell != nil {
					nonEmpty++
				}
			}
		}
	}
	if nonEmpty < rounds/2 {
		t.Errorf("got %d cells with a value, want at least %d", nonEmpty, rounds/2)
	}
}

// FuzzColumns compares the cell of a column with upstream's, for any path and value (PRN-014, PRN-017).
func FuzzColumns(f *testing.F) {
	for _, path := range []string{".spec.a", `.spec.a\.b`, ".spec.list[?(@.a==\"x\")].b", ".spec['a','b']",
		".spec.list[0:2].a", ".spec..a", ".spec.list[-1]", ".spec[0"} {
		for i := range generatedTypes {
			f.Add(path, uint8(i), `{"a":"x","list":[{"a":"x","b":1},null,2.5]}`)
		}
	}
	f.Fuzz(func(t *testing.T, path string, typ uint8, spec string) {
		tree, _, err := object.DecodeJSON([]byte(spec))
		// Paths with braces are skipped, because braces can start a range loop. Upstream keeps the state of a loop
		// from one object to the next.
		if err != nil || strings.ContainsAny(path, "{}") || len(path) > 200 {
			return
		}
		c := withColumns(t, []apiextensionsv1.CustomResourceColumnDefinition{
			{Name: "C", Type: generatedTypes[int(typ)%len(generatedTypes)], JSONPath: path},
		})
		c.compare(object.Tree{"apiVersion": "example.com/v1", "kind": "Show", "metadata": object.Tree{"name": "x"},
			"spec": tree})
	})
}

// TestUnusualCells checks columns that select invalid dates or fields that are not in the stored bytes of an object
// (PRN-013, PRN-014, PRN-017).
func TestUnusualCells(t *testing.T) {
	c := withColumns(t, []apiextensionsv1.CustomResourceColumnDefinition{
		{Name: "A", Type: "date", JSONPath: ".spec.date"},
		{Name: "B", Type: "string", JSONPath: ".metadata.resourceVersion"},
		{Name: "C", Type: "string", JSONPath: ".apiVersion"},
		{Name: "D", Type: "string", JSONPath: ".metadata"},
		{Name: "E", Type: "string", JSONPath: `.spec.list[?(@.a=="x")].n`},
	})
	for _, date := range []any{"null", "", "0001-01-01T00:00:00Z", "soon", int64(5), nil, "2000-01-01T00:00:00Z"} {
		c.compare(object.Tree{"apiVersion": "example.com/v1", "kind": "Show", "metadata": object.Tree{"name": "x"},
			"spec": object.Tree{"date": date, "list": []any{object.Tree{"a": "x", "n": date},
				object.Tree{"a": "x", "n": "second"}}}})
	}
}

// TestWildcards compares the cells of JSONPaths that have wildcards with upstream's cells. The wildcards select
// from nulls, strings and nested lists. A name that only begins with * is not a wildcard.
func TestWildcards(t *testing.T) {
	paths := []string{
		".spec.a.*", ".spec.a.*.*", ".spec.a[*]", ".spec.a.*.b", ".spec.a.*.*.b", ".spec[0:2][-2].*<", ".spec.a.*<",
		".spec.a.*[0]", ".spec.*", "2.*",
	}
	lists := [][]any{
		{nil, "x"}, {nil}, {}, {""}, {"", "x"}, {[]any{nil, "y"}, "z"}, {"z", []any{"y"}}, {object.Tree{"b": nil}},
	}
	for _, path := range paths {
		for _, typ := range generatedTypes {
			columns := []apiextensionsv1.CustomResourceColumnDefinition{{Name: "C", Type: typ, JSONPath: path}}
			for _, list := range lists {
				withColumns(t, columns).compare(object.Tree{
					"apiVersion": "example.com/v1", "kind": "Show", "metadata": object.Tree{"name": "x"},
					"spec": object.Tree{"a": list},
				})
			}
		}
	}
}

// TestColumnsOfTheCorpus compares the Table of each sample in the corpus of real CRDs with upstream's. Some CRDs have
// only the default columns (PRN-001, PRN-003, PRN-005, PRN-008, PRN-018).
func TestColumnsOfTheCorpus(t *testing.T) {
	root := outside.Path("corpus")
	if _, err := os.Stat(root); err != nil {
		t.Skip("the corpus of real CRDs does not exist: ", root)
	}
	comparers := map[string]*tableComparer{}
	columns := 0
	eachYAML(t, filepath.Join(root, "crds"), func(data []byte) {
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(data, &crd); err != nil {
			t.Fatal(err)
		}
		for _, v := range crd.Spec.Versions {
			c := withColumns(t, v.AdditionalPrinterColumns)
			comparers[crd.Spec.Group+"/"+v.Name+" "+crd.Spec.Names.Kind] = c
			columns += len(v.AdditionalPrinterColumns)
			c.compare(object.Tree{"apiVersion": "example.com/v1", "kind": "Show",
				"metadata": object.Tree{"name": "bare"}})
		}
	})
	samples := 0
	eachYAML(t, filepath.Join(root, "samples"), func(data []byte) {
		tree, _, err := object.DecodeYAML(data)
		if err != nil {
			return
		}
		apiVersion, kind := tree["apiVersion"], tree["kind"]
		c := comparers[fmt.Sprint(apiVersion, " ", kind)]
		if c == nil || object.Metadata(tree) == nil {
			return
		}
		tree["apiVersion"], tree["kind"] = "example.com/v1", "Show"
		created := time.Now().Add(-90*time.Hour - 30*time.Minute)
		object.Metadata(tree)["creationTimestamp"] = created.UTC().Format(time.RFC3339)
		if object.Name(tree) == "" {
			object.Metadata(tree)["name"] = "generated"
		}
		c.compare(tree)
		samples++
	})
	t.Logf("%d versions with %d columns, %d samples", len(comparers), columns, samples)
	if columns < 1000 || samples < 100 {
		t.Error("the corpus has less than 1000 columns or 100 samples")
	}
}

// eachYAML calls f with the content of each YAML file below root.
func eachYAML(t *testing.T, root string, f func([]byte)) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "*", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f(data)
	}
}
