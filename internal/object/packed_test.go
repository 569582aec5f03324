package object

import (
	"bytes"
	"fmt"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

func mustDecode(t testing.TB, s string) Tree {
	t.Helper()
	tree, _, err := DecodeJSON([]byte(s))
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// TestPackedGolden checks the stored form of an object byte for byte.
func TestPackedGolden(t *testing.T) {
	const body = `{"kind":"A","apiVersion":"g/v1","metadata":{"uid":"u","name":"n","resourceVersion":"9"}}`
	p := Pack(mustDecode(t, body), 0x1122334455667788)
	if got := string(p.JSON()); got != `{"apiVersion":"g/v1","kind":"A","metadata":{"name":"n","uid":"u"}}` {
		t.Errorf("got JSON %s", got)
	}
	if p.Fingerprint() != 0x1122334455667788 {
		t.Errorf("got fingerprint %x", p.Fingerprint())
	}
}

var packSeeds = []string{
	`{"apiVersion":"g/v1","kind":"A","metadata":{"name":"n"}}`,
	`{"apiVersion":"g/v1","kind":"A","metadata":{"uid":"n"}}`,
	`{"apiVersion":"g/v1","kind":"A","metadata":{"a":1,"uid":"n","zz":[{}]},"spec":{}}`,
	`{"apiVersion":"g/v1","kind":"A","metadata":{}}`,
	`{"apiVersion":"g/v1","kind":"A","metadata":{"resourceVersion":"5"}}`,
	`{"apiVersion":"g/v1","kind":"A"}`,
	`{"apiVersion":"g/v1","kind":"A","metadata":null}`,
	`{"apiVersion":"g/v1","kind":"A","metadata":"x"}`,
	`{"apiVersion":5,"metadata":{"name":"n"}}`,
	`{"metadata":{"name":"n"}}`,
	`{"AA":"x","action":{"kind":"B"},"apiVersion":"g/v1","kind":"A","lastTimestamp":null,"metadata":{"name":"n"}}`,
	`{"action":"x","apiVersion":"g/v1","kind":"A"}`,
	`{"AA":"x","apiVersion":"<\u2028","metadata":{"name":"\"}"}}`,
	`{}`,
}

func checkPacked(t *testing.T, tree Tree) {
	t.Helper()
	before := Copy(tree)
	p := Pack(tree, 7)
	if !Equal(before, tree) {
		t.Fatal("Pack changed its argument")
	}
	if again := Unpack(p.JSON()); again.Header != p.Header {
		t.Fatalf("unpacked %+v, packed %+v: %s", again.Header, p.Header, p.JSON())
	}
	for _, revision := range []int64{0, 1, 1 << 40} {
		want := Copy(tree)
		delete(Metadata(want), "resourceVersion")
		if m := Metadata(want); m != nil && revision > 0 {
			m["resourceVersion"] = fmt.Sprint(revision)
		}
		if got := p.AppendJSON(nil, revision); !bytes.Equal(got, AppendJSON(nil, want)) {
			t.Fatalf("got  %s\nwant %s", got, AppendJSON(nil, want))
		}
		got, err := p.Tree(revision)
		if err != nil || !Equal(got, want) {
			t.Fatalf("Tree: %v, %v, want %v", got, err, want)
		}
		if _, ok := want["apiVersion"].(string); ok {
			want["apiVersion"] = "other/v2<"
		}
		untyped := Copy(want)
		delete(untyped, "apiVersion")
		delete(untyped, "kind")
		if got := p.AppendUntyped([]byte("x"), revision); string(got[1:]) != string(AppendJSON(nil, untyped)) {
			t.Fatalf("got  %s\nwant %s", got, AppendJSON(nil, untyped))
		}
		if got := p.AppendJSONAs([]byte("x"), "other/v2<", revision); string(got[1:]) != string(AppendJSON(nil, want)) {
			t.Fatalf("got  %s\nwant %s", got, AppendJSON(nil, want))
		}
	}
}

// TestPacked checks that a packed object is served at any revision and apiVersion with the same content as the
// original object.
func TestPacked(t *testing.T) {
	for _, s := range packSeeds {
		checkPacked(t, mustDecode(t, s))
	}
	checkPacked(t, mustDecode(t, string(sample(t))))
}

func FuzzPack(f *testing.F) {
	for _, s := range packSeeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if tree, _, err := DecodeJSON(data); err == nil {
			checkPacked(t, tree)
		}
	})
}

