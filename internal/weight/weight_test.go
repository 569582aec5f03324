package weight_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"

	"github.com/trellis-k8s/trellis/internal/weight"
)

var (
	pods    = weight.NewTable(reflect.TypeFor[corev1.Pod]())
	maps    = weight.NewTable(reflect.TypeFor[corev1.ConfigMap]())
	schemas = weight.NewTable(reflect.TypeFor[apiextensionsv1.CustomResourceDefinition]())
	untyped = weight.NewTable(reflect.TypeFor[metav1.PartialObjectMetadata]())
)

func inEnvelope(t *testing.T, obj interface{ Marshal() ([]byte, error) }) []byte {
	t.Helper()
	raw, err := obj.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	body, err := (&runtime.Unknown{Raw: raw}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte("k8s\x00"), body...)
}

// TestRepeatedItems checks for every encoding that the weight of a repeated empty item is at least the memory of its
// Go type.
func TestRepeatedItems(t *testing.T) {
	const n = 1000
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: make([]corev1.Container, n)}}
	env := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Env: make([]corev1.EnvVar, n)}}}}
	data := &corev1.ConfigMap{Data: map[string]string{}}
	for _, c := range strings.Fields("a b c d e f g h i j") {
		for i := range n / 10 {
			data.Data[c+strings.Repeat("x", i)] = ""
		}
	}
	deep := &apiextensionsv1.JSONSchemaProps{}
	for range n {
		deep = &apiextensionsv1.JSONSchemaProps{Items: &apiextensionsv1.JSONSchemaPropsOrArray{
			JSONSchemas: []apiextensionsv1.JSONSchemaProps{*deep},
		}}
	}
	crd := &apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
			{Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: deep}},
		},
	}}
	for _, c := range []struct {
		name  string
		table *weight.Table
		obj   interface{ Marshal() ([]byte, error) }
		one   uintptr
	}{
		{"containers", pods, pod, reflect.TypeFor[corev1.Container]().Size()},
		{"variables", pods, env, reflect.TypeFor[corev1.EnvVar]().Size()},
		{"entries of a map", maps, data, 32},
		{"schemas within each other", schemas, crd, reflect.TypeFor[apiextensionsv1.JSONSchemaProps]().Size()},
	} {
		least, most := int64(2*n*c.one), int64(n*(8*c.one+6000))
		if w := c.table.Protobuf(inEnvelope(t, c.obj)); w < least || w > 2*most {
			t.Errorf("%s in protobuf: got weight %d, want %d to %d", c.name, w, least, 2*most)
		}
		js, err := json.Marshal(c.obj)
		if err != nil {
			t.Fatal(err)
		}
		var tree map[string]any
		if err := json.Unmarshal(js, &tree); err != nil {
			t.Fatal(err)
		}
		w := c.table.JSON(js)
		if w < least || w > most*4 {
			t.Errorf("%s in JSON: got weight %d, want %d to %d", c.name, w, least, most*4)
		}
		if tree := c.table.Tree(tree); tree > w || tree < w*3/4 {
			t.Errorf("%s as a tree: got weight %d, in JSON %d", c.name, tree, w)
		}
		if _, all := c.table.Opaque(js); all < w {
			t.Errorf("%s of unknown type: got bound %d below weight %d", c.name, all, w)
		}
		if _, all, _ := c.table.YAML(js); all < w {
			t.Errorf("%s in YAML: got bound %d below weight %d", c.name, all, w)
		}
		bin, err := direct.Marshal(tree)
		if err != nil {
			t.Fatal(err)
		}
		if _, all := c.table.CBOR(bin); all < c.table.Tree(tree) {
			t.Errorf("%s in CBOR: got bound %d below weight %d", c.name, all, c.table.Tree(tree))
		}
	}
}

