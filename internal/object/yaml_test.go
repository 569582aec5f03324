package object

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	goyaml "go.yaml.in/yaml/v2"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/fixture/outside"
)

// checkYAML compares DecodeYAML with upstream's YAML serializer.
func checkYAML(t *testing.T, data []byte) {
	t.Helper()
	var want Tree
	var wantDup []string
	js, wantErr := yaml.YAMLToJSON(data)
	if wantErr == nil {
		want, _, wantErr = upstreamDecode(js)
		if _, err := yaml.YAMLToJSONStrict(data); err != nil {
			wantDup = []string{err.Error()}
		}
	}
	got, gotDup, gotErr := DecodeYAML(data)
	if (gotErr == nil) != (wantErr == nil) || gotErr != nil && gotErr.Error() != wantErr.Error() {
		if gotErr != nil && wantErr != nil && strings.Contains(gotErr.Error(), "unsupported") {
			return // upstream reports any one of several unsupported keys
		}
		t.Fatalf("%.300q: got error %v, want upstream's %v", data, gotErr, wantErr)
	}
	if wantErr != nil {
		return
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%.300q:\n got %#v\nwant %#v", data, got, want)
	}
	if !reflect.DeepEqual(gotDup, wantDup) {
		t.Fatalf("%.300q: got duplicates %q, want upstream's %q", data, gotDup, wantDup)
	}
}

var yamlSeeds = []string{
	"", "null", "a: 1", "[1]", "hello", "a: [", "a: {b: 1, b: 2}", "a: 1\na: 2\n", "a: =\n",
	"a: 010\nb: 0o10\nc: 0x1F\nd: 0b11\ne: 1_000\n",
	"a: 9223372036854775807\nb: 9223372036854775808\nc: 18446744073709551615\nd: 18446744073709551616\ne: " +
		"-9223372036854775808\n",
	"a: 123456789012345678901234567890\n", "a: 1.0\nb: 1e3\nc: 1e20\nd: 4611686018427387904.0\ne: -0.0\nf: 1e-7\n",
	"a: .inf", "a: .nan",
	"a: yes\nb: on\nc: ~\nd: 'x'\ne: 2001-01-01\nf: !!timestamp 2001-01-01\n", "1: a\n2.5: b\ntrue: c\n", "null: a",
	"? [a]\n: b", "a: !!binary aGVsbG//\n",
	"a: &x {b: 1}\nc: *x\nd:\n  <<: *x\n  e: 2\n", "a: |\n  text\n  more\nb: >\n  folded\n  text\n",
	"---\na: 1\n---\nb: 2\n", `{"a": {"b": [1, "x"]}}`,
	"a: 60:30\n", "a: \"\\xff\\u2028\"\n", "\ta: 1", "a: b: c",
}

// TestDecodeYAMLAsUpstream checks that DecodeYAML returns the same results as sigs.k8s.io/yaml.
func TestDecodeYAMLAsUpstream(t *testing.T) {
	for _, s := range yamlSeeds {
		checkYAML(t, []byte(s))
	}
}

// TestDecodeAppliedAsYAML checks that JSON of an apply decodes to the same numbers as YAML. Whole numbers are
// integers in any notation.
func TestDecodeAppliedAsYAML(t *testing.T) {
	for _, number := range []string{
		"2.0", "1e2", "1E+2", "-0.0", "0.0", "1.5", "100e-2",
		"4611686018427387904.0", "9223372036854775807.0", "-9223372036854775808.0",
		"1e18", "1e19", "1e20", "1e21", "1e300", "9223372036854775808", "18446744073709551615", "-7", "1e-7",
	} {
		doc := []byte(`{"a":` + number + `,"b":[` + number + `]}`)
		want, _, err := DecodeYAML(doc)
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := DecodeApplied(doc); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %#v %v, want %#v", number, got, err, want)
		}
	}
}

func FuzzDecodeYAML(f *testing.F) {
	for _, s := range yamlSeeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if strings.ContainsAny(string(data), "?") || strings.Contains(string(data), "!!") {
			_, _, _ = DecodeYAML(data)
			return
		}
		var doc any
		if err := goyaml.Unmarshal(data, &doc); err == nil && ambiguous(doc) {
			_, _, _ = DecodeYAML(data)
			return
		}
		checkYAML(t, data)
	})
}

// TestDecodeYAMLAmbiguousKeys checks keys that become the same string. A string key always wins over a number, and
// an integer over a float.
func TestDecodeYAMLAmbiguousKeys(t *testing.T) {
	for range 100 {
		got, _, err := DecodeYAML([]byte("{0: int, .0: float, '0': string, 1.0: float, 1: int}"))
		if want := (Tree{"0": "string", "1": "int"}); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %v, %v, want %v", got, err, want)
		}
	}
}

// ambiguous reports whether a mapping in v has different keys that become the same string. Upstream keeps an
// arbitrary one of them.
func ambiguous(v any) bool {
	switch v := v.(type) {
	case []any:
		return slices.ContainsFunc(v, ambiguous)
	case map[any]any:
		keys := map[string]bool{}
		for k, member := range v {
			if key, err := yamlKey(k, member); err == nil {
				keys[key] = true
			}
			if ambiguous(member) {
				return true
			}
		}
		return len(keys) < len(v)
	}
	return false
}

// TestDecodeYAMLBombs checks that the expansion of a small document is bounded.
func TestDecodeYAMLBombs(t *testing.T) {
	laughs := "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
	for i := 1; i < 20; i++ {
		aliases := strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 9), ",")
		laughs += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, aliases)
	}
	long := "a: &a " + strings.Repeat("x", 1<<20) + "\nb: [" +
		strings.TrimSuffix(strings.Repeat("*a,", 1000), ",") + "]\n"
	deep := "a: " + strings.Repeat("[", 100000)
	for name, doc := range map[string]string{"laughs": laughs, "long": long, "deep": deep} {
		if _, _, err := DecodeYAML([]byte(doc)); err == nil {
			t.Errorf("document %s: got no error", name)
		}
	}
}

// TestDecodeYAMLCorpus checks that every file of the corpus decodes as in upstream.
func TestDecodeYAMLCorpus(t *testing.T) {
	root := outside.Path("corpus")
	if _, err := os.Stat(root); err != nil {
		t.Skip("the corpus is absent: ", err)
	}
	n := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".yaml") {
			return err
		}
		if n++; testing.Short() && n%20 != 0 || n%4 != 0 && strings.Contains(path, "/crds/") {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		checkYAML(t, data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