// FuzzUnpack checks that an unpacked object is served with the content of its bytes, even if the bytes are invalid.
func FuzzUnpack(f *testing.F) {
	for _, s := range append(packSeeds, mustDecodeSeeds...) {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p := Unpack(data)
		p.AppendJSONAs(nil, "a", 5)
		p.AppendUntyped(nil, 5)
		p.AppendMetadata(nil, 5)
		tree, duplicates, err := DecodeJSON(data)
		if err != nil || len(duplicates) > 0 || p.MustDecode() {
			return
		}
		again, _, err := DecodeJSON(p.AppendJSON(nil, 5))
		if err != nil {
			t.Fatal(err)
		}
		if m := Metadata(tree); m != nil {
			m["resourceVersion"] = "5"
		}
		if !Equal(again, tree) {
			t.Fatalf("%s: %s", data, p.AppendJSON(nil, 5))
		}
	})
}

// mustDecodeSeeds are inputs that cannot be served without decoding.
var mustDecodeSeeds = []string{
	"", "{", "}", "k8s\x00", "[]", `{"metadata":{"name":"n"}`, `{"apiVersion":"g/v1","metadata":{"name":"n"`,
	`{"apiVersion":"g/v1","metadata":{"name":"n","resourceVersion":"5"}}`,
	`{"metadata":{"name":"n"},"apiVersion":"g/v1"}`,
}

