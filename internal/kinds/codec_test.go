package kinds_test

import (
	"bytes"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/trellis-k8s/trellis/internal/kinds"
)

// TestCodecs checks the values of all built-in kinds in etcd. They equal the protobuf that upstream's encoder stores.
// Protobuf and JSON decode to the JSON in the store.
func TestCodecs(t *testing.T) {
	serializer := protobuf.NewSerializer(legacyscheme.Scheme, legacyscheme.Scheme)
	codecs, prefixes := kinds.Shared()
	tested := 0
	for _, s := range samples(t) {
		c := serveCluster(t, kinds.Config{})
		v := c.version(s.apiVersion, s.kind)
		value := c.mustCreate(v, s.object, s.text)
		key := v.Definition.Key(c.at(v, "", "").Namespace, s.object)
		codec, ok := codecs.Of(key)
		if ok == (s.kind == "APIService") {
			t.Errorf("%s: has a codec: %t", key, ok)
		}
		if !ok {
			continue
		}
		tested++
		encoded, err := codec.Encode(value)
		if err != nil {
			t.Errorf("%s: %v", key, err)
			continue
		}
		storage := v.Definition.Storage
		obj, err := storage.Type.Object(value)
		if err != nil {
			t.Fatal(err)
		}
		var want bytes.Buffer
		encoder := legacyscheme.Codecs.EncoderForVersion(serializer, storage.GroupVersion)
		if err := encoder.Encode(obj, &want); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(encoded, want.Bytes()) {
			t.Errorf("%s:\n got %q\nwant %q", key, encoded, want.Bytes())
		}
		for _, data := range [][]byte{encoded, value} {
			if got, err := codec.Decode(data); err != nil || !bytes.Equal(got, value) {
				t.Errorf("%s: decode:\n got %s, %v\nwant %s", key, got, err, value)
			}
		}
	}
	if tested < 50 || len(prefixes) != 15 {
		t.Errorf("tested %d kinds, want at least 50; %d kinds affect other requests, want 15", tested, len(prefixes))
	}
}

// TestCodecOfOtherVersions checks that values of a version that is no longer served are converted to the storage
// version, and that values of other kinds and damaged values are errors.
func TestCodecOfOtherVersions(t *testing.T) {
	codecs, _ := kinds.Shared()
	codec, ok := codecs.Of("/registry/horizontalpodautoscalers/ns/a")
	if !ok {
		t.Fatal("no codec of HorizontalPodAutoscalers")
	}
	got, err := codec.Decode([]byte(`{"apiVersion":"autoscaling/v1","kind":"HorizontalPodAutoscaler","metadata":{"name":"a"},
"spec":{"maxReplicas":3,"targetCPUUtilizationPercentage":70,"scaleTargetRef":{"kind":"Deployment","name":"d"}}}`))
	if err != nil || !strings.Contains(string(got), `"apiVersion":"autoscaling/v2"`) ||
		!strings.Contains(string(got), `"averageUtilization":70`) {
		t.Errorf("got %s, %v", got, err)
	}
	serializer := protobuf.NewSerializer(legacyscheme.Scheme, legacyscheme.Scheme)
	var pod bytes.Buffer
	encoder := legacyscheme.Codecs.EncoderForVersion(serializer, corev1.SchemeGroupVersion)
	if err := encoder.Encode(runtime.Object(&corev1.Pod{}), &pod); err != nil {
		t.Fatal(err)
	}
	for _, data := range [][]byte{pod.Bytes(), pod.Bytes()[:20], []byte("k8s\x00"), []byte("{"), nil,
		[]byte(`{"apiVersion":"example.com/v1","kind":"HorizontalPodAutoscaler"}`)} {
		if got, err := codec.Decode(data); err == nil {
			t.Errorf("decode %q: got %s, want an error", data, got)
		}
	}
}
