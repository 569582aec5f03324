package merge

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/trellis-k8s/trellis/internal/object"
)

// TestMain silences klog, because upstream's field manager logs every invalid managedFields.
func TestMain(m *testing.M) {
	var flags flag.FlagSet
	klog.InitFlags(&flags)
	for name, value := range map[string]string{"logtostderr": "false", "stderrthreshold": "FATAL"} {
		if err := flags.Set(name, value); err != nil {
			panic(err)
		}
	}
	klog.SetOutput(io.Discard)
	os.Exit(m.Run())
}

func decode(t testing.TB, s string) object.Tree {
	t.Helper()
	tree, _, err := object.DecodeJSON([]byte(s))
	if err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	return tree
}

var mergeSeeds = [][2]string{
	{`{"a":1,"b":{"c":2,"d":3}}`, `{"b":{"c":null,"e":4},"f":5}`},
	{`{"a":1}`, `{"a":null,"n":{"x":null,"y":[{"z":null,"k":null},null,[null,{"q":null}]]}}`},
	{`{"a":{"b":1}}`, `{"a":[1,{"x":null}]}`},
	{`{"a":[1,2]}`, `{"a":[{"x":null}]}`},
	{`{"a":null}`, `{"a":{"x":null,"y":1}}`},
	{`{"a":"x"}`, `{"a":{"x":null}}`},
	{`{"a":{"b":{"c":1}}}`, `{"a":{"b":"x"}}`},
	{`{}`, `null`}, {`{}`, `[]`}, {`{}`, `{"a":`}, {`{}`, `"x"`}, {`{}`, ``}, {`{}`, `nullx`}, {`{}`, ` null`},
	{`{"a":9007199254740993}`, `{"b":9007199254740993,"c":1.50,"d":"<&>"}`},
}

func checkMerge(t *testing.T, doc, patch []byte) {
	t.Helper()
	tree, _, err := object.DecodeJSON(doc)
	if err != nil || bytes.TrimSpace(doc)[0] != '{' {
		return
	}
	before := object.Copy(tree)
	got, _, gotErr := Merge(tree, patch)
	if !object.Equal(before, tree) {
		t.Fatal("Merge modified its argument")
	}
	want, wantErr := jsonpatch.MergePatch(object.AppendJSON(nil, tree), patch)
	var wantTree object.Tree
	if wantErr == nil && want[0] == '{' {
		wantTree, _, wantErr = object.DecodeJSON(want)
	} else if wantErr == nil {
		wantErr = errors.New("not an object")
	}
	if gotErr != nil && (strings.Contains(gotErr.Error(), "exceeded max depth") ||
		strings.Contains(gotErr.Error(), "cannot unmarshal number")) {
		return // upstream also rejects these when it decodes the result
	}
	if (gotErr == nil) != (wantErr == nil) {
		t.Fatalf("%s + %s: got error %v, want upstream's %v", doc, patch, gotErr, wantErr)
	}
	if gotErr == nil && !object.Equal(got, wantTree) {
		t.Fatalf("%s + %s:\n got %s\nwant %s", doc, patch, object.AppendJSON(nil, got), want)
	}
}

// TestMergeAsUpstream checks that a merge patch has the same result as in upstream's library, including special
// cases of null.
//
// CRD-055
func TestMergeAsUpstream(t *testing.T) {
	for _, s := range mergeSeeds {
		checkMerge(t, []byte(s[0]), []byte(s[1]))
	}
}

func FuzzMerge(f *testing.F) {
	for _, s := range mergeSeeds {
		f.Add([]byte(s[0]), []byte(s[1]))
	}
	f.Fuzz(func(t *testing.T, doc, patch []byte) {
		// Go's decoder orders repeated keys differently if they differ only in invalid UTF-8.
		if !bytes.Contains(patch, []byte("\ufffd")) && bytes.Equal(bytes.ToValidUTF8(patch, nil), patch) {
			if _, dups, err := object.DecodeJSON(patch); err == nil && len(dups) > 0 {
				return
			}
			checkMerge(t, doc, patch)
		}
	})
}

