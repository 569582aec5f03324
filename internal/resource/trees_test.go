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

// CRD-068: the tree of any object of k8s.io/api is that of its JSON, and of any such tree comes what is read of the JSON.
func TestTreesOfGoTypes(t *testing.T) {
	fill := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(1), scheme.Codecs)
	for gvk, typ := range scheme.Scheme.AllKnownTypes() {
		if gvk.Version == runtime.APIVersionInternal {
			continue // never JSON
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
	if !set(got.Elem(), tree, value.TypeReflectEntryOf(typ)) || !reflect.DeepEqual(got.Interface(), want.Interface()) {
		t.Fatalf("%v of the tree of %s: %+v, want %+v", typ, data, got, want)
	}
}
