package openapi

import (
	"os"
	"testing"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// parseWithGnostic parses a document with gnostic. It also returns an empty message of the same type.
func parseWithGnostic(t *testing.T, e edition, document []byte) (want, empty proto.Message) {
	t.Helper()
	var err error
	if e == v2 {
		want, err = openapi_v2.ParseDocument(document)
		empty = &openapi_v2.Document{}
	} else {
		want, err = openapi_v3.ParseDocument(document)
		empty = &openapi_v3.Document{}
	}
	if err != nil {
		t.Fatal(err)
	}
	return want, empty
}

// messageTree converts a message to decoded JSON.
func messageTree(t *testing.T, m proto.Message) any {
	t.Helper()
	text, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return tree(t, text)
}

// compareProto compares the protobuf of a document with gnostic's.
func compareProto(t *testing.T, e edition, versions []*resource.Version) {
	t.Helper()
	d, err := newDocument(e, versions)
	if err != nil {
		t.Fatal(err)
	}
	text := d.text()
	encoded, err := newTranscoder(e).encode(text)
	if err != nil {
		t.Fatal(err)
	}
	want, got := parseWithGnostic(t, e, text)
	if err := proto.Unmarshal(encoded, got); err != nil {
		t.Fatal(err)
	}
	mustEqual(t, versions[0].GroupVersionKind().String(), messageTree(t, got), messageTree(t, want))
}

// TestProtobufMatchesGnostic compares the protobuf of documents of the corpus with gnostic's (OAS-016).
func TestProtobufMatchesGnostic(t *testing.T) {
	for _, file := range sampled(t, 100) {
		manifest, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, d := readCRD(t, manifest)
		compareProto(t, v2, d.Versions)
		compareProto(t, v3, d.Versions)
		if t.Failed() {
			t.Fatalf("the protobuf of %s differs", file)
		}
	}
}

// TestProtobufOfBuiltinKindsMatchesGnostic compares the protobuf of the built-in kinds with gnostic's (OAS-016).
func TestProtobufOfBuiltinKindsMatchesGnostic(t *testing.T) {
	var all []*resource.Version
	for _, d := range kinds.Definitions(kinds.Config{}) {
		all = append(all, d.Versions...)
	}
	compareProto(t, v2, all)
	compareProto(t, v3, all)
}
