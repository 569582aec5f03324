package object

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	kjson "sigs.k8s.io/json"
)

// upstreamDecode decodes a body as upstream's server does.
func upstreamDecode(data []byte) (Tree, []string, error) {
	t := Tree{}
	strict, err := kjson.UnmarshalStrict(data, &t)
	if err != nil {
		return nil, nil, err
	}
	if t == nil {
		t = Tree{}
	}
	var paths []string
	for _, e := range strict {
		var f kjson.FieldError
		errors.As(e, &f)
		paths = append(paths, f.FieldPath())
	}
	return t, paths, nil
}

func checkDecode(t *testing.T, data []byte) {
	t.Helper()
	want, wantDup, wantErr := upstreamDecode(data)
	got, gotDup, gotErr := DecodeJSON(data)
	if (gotErr == nil) != (wantErr == nil) || gotErr != nil && gotErr.Error() != wantErr.Error() {
		t.Fatalf("%.200q: got error %v, want upstream's %v", data, gotErr, wantErr)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%.200q:\n got %#v\nwant %#v", data, got, want)
	}
	if !reflect.DeepEqual(gotDup, wantDup) {
		t.Fatalf("%.200q: got duplicates %q, want upstream's %q", data, gotDup, wantDup)
	}
}

var decodeSeeds = []string{
	`{}`, `null`, ` null `, `[]`, `"x"`, `1`, ``, ` `, `{`, `}`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`,
	`{,}`,
	`{"a" 1}`, `{a:1}`, `{"a":1}x`, `{"a":1} {"b":2}`, "{\"a\":1}\x00",
	`{"a":tru}`, `{"a":nul}`, `{"a":truex}`, `{"a":[1,2,]}`, `{"a":[1 2]}`, `{"a":[}`,
	`{"a":9223372036854775807,"b":-9223372036854775808,"c":9223372036854775808,"d":-0,"e":1.0,"f":1e3,"g":1E-7,"h":-0.0}`,
	`{"a":01}`, `{"a":-}`, `{"a":1.}`, `{"a":.5}`, `{"a":1e}`, `{"a":+1}`, `{"a":1e999}`,
	`{"a":123456789012345678901234567890}`, `{"a":1e999`,
	`{"a":"\u00e9\ud83d\ude00\ud83d\ud83dx\/\b\f\n\r\t\\\""}`, `{"a":"\u12"}`, `{"a":"\x"}`, `{"a":"\'"}`,
	"{\"a\":\"\n\"}",
	"{\"a\":\"\xff\xc3\"}", `{"a":"\ud83d\u0041"}`, `{"a":"\`, `{"a":"\"`,
	`{"a":1,"a":2}`, `{"a":{"b":1,"b":2},"a":{"b":1,"b":2}}`, `{"x":[{"k":1,"k":2},[{"k":1,"k":1,"k":1}]]}`,
	`{"a.b":{"":1,"":2}}`, `{"":{"":0,"":0}}`, `{"":[{"":0,"":0}]}`, "{\"\xff\":1,\"\xfe\":2}",
	"\ufeff{}", "{\"a\" : [ 1 , {\t\"b\"\r\n: null } ] }",
}

// TestDecodeJSONAsUpstream checks that DecodeJSON returns the same values, duplicates and errors as upstream's
// decoder.
func TestDecodeJSONAsUpstream(t *testing.T) {
	for _, s := range decodeSeeds {
		checkDecode(t, []byte(s))
	}
	checkDecode(t, sample(t))
	for _, n := range []int{maxDepth - 1, maxDepth, maxDepth + 1} {
		checkDecode(t, []byte(`{"a":`+strings.Repeat("[", n)+strings.Repeat("]", n)+`}`))
		checkDecode(t, []byte(strings.Repeat(`{"a":`, n)+"1"+strings.Repeat("}", n)))
	}
	var many strings.Builder
	for range 300 {
		many.WriteString(`{"a":1,"a":2},`)
	}
	checkDecode(t, []byte(`{"l":[`+many.String()+`1],"l":1}`))
}

func FuzzDecodeJSON(f *testing.F) {
	for _, s := range decodeSeeds {
		f.Add([]byte(s))
	}
	f.Add(sample(f))
	f.Fuzz(func(t *testing.T, data []byte) {
		checkDecode(t, data)
		tree, _, err := DecodeJSON(data)
		if err != nil {
			return
		}
		checkEncode(t, tree)
	})
}

func checkEncode(t *testing.T, v any) {
	t.Helper()
	want, err := json.Marshal(zeros(v))
	if err != nil {
		t.Fatal(err)
	}
	if got := AppendJSON([]byte("x"), v); string(got[1:]) != string(want) {
		t.Fatalf("got  %s\nwant %s", got[1:], want)
	}
}

// zeros returns v with each -0 replaced by 0.
func zeros(v any) any {
	switch v := v.(type) {
	case float64:
		if v == 0 {
			return 0.0
		}
	case Tree:
		c := maps.Clone(v)
		for k := range c {
			c[k] = zeros(c[k])
		}
		return c
	case []any:
		c := slices.Clone(v)
		for i := range c {
			c[i] = zeros(c[i])
		}
		return c
	}
	return v
}

// TestAppendJSONAsEncodingJSON checks that AppendJSON writes the same bytes as encoding/json, except that it writes
// -0 as 0. kube-apiserver stores -0 and reads it back as 0.
func TestAppendJSONAsEncodingJSON(t *testing.T) {
	for _, f := range []float64{
		0, math.Copysign(0, -1), 1, 1.5, 1e20, 1e21, 123456789e15, 1e-6, 1e-7, 9.99e-7, 1e-10, 1e100,
		math.MaxFloat64, math.SmallestNonzeroFloat64, 0.1,
	} {
		checkEncode(t, f)
	}
	var all strings.Builder
	for r := rune(0); r < 0x300; r++ {
		all.WriteRune(r)
	}
	all.WriteString("\u2028\u2029\ufffd\xff\xc3(\xed\xa0\x80<>&😀")
	big := Tree{}
	for i := range 100 {
		big[strings.Repeat("k", i%7)+string(rune('a'+i%26))+all.String()[:i]] = int64(i)
	}
	checkEncode(t, Tree{
		"s": all.String(), all.String(): nil, "l": []any{true, false, nil, int64(-5), []any{}, Tree{}},
		"n": Tree(nil), "m": []any(nil), "o": map[string]string{"a": "b"}, "big": big,
	})
}

func FuzzAppendString(f *testing.F) {
	f.Add("a\u2028<\xff")
	f.Fuzz(func(t *testing.T, s string) { checkEncode(t, s) })
}

// TestDecodeJSONSharesNothing checks that decoded trees share no memory with the input or with each other.
func TestDecodeJSONSharesNothing(t *testing.T) {
	data := []byte(`{"a":"hello","b":[{"c":"d"}]}`)
	tree, _, err := DecodeJSON(data)
	if err != nil {
		t.Fatal(err)
	}
	clear(data)
	if got := string(AppendJSON(nil, tree)); got != `{"a":"hello","b":[{"c":"d"}]}` {
		t.Fatalf("got %s after the input was cleared", got)
	}
	c := Copy(tree)
	c["b"].([]any)[0].(Tree)["c"] = "changed"
	if Equal(c, tree) || !Equal(Copy(tree), tree) {
		t.Fatal("a changed copy equals the original, or an unchanged copy does not")
	}
	for _, pair := range [][2]any{
		{int64(1), 1.0}, {nil, false}, {Tree{"a": nil}, Tree{}}, {Tree{"a": nil}, Tree{"b": nil}},
		{[]any{int64(1)}, []any{}}, {"", nil},
	} {
		if Equal(pair[0], pair[1]) || Equal(pair[1], pair[0]) {
			t.Errorf("Equal(%v, %v): got true, want false", pair[0], pair[1])
		}
	}
}

// TestDuplicatesBounded checks that the work for the paths of duplicates is bounded, even if the paths are deep and
// numerous.
func TestDuplicatesBounded(t *testing.T) {
	deep := strings.Repeat(`{"`+strings.Repeat("k", 200)+`":`, 5000)
	body := deep + `[` + strings.Repeat(`{"a":1,"a":1},`, 100000) + `1]` + strings.Repeat("}", 5000)
	_, dups, err := DecodeJSON([]byte(body))
	if err != nil || len(dups) == 0 || len(dups) > maxDuplicates {
		t.Fatalf("got %d duplicates and error %v, want 1 to %d duplicates", len(dups), err, maxDuplicates)
	}
	if got := DuplicateError("spec.a"); got != `duplicate field "spec.a"` {
		t.Fatalf("got message %s", got)
	}
}

func sample(t testing.TB) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/widget.json")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.TrimSpace(b)
}

func BenchmarkDecodeJSON(b *testing.B) {
	data := sample(b)
	b.Run("trellis", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if _, _, err := DecodeJSON(data); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("sigs.k8s.io", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			t := Tree{}
			if _, err := kjson.UnmarshalStrict(data, &t); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkAppendJSON(b *testing.B) {
	tree, _, err := DecodeJSON(sample(b))
	if err != nil {
		b.Fatal(err)
	}
	b.Run("trellis", func(b *testing.B) {
		b.ReportAllocs()
		var buf []byte
		for b.Loop() {
			buf = AppendJSON(buf[:0], tree)
		}
	})
	b.Run("encoding/json", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := json.Marshal(tree); err != nil {
				b.Fatal(err)
			}
		}
	})
}
