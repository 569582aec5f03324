package resource_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubejson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

func typeOf[T, L any, P interface {
	*T
	runtime.Object
}, Q interface {
	*L
	runtime.Object
}]() *resource.GoType {
	return &resource.GoType{
		New:     func() runtime.Object { return P(new(T)) },
		NewList: func() runtime.Object { return Q(new(L)) },
	}
}

var (
	configMap = typeOf[corev1.ConfigMap, corev1.ConfigMapList]()
	secret    = typeOf[corev1.Secret, corev1.SecretList]()
	event     = typeOf[corev1.Event, corev1.EventList]()
	pod       = typeOf[corev1.Pod, corev1.PodList]()
)

// samples are request bodies.
var samples = []struct {
	name string
	typ  *resource.GoType
	json string
}{
	{
		"configmap", configMap,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","labels":{"x":"y"},"creationTimestamp":null},"data":{"k":"v","empty":""},"binaryData":{"b":"AAEC"},"immutable":false}`,
	},
	{"null map", configMap, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":null}`},
	{"null value", configMap, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":null}}`},
	{
		"unknown", configMap,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","foo":1},"data":{"k":"v"},"spec":{"a":[1]}}`,
	},
	{
		"duplicate", configMap,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"v","k":"w"},"data":{"l":"x"}}`,
	},
	{"case", configMap, `{"apiVersion":"v1","kind":"ConfigMap","Metadata":{"name":"a"},"DATA":{"k":"v"}}`},
	{"number for string", configMap, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":1}}`},
	{"list for map", configMap, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":["k"]}`},
	{"string for object", configMap, `{"apiVersion":"v1","kind":"ConfigMap","metadata":"a"}`},
	{"truncated", configMap, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"`},
	{"trailing", configMap, `{"apiVersion":"v1","kind":"ConfigMap"}}`},
	{"not an object", configMap, `[]`},
	{"null", configMap, `null`},
	{
		"secret", secret,
		`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"},"data":{"k":"dg==","e":""},"stringData":{"s":"t"},"type":"Opaque"}`,
	},
	{"bad base64", secret, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"},"data":{"k":"%%%"}}`},
	{"event", event, `{"apiVersion":"v1","kind":"Event","metadata":{"name":"e","namespace":"default",` +
		`"managedFields":[{"manager":"m","operation":"Update","apiVersion":"v1","time":"2026-01-02T03:04:05Z",` +
		`"fieldsType":"FieldsV1","fieldsV1":{"f:count":{},"f:data":{".":{}}}}]},` +
		`"involvedObject":{"kind":"Pod","name":"p"},"count":3,` +
		`"firstTimestamp":"2026-01-02T03:04:05+01:00","eventTime":"2026-01-02T03:04:05.000006Z"}`},
	{
		"too large for int32", event,
		`{"apiVersion":"v1","kind":"Event","metadata":{"name":"e"},"involvedObject":{},"count":4294967297}`,
	},
	{
		"too small for int32", event,
		`{"apiVersion":"v1","kind":"Event","metadata":{"name":"e"},"involvedObject":{},"count":-4294967297}`,
	},
	{
		"too large for int64", event,
		`{"apiVersion":"v1","kind":"Event","metadata":{"name":"e","generation":9223372036854775808},"involvedObject":{}}`,
	},
	{"a fraction", event, `{"apiVersion":"v1","kind":"Event","metadata":{"name":"e"},"involvedObject":{},"count":1.5}`},
	{
		"a whole number written as a fraction", event,
		`{"apiVersion":"v1","kind":"Event","metadata":{"name":"e"},"involvedObject":{},"count":1.0}`,
	},
	{
		"text for a number", event,
		`{"apiVersion":"v1","kind":"Event","metadata":{"name":"e"},"involvedObject":{},"count":"1"}`,
	},
	{
		"text for a boolean", configMap,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"immutable":"true"}`,
	},
	{"list for an object", event, `{"apiVersion":"v1","kind":"Event","metadata":{"name":"e"},"involvedObject":[]}`},
	{"object for a list", pod, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":{}}}`},
	{
		"bad quantity", pod,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"much"}}}]}}`,
	},
	{
		"bad time", event,
		`{"apiVersion":"v1","kind":"Event","metadata":{"name":"e"},"involvedObject":{},"firstTimestamp":"yesterday"}`,
	},
	{"pod", pod, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","ownerReferences":[{"apiVersion":"v1","kind":"X","name":"x","uid":"u","controller":true}]},` +
		`"spec":{"containers":[` +
		`{"name":"c","image":"i","resources":{"limits":{"cpu":"1000m","memory":1073741824}},` +
		`"ports":[{"containerPort":80}],"livenessProbe":{"httpGet":{"port":"web"}}},` +
		`{"name":"d","foo":1,"env":[{"name":"E","value":"1","valeu":"2"}]}]}}`},
}

