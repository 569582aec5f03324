package resource

import (
	"encoding/json"
	"math/rand"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"github.com/trellis-k8s/trellis/internal/object"
)

// TestTreesOfGoTypes checks that the tree of any object of k8s.io/api equals the decoded JSON of the object. It
// also checks that converting the tree back gives the same object as decoding the JSON.
//
// CRD-068
func TestTreesOfGoTypes(t *testing.T) {
	fill := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(1), scheme.Codecs)
	for gvk, typ := range scheme.Scheme.AllKnownTypes() {
		if gvk.Version == runtime.APIVersionInternal {
			continue // internal types have no JSON form
		}
		for n := range 20 {
			obj := reflect.New(typ).Interface().(runtime.Object)
			if n > 0 {
				fill.NilChance(float64(n%10) / 10).Fill(obj)
			}
			data, err := json.Marshal(obj)
			if err != nil {
				t.Fatal(gvk, err)
			}
			want, _, err := object.DecodeJSON(data)
			if err != nil {
				t.Fatal(gvk, err)
			}
			got, err := ToTree(obj)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%v: %v\ngot  %s\nwant %s", gvk, err, object.AppendJSON(nil, got), data)
			}
			compareObject(t, typ, got, object.AppendJSON(nil, got))
		}
	}
}

func compareObject(t *testing.T, typ reflect.Type, tree object.Tree, data []byte) {
	t.Helper()
	want, got := reflect.New(typ), reflect.New(typ)
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, want.Interface()); err != nil {
		t.Fatal(typ, err)
	}
	converted := setValue(got.Elem(), tree, value.TypeReflectEntryOf(typ))
	if !converted || !reflect.DeepEqual(got.Interface(), want.Interface()) {
		t.Fatalf("%v from the tree of %s: got %+v, want %+v", typ, data, got, want)
	}
}