// TestUnpackMustDecode checks that JSON from other encoders is served without decoding where possible, and decoded
// otherwise.
func TestUnpackMustDecode(t *testing.T) {
	for _, s := range mustDecodeSeeds {
		if !Unpack([]byte(s)).MustDecode() {
			t.Errorf("Unpack(%s): got MustDecode false, want true", s)
		}
	}
	for s, want := range map[string]string{
		`{"kind":"A","apiVersion":"g/v1","metadata":{"name":"n","creationTimestamp":null},"spec":{}}`: `{"kind":"A","apiVersion":"g/v1","metadata":{"name":"n","creationTimestamp":null,"resourceVersion":"7"},"spec":{}}`,
		`{"kind":"A", "apiVersion":"g/v1", "metadata": { "uid" : "u", "name":"n" } }`:                 `{"kind":"A", "apiVersion":"g/v1", "metadata": { "resourceVersion":"7","uid" : "u", "name":"n" } }`,
		`{"metadata": { } }`: `{"metadata": {"resourceVersion":"7" } }`,
	} {
		p := Unpack([]byte(s))
		if got := string(p.AppendJSON(nil, 7)); p.MustDecode() || got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	tree, err := Unpack([]byte(mustDecodeSeeds[7])).Tree(0)
	if err != nil || ResourceVersion(tree) != "" {
		t.Errorf("Tree(0): got %v, %v, want no resourceVersion", tree, err)
	}
	good := Pack(mustDecode(t, packSeeds[2]), 1).JSON()
	for n := range len(good) {
		if p := Unpack(good[:n]); !p.MustDecode() {
			if _, err := p.Tree(0); err == nil {
				t.Errorf("JSON truncated to %d bytes: got no error", n)
			}
		}
	}
}

// TestScanMeta checks that scanned metadata equals decoded metadata.
func TestScanMeta(t *testing.T) {
	tree := mustDecode(t, `{"apiVersion":"v1","z":{"metadata":{"name":"no"}},
		"metadata":{"annotations":{"name":"x","a":"}\\\""},"name":"n\u00e9","namespace":"ns","uid":"u-1","generation":12,
		"deletionTimestamp":"2026-01-01T00:00:00Z","finalizers":["b","a\n"],"labels":{"z":"1","a":"2","m":""},
		"managedFields":[{"fieldsV1":{"f:name":{}}}]},"spec":{"a":[1,2,{"b":"}"}]}}`)
	m, err := ScanMeta(Pack(tree, 0).JSON())
	if err != nil {
		t.Fatal(err)
	}
	want := &Meta{
		Name: "né", Namespace: "ns", UID: "u-1", Generation: 12,
		DeletionTimestamp: "2026-01-01T00:00:00Z", Finalizers: []string{"b", "a\n"},
		Labels: Labels{{"a", "2"}, {"m", ""}, {"z", "1"}},
	}
	if !reflect.DeepEqual(m, want) {
		t.Fatalf("got %+v, want %+v", m, want)
	}
	var l labels.Labels = m.Labels
	if v, ok := l.Lookup("m"); !ok || v != "" || l.Has("q") || l.Get("z") != "1" {
		t.Fatalf("got labels %v, want a=2, m= and z=1", m.Labels)
	}
	sel, err := labels.Parse("a in (2,3),!q,z=1")
	if err != nil || !sel.Matches(m.Labels) {
		t.Fatalf("selector does not match labels %v: %v", m.Labels, err)
	}
}

// TestScanMetaUnexpectedTypes checks that metadata of an unexpected type is treated as absent, and that malformed
// JSON is an error.
func TestScanMetaUnexpectedTypes(t *testing.T) {
	for in, want := range map[string]string{
		`{"metadata":{"name":5,"labels":{"a":1,"b":"c"},"finalizers":[1,"x",{}],"generation":"1"}}`: `{Name: Labels:[{b c}] Finalizers:[x]}`,
		`{"metadata":null}`: `{Name: Labels:[] Finalizers:[]}`,
		`{"metadata":{}}`:   `{Name: Labels:[] Finalizers:[]}`,
		` { "metadata" : { "name" : "x" , "labels" : { "b" : "1" , "a" : "2" } } } `: `{Name:x Labels:[{a 2} {b 1}] Finalizers:[]}`,
		`{}`: `{Name: Labels:[] Finalizers:[]}`,
		`[]`: "error", ``: "error", `{"metadata":{"name":"x"`: "error", `{"a":`: "error", `{"a" "b"}`: "error",
	} {
		got := "error"
		if m, err := ScanMeta([]byte(in)); err == nil {
			got = fmt.Sprintf("{Name:%s Labels:%v Finalizers:%v}", m.Name, m.Labels, m.Finalizers)
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

func FuzzScan(f *testing.F) {
	for _, s := range append(packSeeds, decodeSeeds...) {
		f.Add([]byte(s))
	}
	f.Add(sample(f))
	paths := [][]string{{"metadata", "name"}, {"metadata"}, {"spec", "a", "b"}, {"a"}, {""}, {"a", "b"}, {}}
	f.Fuzz(func(t *testing.T, data []byte) {
		out := make([][]byte, len(paths))
		Fields(data, paths, out)
		m, scanErr := ScanMeta(data)
		tree, dups, err := DecodeJSON(data)
		if err != nil || len(dups) > 0 || len(bytes.TrimSpace(data)) < 2 || bytes.TrimSpace(data)[0] != '{' {
			return
		}
		if scanErr != nil || m.Name != Name(tree) || m.Namespace != Namespace(tree) ||
			len(m.Labels) < len(StringMap(Metadata(tree), "labels")) || m.Generation != Generation(tree) {
			t.Fatalf("got %v %+v, want the metadata of %v", scanErr, m, tree)
		}
		for i, path := range paths {
			checkField(t, tree, path, out[i])
		}
	})
}

func checkField(t *testing.T, tree Tree, path []string, raw []byte) {
	t.Helper()
	var want any = tree
	found := true
	for _, name := range path {
		m, ok := want.(Tree)
		if want, found = m[name]; !ok || !found {
			found = false
			break
		}
	}
	if found != (raw != nil) {
		t.Fatalf("field %v: got found %v, want %v", path, raw != nil, found)
	}
	if !found {
		return
	}
	got := mustDecode(t, `{"v":`+string(raw)+`}`)
	if !Equal(got["v"], want) {
		t.Fatalf("field %v: got %s, want %v", path, raw, want)
	}
}

// TestFields checks that one scan finds several fields, including fields whose paths are prefixes of other paths.
func TestFields(t *testing.T) {
	js := sample(t)
	tree := mustDecode(t, string(js))
	paths := [][]string{
		{"spec", "image"}, {"spec"}, {"status", "phase"}, {"spec", "env", "B"}, {"spec", "nope"},
		{"metadata", "name"}, {"status", "phase", "deeper"}, {}, {"spec", "image"},
	}
	for len(paths) < 100 {
		paths = append(paths, []string{"spec", "replicas"})
	}
	out := make([][]byte, len(paths))
	Fields(js, paths, out)
	for i := range paths {
		checkField(t, tree, paths[i], out[i])
	}
	if raw, ok := Field(js, "spec", "image"); !ok || string(raw) != `"registry.example.com/team/widget:v1.2.3"` {
		t.Fatalf("Field(spec, image): got %s, %v", raw, ok)
	}
	if allocs := testing.AllocsPerRun(100, func() { Fields(js, paths[:9], out[:9]) }); allocs != 0 {
		t.Errorf("Fields allocates %v times", allocs)
	}
}

func BenchmarkPack(b *testing.B) {
	tree := mustDecode(b, string(sample(b)))
	b.ReportAllocs()
	for b.Loop() {
		Pack(tree, 1)
	}
}

func BenchmarkUnpack(b *testing.B) {
	js := Pack(mustDecode(b, string(sample(b))), 1).JSON()
	b.ReportAllocs()
	for b.Loop() {
		Unpack(js)
	}
}

func BenchmarkPackedAppendJSON(b *testing.B) {
	p := Pack(mustDecode(b, string(sample(b))), 1)
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = p.AppendJSONAs(buf[:0], "bench.example.com/v2", 123456)
	}
}

func BenchmarkScanMeta(b *testing.B) {
	js := Pack(mustDecode(b, string(sample(b))), 1).JSON()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ScanMeta(js); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFields(b *testing.B) {
	js := Pack(mustDecode(b, string(sample(b))), 1).JSON()
	paths := [][]string{{"spec", "replicas"}, {"status", "phase"}, {"metadata", "creationTimestamp"}}
	out := make([][]byte, 3)
	b.ReportAllocs()
	for b.Loop() {
		Fields(js, paths, out)
	}
}