// upstream decodes data strictly into the Go type, as kube-apiserver does. It returns the object as kube-apiserver
// would serve it.
func upstream(g *resource.GoType, data []byte) (served any, strict []string, err error) {
	s := kubejson.NewSerializerWithOptions(
		kubejson.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, kubejson.SerializerOptions{Strict: true},
	)
	obj := g.New()
	_, _, err = s.Decode(data, nil, obj)
	if e, ok := runtime.AsStrictDecodingError(err); ok {
		for _, problem := range e.Errors() {
			strict = append(strict, problem.Error())
		}
		err = nil
	}
	if err != nil {
		return nil, nil, err
	}
	out, err := json.Marshal(obj)
	if err != nil {
		return nil, nil, err
	}
	t, _, err := object.DecodeJSON(out)
	return t, strict, err
}

// TestDecodeAsUpstream checks that bodies of built-in kinds are decoded as in upstream, with the same errors.
//
// CRD-068
func TestDecodeAsUpstream(t *testing.T) {
	for _, c := range samples {
		t.Run(c.name, func(t *testing.T) { compareDecode(t, c.typ, []byte(c.json)) })
	}
}

func compareDecode(t *testing.T, g *resource.GoType, data []byte) {
	t.Helper()
	want, wantStrict, wantErr := upstream(g, data)
	got, err := g.Decode(data)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("got error %v, want upstream's %v", err, wantErr)
	}
	if err != nil {
		// Upstream decodes the kind first, with a special error.
		const kindError = "couldn't get version/kind; json parse error"
		if err.Error() != wantErr.Error() && !strings.Contains(wantErr.Error(), kindError) {
			t.Errorf("got error %q, want upstream's %q", err, wantErr)
		}
		return
	}
	if !slices.Equal(got.Strict, wantStrict) {
		t.Errorf("got strict errors %q, want upstream's %q", got.Strict, wantStrict)
	}
	if !reflect.DeepEqual(any(got.Tree), want) {
		t.Errorf("got  %v\nwant %v", got.Tree, want)
	}
}

// TestNormalizeAsDecode checks that Normalize of a tree and Decode of its JSON have the same results and errors.
func TestNormalizeAsDecode(t *testing.T) {
	for _, c := range samples {
		if tree, _, err := object.DecodeJSON([]byte(c.json)); err == nil {
			t.Run(c.name, func(t *testing.T) { compareNormalize(t, c.typ, tree) })
		}
	}
	// Reflection would truncate this value to 1.
	if _, err := event.Normalize(object.Tree{"count": int64(1<<32 + 1)}); err == nil {
		t.Error("an integer too large for its field was accepted")
	}
}

func compareNormalize(t *testing.T, g *resource.GoType, tree object.Tree) {
	t.Helper()
	before := object.Copy(tree)
	got, err := g.Normalize(tree)
	want, wantErr := g.Decode(object.AppendJSON(nil, tree))
	sameErrors := (err == nil) == (wantErr == nil) && (err == nil || err.Error() == wantErr.Error())
	if !reflect.DeepEqual(got.Tree, want.Tree) || !slices.Equal(got.Strict, want.Strict) || !sameErrors {
		t.Errorf("got %v %v, want %v %v", got, err, want, wantErr)
	}
	if !reflect.DeepEqual(tree, before) {
		t.Error("Normalize modified its argument")
	}
}

func FuzzDecode(f *testing.F) {
	for _, c := range samples {
		f.Add([]byte(c.json))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		// Upstream determines the Go type from the kind in the body. This test uses a given Go type.
		for _, g := range []*resource.GoType{configMap, event, pod} {
			obj := g.New()
			gvks, _, _ := scheme.Scheme.ObjectKinds(obj)
			tree, _, err := object.DecodeJSON(data)
			if err != nil || tree == nil {
				_, _ = g.Decode(data) // only checks that Decode does not panic
				continue
			}
			tree["apiVersion"], tree["kind"] = gvks[0].GroupVersion().String(), gvks[0].Kind
			compareDecode(t, g, object.AppendJSON(nil, tree))
			compareNormalize(t, g, tree)
		}
	})
}