func code(err error) int32 {
	var status *apierrors.StatusError
	if errors.As(err, &status) {
		return status.ErrStatus.Code
	}
	return 0
}

// TestMergeErrors checks that invalid merge patches are bad requests.
func TestMergeErrors(t *testing.T) {
	for patch, want := range map[string]string{
		`null`:   "Invalid JSON Patch",
		`[]`:     "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}",
		`{"a":`:  "error decoding patch: unexpected end of JSON input",
		`{"a":x`: "error decoding patch: invalid character 'x' looking for beginning of value",
	} {
		_, _, err := Merge(object.Tree{}, []byte(patch))
		if code(err) != 400 || err.Error() != want {
			t.Errorf("%s: got error %v, want %s", patch, err, want)
		}
	}
	_, dups, err := Merge(object.Tree{}, []byte(`{"a":{"b":1,"b":2}}`))
	if err != nil || len(dups) != 1 || dups[0] != "a.b" {
		t.Errorf("got duplicates %q and error %v, want a.b", dups, err)
	}
}

// TestJSON checks the results of JSON patches, and that invalid patches are rejected with upstream's codes.
//
// CRD-055
func TestJSON(t *testing.T) {
	doc := decode(t, `{"kind":"A","spec":{"list":[1,2,3],"n":9007199254740993,"a/b":{"~":1}}}`)
	before := object.Copy(doc)
	for _, c := range []struct {
		patch, want string
		code        int32
	}{
		{
			`[{"op":"add","path":"/spec/list/-","value":4},{"op":"remove","path":"/spec/list/0"}]`,
			`{"kind":"A","spec":{"a/b":{"~":1},"list":[2,3,4],"n":9007199254740993}}`, 0,
		},
		{
			`[{"op":"replace","path":"/spec/a~1b/~0","value":null}]`,
			`{"kind":"A","spec":{"a/b":{"~":null},"list":[1,2,3],"n":9007199254740993}}`, 0,
		},
		{
			`[{"op":"move","from":"/spec/list","path":"/l"},{"op":"copy","from":"/l/-1","path":"/spec/last"},{"op":"test","path":"/kind","value":"A"}]`,
			`{"kind":"A","l":[1,2,3],"spec":{"a/b":{"~":1},"last":3,"n":9007199254740993}}`, 0,
		},
		{
			`[{"op":"test","path":"/kind","value":"B"}]`,
			`the server rejected our request due to an error in our request`, 422,
		},
		{`[{"op":"remove","path":"/nope"}]`, `the server rejected our request due to an error in our request`, 422},
		{`[{"op":"what","path":"/kind"}]`, `the server rejected our request due to an error in our request`, 422},
		{
			`[{"op":"replace","path":"","value":[]}]`,
			` "" is invalid: patch: Invalid value: "[]": json: cannot unmarshal array into Go value of type map[string]interface {}`,
			422,
		},
		{`{"op":"add"}`, `json: cannot unmarshal object into Go value of type jsonpatch.Patch`, 400},
		{`[`, `unexpected end of JSON input`, 400},
		{
			`[` + strings.Repeat(`{"op":"test","path":"/kind","value":"A"},`, 10000) + `{}]`,
			`Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001`, 413,
		},
	} {
		got, err := JSON(doc, []byte(c.patch))
		text := ""
		if err == nil {
			text = string(object.AppendJSON(nil, got))
		} else {
			text = err.Error()
		}
		if text != c.want || code(err) != c.code {
			t.Errorf("%.100s:\n got %d %s\nwant %d %s", c.patch, code(err), text, c.code, c.want)
		}
	}
	if !object.Equal(doc, before) {
		t.Error("JSON modified its argument")
	}
}

