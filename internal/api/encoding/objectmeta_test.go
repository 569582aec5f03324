package encoding

import (
	"encoding/json"
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/object"
)

const fullMeta = `{"apiVersion":"a/v1","kind":"K","spec":{"metadata":{"name":"no"}},
"metadata":{"annotations":{"a\n":"b<"},"creationTimestamp":"2026-01-02T03:04:05Z",
"deletionGracePeriodSeconds":0,"deletionTimestamp":"2026-01-02T03:04:06Z","finalizers":["x","y"],"generateName":"n-",
"generation":7,"labels":{"l":"m","n":""},
"managedFields":[{"apiVersion":"a/v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:x":{}}},"manager":"me",
"operation":"Update","subresource":"status","time":"2026-01-02T03:04:05Z"},{}],
"name":"n","namespace":"ns","ownerReferences":[{"apiVersion":"v1","blockOwnerDeletion":true,"controller":false,
"kind":"K","name":"o","uid":"u"}],"selfLink":"/x","uid":"u"}}`

var metadataSeeds = []string{
	fullMeta, `{}`, `{"metadata":{}}`, `{"metadata":null}`,
	`{"metadata":{"labels":null,"finalizers":null,"creationTimestamp":null,"generation":null,"name":null}}`,
	`{"metadata":{"finalizers":[],"labels":{},"annotations":{},"ownerReferences":[],"managedFields":[]}}`,
	`{"metadata":{"deletionTimestamp":null,"deletionGracePeriodSeconds":null,"ownerReferences":[{"controller":null}],
"managedFields":[{"time":null,"fieldsV1":null}]}}`,
	`{"metadata":{"name":1}}`, `{"metadata":{"labels":[]}}`, `{"metadata":{"creationTimestamp":"soon"}}`,
	`{"metadata":{"generation":1.5}}`,
	`{"metadata":{"generation":99999999999999999999}}`, `{"metadata":{"creationTimestamp":""}}`,
	`{"metadata":{"ownerReferences":[{"controller":"x"}]}}`,
}

// compareMetadata checks that partialMetadata returns the same metadata as encoding/json for an object in JSON.
func compareMetadata(t *testing.T, js string) {
	t.Helper()
	tree, _, err := object.DecodeJSON([]byte(js))
	if err != nil {
		return
	}
	o := record.NewObject(nil, 42, object.Pack(tree, 0))
	want := &metav1.PartialObjectMetadata{}
	wantErr := json.Unmarshal(appendPartial(nil, o, "v1"), want)
	got, err := partialMetadata(o, "v1")
	if (err != nil) != (wantErr != nil) {
		t.Fatalf("%s: got error %v, want %v", js, err, wantErr)
	}
	if err == nil && !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\n got %+v\nwant %+v", js, got, want)
	}
}

// TestPartialMetadataMatchesJSON checks that partialMetadata returns the same metadata as encoding/json.
func TestPartialMetadataMatchesJSON(t *testing.T) {
	for _, js := range metadataSeeds {
		compareMetadata(t, js)
	}
}

// TestFastPathReadsUsualMetadata checks that ReadObjectMeta decodes usual metadata without encoding/json.
func TestFastPathReadsUsualMetadata(t *testing.T) {
	if _, ok := object.ReadObjectMeta([]byte(fullMeta), &metav1.ObjectMeta{}); !ok {
		t.Error("ReadObjectMeta does not decode usual metadata")
	}
}

func FuzzPartial(f *testing.F) {
	for _, js := range metadataSeeds {
		f.Add(js)
	}
	f.Fuzz(compareMetadata)
}

func BenchmarkPartialProtobuf(b *testing.B) {
	tree, _, err := object.DecodeJSON([]byte(fullMeta))
	if err != nil {
		b.Fatal(err)
	}
	o := record.NewObject(nil, 42, object.Pack(tree, 0))
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		if buf, err = appendPartialProtobuf(buf[:0], o, "v1"); err != nil {
			b.Fatal(err)
		}
	}
}