func upstreamProtobuf() *protobuf.Serializer {
	return protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
}

// TestProtobufRoundTrip checks that objects have the same bytes in protobuf as in upstream, and that the bytes decode
// to the same object.
//
// CRD-068
func TestProtobufRoundTrip(t *testing.T) {
	for _, c := range samples {
		d, err := c.typ.Decode([]byte(c.json))
		tree := d.Tree
		if err != nil || tree["kind"] == nil {
			continue
		}
		kind, _ := tree["kind"].(string)
		message, err := c.typ.Protobuf(object.AppendJSON(nil, tree))
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		got, err := resource.AppendMessage([]byte("before"), "v1", kind, message)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		got = bytes.TrimPrefix(got, []byte("before"))

		typed, err := c.typ.Object(object.AppendJSON(nil, tree))
		if err != nil {
			t.Fatal(err)
		}
		var wantBytes bytes.Buffer
		if err := upstreamProtobuf().Encode(typed, &wantBytes); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, wantBytes.Bytes()) {
			t.Errorf("%s: got  %q\nwant upstream's %q", c.name, got, wantBytes.Bytes())
		}

		back, err := c.typ.DecodeProtobuf(got)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		decoded, _, err := upstreamProtobuf().Decode(got, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		decoded.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
		want, err := resource.ToTree(decoded)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(back.Tree, want) {
			t.Errorf("%s: got  %v\nwant %v", c.name, back.Tree, want)
		}
	}
}

// TestProtobufList checks that lists have the same bytes in protobuf as in upstream.
//
// CRD-068
func TestProtobufList(t *testing.T) {
	remaining := int64(7)
	for _, n := range []int{0, 1, 3, 200} {
		want := &corev1.ConfigMapList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMapList"},
			ListMeta: metav1.ListMeta{ResourceVersion: "42", Continue: "next", RemainingItemCount: &remaining},
		}
		var l resource.ProtobufList
		for i := range n {
			cm := corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("n", i+1)},
				Data:       map[string]string{"k": strings.Repeat("v", i)},
			}
			if err := l.Add(&cm); err != nil {
				t.Fatal(err)
			}
			want.Items = append(want.Items, cm)
		}
		got, err := l.Append(nil, "v1", "ConfigMapList", &want.ListMeta)
		if err != nil {
			t.Fatal(err)
		}
		var wantBytes bytes.Buffer
		if err := upstreamProtobuf().Encode(want, &wantBytes); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, wantBytes.Bytes()) {
			t.Errorf("%d items: got %q\nwant upstream's %q", n, got, wantBytes.Bytes())
		}
	}
	if err := new(resource.ProtobufList).Add(&metav1.Table{}); err == nil {
		t.Error("a Table in protobuf")
	}
}

// TestProtobufEvent checks that the frames of a protobuf watch equal those of upstream.
//
// CRD-062
func TestProtobufEvent(t *testing.T) {
	cm := &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: "a"},
	}
	obj, err := resource.AppendProtobuf(nil, "v1", "ConfigMap", cm)
	if err != nil {
		t.Fatal(err)
	}
	var stream []byte
	for _, event := range []string{"ADDED", "MODIFIED"} {
		if stream, err = resource.AppendProtobufEvent(stream, event, obj); err != nil {
			t.Fatal(err)
		}
	}
	var wantBytes bytes.Buffer
	raw := protobuf.NewRawSerializer(scheme.Scheme, scheme.Scheme)
	for _, event := range []string{"ADDED", "MODIFIED"} {
		frame := protobuf.LengthDelimitedFramer.NewFrameWriter(&wantBytes)
		e := &metav1.WatchEvent{Type: event, Object: runtime.RawExtension{Raw: obj}}
		if err := raw.Encode(e, frame); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(stream, wantBytes.Bytes()) {
		t.Errorf("got  %q\nwant %q", stream, wantBytes.Bytes())
	}
}