// TestJSONBomb checks that repeated copies, each of which doubles the document, are rejected before they exhaust
// memory.
func TestJSONBomb(t *testing.T) {
	doc := object.Tree{"a": []any{strings.Repeat("x", 1000)}}
	patch := "[" + strings.TrimSuffix(strings.Repeat(`{"op":"copy","from":"/a","path":"/a/-"},`, 60), ",") + "]"
	if _, err := JSON(doc, []byte(patch)); code(err) != 422 {
		t.Fatalf("repeated copies: got error %v, want code 422", err)
	}
	deep := `[{"op":"add","path":"/b","value":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + "}]"
	if _, err := JSON(doc, []byte(deep)); code(err) != 400 {
		t.Fatalf("deep value: got error %v, want code 400", err)
	}
}

// TestCheckJSON checks that strict validation of a JSON patch reports duplicate and unknown fields.
func TestCheckJSON(t *testing.T) {
	problems, err := CheckJSON([]byte(`[{"op":"add","op":"add","path":"/a","value":{"x":1,"x":2},"what":1}]`))
	want := `json patch duplicate field "[0].op"|json patch duplicate field "[0].value.x"|json patch unknown field "[0].what"`
	if got := strings.Join(problems, "|"); err != nil || got != want {
		t.Fatalf("got problems %s and error %v, want %s", got, err, want)
	}
	_, err = CheckJSON([]byte(`{}`))
	if code(err) != 400 || !strings.HasPrefix(err.Error(), "error decoding patch: json: cannot unmarshal object") {
		t.Fatalf("got error %v, want code 400", err)
	}
}

var jsonSeeds = []string{
	`[{"op":"add","path":"/a/-","value":4}]`,
	`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}},{"op":"test","path":"/metadata/name","value":"n"}]`,
	`[{"op":"test","path":"/metadata","value":{"name":"n","managedFields":[{"manager":"m"}]}}]`,
	`[{"op":"copy","from":"/metadata/managedFields/0/manager","path":"/c/d"}]`,
	`[{"op":"move","from":"/metadata","path":"/c/d"}]`,
	`[{"op":"remove","path":"/metadata"}]`,
	`[{"op":"remove","path":"/metadata/managedFields"}]`,
	`[{"op":"replace","path":"/metadata/managedFields","value":[]}]`,
	`[{"op":"replace","path":"","value":{}}]`,
	`[{"op":"add","path":"/metadata~0/managedFields","value":{}}]`,
	`[{"op":"test","path":"/nope"}]`,
}

// checkJSON compares JSON with the library applied to the whole object.
func checkJSON(t *testing.T, patch []byte) {
	t.Helper()
	doc := decode(t, `{"a":[1],"c":{"d":"e"},"metadata":{"name":"n","managedFields":[{"manager":"m"}]}}`)
	got, gotErr := JSON(doc, patch)
	if gotErr != nil && code(gotErr) == 0 {
		t.Fatal(gotErr)
	}
	var want object.Tree
	operations, wantErr := jsonpatch.DecodePatch(patch)
	if wantErr == nil {
		var patched []byte
		if patched, wantErr = applyRecovering(operations, object.AppendJSON(nil, doc)); wantErr == nil {
			want, _, wantErr = object.DecodeJSON(patched)
		}
	}
	if len(operations) > maxJSONPatchOperations {
		return
	}
	if (gotErr == nil) != (wantErr == nil) || gotErr == nil && !object.Equal(got, want) {
		t.Fatalf("%s:\n got %s, %v\nwant %s, %v",
			patch, object.AppendJSON(nil, got), gotErr, object.AppendJSON(nil, want), wantErr)
	}
}

// TestJSONPanics checks operations that cause a panic in the library. They return the same error as other
// operations that cannot be applied.
func TestJSONPanics(t *testing.T) {
	for _, patch := range []string{
		`[{"op":"test","path":""}]`, `[{"op":"test","path":"","value":null}]`,
		`[{"op":"replace","path":"","value":null}]`, `[{"op":"replace","path":""}]`,
	} {
		if _, err := JSON(decode(t, `{"a":1}`), []byte(patch)); code(err) != 422 {
			t.Errorf("%s: got error %v, want code 422", patch, err)
		}
	}
}

// TestJSONCopiesAreBounded checks that all copy operations together may add at most 3 MiB.
func TestJSONCopiesAreBounded(t *testing.T) {
	doc := decode(t, `{"a":"`+strings.Repeat("x", 8<<10)+`","b":{}}`)
	var patch []string
	for i := range 1000 {
		patch = append(patch, fmt.Sprintf(`{"op":"copy","from":"/a","path":"/b/%d"}`, i))
	}
	if _, err := JSON(doc, []byte("["+strings.Join(patch, ",")+"]")); code(err) != 422 {
		t.Errorf("got error %v, want code 422", err)
	}
}

// TestJSONAsUpstream checks that JSON has the same result as the library, although JSON leaves out managedFields
// while it applies most patches.
func TestJSONAsUpstream(t *testing.T) {
	for _, s := range jsonSeeds {
		checkJSON(t, []byte(s))
	}
}

// FuzzJSON does the same as TestJSONAsUpstream for patches of arbitrary bytes.
func FuzzJSON(f *testing.F) {
	for _, s := range jsonSeeds {
		f.Add([]byte(s))
	}
	f.Add([]byte(`[{"op":"add","path":"/spec/list/-","value":4},{"op":"copy","from":"/a","path":"/b"},` +
		`{"op":"move","from":"/b","path":"/c/0"}]`))
	f.Fuzz(func(t *testing.T, patch []byte) {
		checkJSON(t, patch)
		if _, err := CheckJSON(patch); err != nil && code(err) == 0 {
			t.Fatal(err)
		}
	})
}

// TestStrategic checks that strategic merge patches use the merge keys of Go types.
func TestStrategic(t *testing.T) {
	doc := decode(t, `{"kind":"Pod","metadata":{"finalizers":["a","b"]},"spec":{
		"containers":[{"name":"a","image":"x"},{"name":"b","image":"y"}],"restartPolicy":"Always"}}`)
	before := object.Copy(doc)
	for _, c := range []struct {
		patch, want string
		code        int32
	}{
		{
			`{"spec":{"containers":[{"name":"b","image":"z"},{"name":"a","$patch":"delete"}],"restartPolicy":null}}`,
			`{"kind":"Pod","metadata":{"finalizers":["a","b"]},"spec":{"containers":[{"image":"z","name":"b"}]}}`,
			0,
		},
		{
			`{"metadata":{"$deleteFromPrimitiveList/finalizers":["a"]}}`,
			`{"kind":"Pod","metadata":{"finalizers":["b"]},"spec":{"containers":[{"image":"x","name":"a"},{"image":"y","name":"b"}],"restartPolicy":"Always"}}`,
			0,
		},
		{`{"spec":`, `unexpected end of JSON input`, 400},
		{`[]`, `json: cannot unmarshal array into Go value of type map[string]interface {}`, 400},
		{`{"spec":{"$retainKeys":["a"],"containers":[]}}`, `invalid patch format of retainKeys`, 400},
	} {
		got, _, err := Strategic(doc, []byte(c.patch), &corev1.Pod{})
		text := ""
		if err == nil {
			text = string(object.AppendJSON(nil, got))
		} else {
			text = err.Error()
		}
		if !strings.HasPrefix(text, c.want) || code(err) != c.code {
			t.Errorf("%s:\n got %d %s\nwant %d %s", c.patch, code(err), text, c.code, c.want)
		}
	}
	if !object.Equal(doc, before) {
		t.Error("Strategic modified its argument")
	}
}

func FuzzStrategic(f *testing.F) {
	f.Add([]byte(`{"spec":{"containers":[{"name":"b","$patch":"delete"}],"$setElementOrder/containers":[{"name":"a"}],` +
		`"$retainKeys":["x"]},"metadata":{"$deleteFromPrimitiveList/finalizers":["a"]}}`))
	f.Fuzz(func(t *testing.T, patch []byte) {
		doc := object.Tree{
			"metadata": object.Tree{"finalizers": []any{"a"}},
			"spec":     object.Tree{"containers": []any{object.Tree{"name": "a"}}},
		}
		before := object.Copy(doc)
		_, _, _ = Strategic(doc, patch, &corev1.Pod{})
		if !object.Equal(before, doc) {
			t.Fatal("Strategic modified its argument")
		}
	})
}

// TestConflictsAreListedByLevel checks that conflicts are listed in the iteration order of upstream's field sets.
func TestConflictsAreListedByLevel(t *testing.T) {
	paths := []fieldpath.Path{
		fieldpath.MakePathOrDie("spec", "z"),
		fieldpath.MakePathOrDie("spec", "img", "repo"),
		fieldpath.MakePathOrDie("spec", "img", "a", "b"),
		fieldpath.MakePathOrDie("metadata", "labels", "x"),
		fieldpath.MakePathOrDie("data"),
		fieldpath.MakePathOrDie("spec", "list", fieldpath.KeyByFields("name", "c"), "image"),
		fieldpath.MakePathOrDie("spec", "list", fieldpath.KeyByFields("name", "c")),
		fieldpath.MakePathOrDie("spec", "list", 3),
		fieldpath.MakePathOrDie("spec"),
	}
	var want []fieldpath.Path
	fieldpath.NewSet(paths...).Iterate(func(p fieldpath.Path) { want = append(want, p.Copy()) })
	slices.SortFunc(paths, byLevel)
	if fmt.Sprint(paths) != fmt.Sprint(want) {
		t.Errorf("got order %v, want %v", paths, want)
	}
}

// TestConflictText checks the texts of conflicts, which users search for.
//
// CRD-056
func TestConflictText(t *testing.T) {
	w := newTestKind(t, false)
	f := w.fields("g.io/v1", "")
	now := time.Unix(1e9, 0)
	widget := func(spec string) object.Tree {
		return decode(t, `{"apiVersion":"g.io/v1","kind":"Widget","metadata":{"name":"w"},"spec":{`+spec+`}}`)
	}
	live, err := f.Update(nil, widget(`"image":"a","env":{"x":"1"}`), "kubectl-edit", now)
	if err != nil {
		t.Fatal(err)
	}
	object.Metadata(live)["uid"] = "u"
	_, err = f.Apply(live, widget(`"image":"b"`), "me", false, now)
	want := `Apply failed with 1 conflict: conflict with "kubectl-edit" using g.io/v1: .spec.image`
	if got := err.Error(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	_, err = f.Apply(live, widget(`"image":"b","env":{"x":"2"}`), "me", false, now)
	want = "Apply failed with 2 conflicts: conflicts with \"kubectl-edit\" using g.io/v1:\n- .spec.image\n- .spec.env.x"
	if got := err.Error(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	var status *apierrors.StatusError
	if !errors.As(err, &status) || len(status.ErrStatus.Details.Causes) != 2 || status.ErrStatus.Code != 409 {
		b, _ := json.Marshal(err)
		t.Errorf("got error %s, want code 409 with 2 causes", b)
	}
}

// TestAtomicLists checks that a change of a list in AtomicLists gives the same owners as a comparison of the list's
// items.
//
// CRD-056
func TestAtomicLists(t *testing.T) {
	w := newTestKind(t, false)
	states := []string{
		``, `"steps":null`, `"steps":[]`, `"steps":[{}]`,
		`"steps":[{"name":"a"}]`, `"steps":[{"name":"b"}]`, `"steps":[{"name":"a"},{"name":"b"}]`,
	}
	widget := func(spec string) object.Tree {
		return decode(t, `{"apiVersion":"g.io/v1","kind":"Widget","metadata":{"name":"w","uid":"1"},"spec":{`+spec+`}}`)
	}
	write := func(atomicLists []string, states ...string) string {
		f := w.fields("g.io/v1", "")
		f.AtomicLists = atomicLists
		live, err := f.Update(nil, widget(states[0]), "first", time.Unix(1e9, 0))
		for _, state := range states[1:] {
			if err == nil {
				live, err = f.Update(live, widget(state), "next", time.Unix(2e9, 0))
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		return string(object.AppendJSON(nil, live))
	}
	for _, a := range states {
		for _, b := range states {
			got, want := write([]string{"spec.steps", "spec.none", "none.of.these"}, a, b, a), write(nil, a, b, a)
			if got != want {
				t.Errorf("from %s to %s: got %s, want %s", a, b, got, want)
			}
		}
	}
}