// TestSpellings checks that an item is counted in every spelling that the decoders accept.
func TestSpellings(t *testing.T) {
	for _, item := range []string{"{}", "null", "1", `"a"`, "[]", " {\n} "} {
		for _, key := range []string{`"containers"`, `"contain\u0065rs"`, `"initContainers" `} {
			body := `{"spec":{` + key + `:[` + strings.Repeat(item+",", 99) + item + `]}}`
			if w, least := pods.JSON([]byte(body)), 200*int64(reflect.TypeFor[corev1.Container]().Size()); w < least {
				t.Errorf("%s with items %s: got weight %d, want at least %d", key, item, w, least)
			}
		}
	}
	// fields in a group with an unknown number
	group := []byte("k8s\x00\x12\x0a\xfb\x07\x12\x06\x12\x00\x12\x00\x12\x00\xfc\x07")
	if w := pods.Protobuf(group); w <= 0 {
		t.Errorf("body with a group: got weight %d, want more than 0", w)
	}
	for body, want := range map[string]bool{
		"a: &x 1\nb: *x":      true,
		"a: 1 & 2 * 3":        false,
		"run: a && *.txt":     false,
		"x: [&a,*a]":          true,
		"cron: '*/5 * * * *'": false,
	} {
		if _, _, aliases := pods.YAML([]byte(body)); aliases != want {
			t.Errorf("YAML(%q): got aliases %v, want %v", body, aliases, want)
		}
	}
}

// TestTextWeight checks that the weight of a long text is a small multiple of its length. It also checks that the
// weight of unknown fields is that of a JSON tree.
func TestTextWeight(t *testing.T) {
	body := []byte(`{"data":{"a":"` + strings.Repeat("x", 1<<20) + `"}}`)
	if w := maps.JSON(body); w < 1<<20 || w > 5<<20 {
		t.Errorf("1 MiB of text: got weight %d, want 1 MiB to 5 MiB", w)
	}
	if w := untyped.JSON([]byte(`{"spec":[{},{}]}`)); w < 3*400 || w > 5000 {
		t.Errorf("list of an unknown type: got weight %d, want 1200 to 5000", w)
	}
}

// TestScansDoNotAllocate checks that scans allocate no memory.
func TestScansDoNotAllocate(t *testing.T) {
	body := inEnvelope(t, &corev1.Pod{Spec: corev1.PodSpec{Containers: make([]corev1.Container, 100)}})
	js := []byte(`{"spec":{"containers":[{"name":"a","env":[{"name":"b"}]}]}}`)
	if n := testing.AllocsPerRun(10, func() {
		pods.Protobuf(body)
		pods.JSON(js)
		pods.Opaque(js)
		pods.CBOR(body)
	}); n > 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

// FuzzWeights checks that the scans of arbitrary bytes end and do not panic. It also checks that the bound of
// Opaque is at least the weight of the same body as JSON.
func FuzzWeights(f *testing.F) {
	f.Add([]byte(`{"spec":{"containers":[{"name":"a\"","env":[null,1]}]}}`))
	f.Add([]byte("k8s\x00\x12\x04\x12\x02\x12\x00"))
	f.Add([]byte("a: &b [*b, {}]"))
	f.Add([]byte{0xa1, 0x61, 'a', 0x9f, 0x80, 0xff, 0x5b})
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, table := range []*weight.Table{pods, schemas, untyped} {
			js := table.JSON(data)
			if _, all := table.Opaque(data); json.Valid(data) && all < js {
				t.Errorf("got bound %d below weight %d", all, js)
			}
			if table.Protobuf(data) < 0 || js < 0 {
				t.Error("got a negative weight")
			}
			table.YAML(data)
			table.CBOR(data)
		}
	})
}

func BenchmarkJSON(b *testing.B) {
	body := []byte(`{"apiVersion":"v1","kind":"Pod",` +
		`"metadata":{"name":"a","labels":{"app":"b"}},"spec":{"containers":[` +
		strings.TrimSuffix(strings.Repeat(`{"name":"a","image":"registry.example/image:1.2",`+
			`"env":[{"name":"A","value":"b"}],"resources":{"limits":{"cpu":"1"}}},`, 10), ",") + `]}}`)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		pods.JSON(body)
	}
}

func BenchmarkProtobuf(b *testing.B) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"app": "b"}}}
	for range 10 {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name: "a", Image: "registry.example/image:1.2", Env: []corev1.EnvVar{{Name: "A", Value: "b"}},
		})
	}
	raw, _ := pod.Marshal()
	body, _ := (&runtime.Unknown{Raw: raw}).Marshal()
	body = append([]byte("k8s\x00"), body...)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		pods.Protobuf(body)
	}
}