// TestProtobufErrors checks that invalid protobuf is rejected with upstream's errors.
//
// CRD-068
func TestProtobufErrors(t *testing.T) {
	for _, data := range []string{
		"", "k8s", "k8s\x00", "{}", "k8s\x00\xff\xff", "k8s\x00\x12\x05\x0a\xff\xff\xff\xff", "k8s\x00\x12\x7f",
	} {
		_, _, want := upstreamProtobuf().Decode([]byte(data), nil, &corev1.ConfigMap{})
		_, _, err := resource.DecodeProtobuf([]byte(data), &corev1.ConfigMap{})
		if want == nil || err == nil || err.Error() != want.Error() {
			t.Errorf("%q: got error %v, want upstream's %v", data, err, want)
		}
	}
	if _, err := resource.AppendProtobuf(nil, "meta.k8s.io/v1", "Table", &metav1.Table{}); err == nil {
		t.Error("a Table in protobuf")
	}
}

// nest returns a CRD in protobuf whose schema contains depth messages nested in the field "not" (number 28) of
// JSONSchemaProps.
func nest(depth int) []byte {
	var reversed []byte
	for range depth {
		head := binary.AppendUvarint(binary.AppendUvarint(nil, 28<<3|2), uint64(len(reversed)))
		slices.Reverse(head)
		reversed = append(reversed, head...)
	}
	slices.Reverse(reversed)
	wrap := func(number uint64, b []byte) []byte {
		return append(binary.AppendUvarint(binary.AppendUvarint(nil, number<<3|2), uint64(len(b))), b...)
	}
	crd := wrap(2, wrap(7, wrap(4, wrap(1, reversed)))) // spec, versions, schema, openAPIV3Schema
	return append([]byte("k8s\x00"), wrap(2, crd)...)
}

// TestProtobufDepth checks that deeply nested messages are rejected. A body of 3 MiB can nest half a million
// messages, which would overflow the stack.
//
// CRD-068
func TestProtobufDepth(t *testing.T) {
	crd := typeOf[apiextensionsv1.CustomResourceDefinition, apiextensionsv1.CustomResourceDefinitionList]()
	if _, err := crd.DecodeProtobuf(nest(500_000)); err == nil || err.Error() != "exceeded max depth" {
		t.Errorf("got error %v, want exceeded max depth", err)
	}
	tree, err := crd.DecodeProtobuf(nest(1000))
	if err != nil {
		t.Fatal(err)
	}
	if d, err := crd.Normalize(tree.Tree); err != nil || len(d.Strict) > 0 {
		t.Errorf("got strict errors %q and error %v", d.Strict, err)
	}
	// A field in front of the nested messages must not hide the nesting: a group, a varint with excess bits, a
	// string, or a fixed-size number.
	for _, before := range []string{
		"\x7b\x7c", "\x7a\x03abc", "\x78\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", "\x7d....", "\x79........",
	} {
		if err := decodeAfter(crd, before, nest(500_000)); err == nil || err.Error() != "exceeded max depth" {
			t.Errorf("%q: got error %v, want exceeded max depth", before, err)
		}
	}
}

// decodeAfter decodes an envelope after inserting bytes in front of its raw message.
func decodeAfter(g *resource.GoType, before string, envelope []byte) error {
	var unknown runtime.Unknown
	if err := unknown.Unmarshal(envelope[4:]); err != nil {
		return err
	}
	unknown.Raw = append([]byte(before), unknown.Raw...)
	data, err := unknown.Marshal()
	if err != nil {
		return err
	}
	_, err = g.DecodeProtobuf(append([]byte("k8s\x00"), data...))
	return err
}

func FuzzDecodeProtobuf(f *testing.F) {
	for _, c := range samples {
		message, err := c.typ.Protobuf([]byte(c.json))
		if err != nil {
			continue
		}
		if b, err := resource.AppendMessage(nil, "v1", "X", message); err == nil {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, g := range []*resource.GoType{configMap, event, pod} {
			tree, err := g.DecodeProtobuf(data)
			if err != nil {
				continue
			}
			if _, err := g.Normalize(tree.Tree); err != nil {
				t.Errorf("the tree of a protobuf body does not match its type: %v", err)
			}
		}
	})
}

func benchmarkBody() []byte {
	t := object.Tree{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": object.Tree{"name": "a", "namespace": "default"},
		"data": object.Tree{},
	}
	for _, key := range []string{"a", "b", "c", "d"} {
		t["data"].(object.Tree)[key] = strings.Repeat("x", 450)
	}
	return object.AppendJSON(nil, t)
}

func BenchmarkDecode(b *testing.B) {
	body := benchmarkBody()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := configMap.Decode(body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMessage(b *testing.B) {
	body := benchmarkBody()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := configMap.Protobuf(body); err != nil {
			b.Fatal(err)
		}
	}
}
