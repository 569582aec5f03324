package extension

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	kubernetesscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
	generated "k8s.io/kubernetes/pkg/generated/openapi"
)

// Boat is the Go type of the kind at v1, and OldBoat is its Go type at v1alpha1. The name of the field title is name
// at v1alpha1.
type Boat struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              BoatSpec   `json:"spec,omitempty"`
	Status            BoatStatus `json:"status,omitempty"`
}

type BoatSpec struct {
	Title   string           `json:"title,omitempty"`
	Color   string           `json:"color,omitempty"`
	Sails   *int32           `json:"sails,omitempty"`
	Crew    []string         `json:"crew"`
	Anchors []Anchor         `json:"anchors,omitempty"`
	Built   metav1.Time      `json:"built,omitempty"`
	Leeway  *metav1.Duration `json:"leeway,omitempty"`
}

type Anchor struct {
	Name  string `json:"name"`
	Depth int32  `json:"depth"`
}

type BoatStatus struct {
	Sails int32 `json:"sails"`
}

type OldBoat struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              OldBoatSpec `json:"spec,omitempty"`
}

type OldBoatSpec struct {
	Name string `json:"name,omitempty"`
}

func (b *Boat) DeepCopyObject() runtime.Object {
	out := *b
	out.ObjectMeta = *b.ObjectMeta.DeepCopy()
	out.Spec.Crew, out.Spec.Anchors = slices.Clone(b.Spec.Crew), slices.Clone(b.Spec.Anchors)
	return &out
}

func (b *OldBoat) DeepCopyObject() runtime.Object {
	out := *b
	out.ObjectMeta = *b.ObjectMeta.DeepCopy()
	return &out
}

// boatDefinitions returns the definitions that openapi-gen would generate from Boat and OldBoat.
func boatDefinitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	const here = "github.com/trellis-k8s/trellis/extension."
	text := func(about string) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{Description: about, Type: []string{"string"}}}
	}
	whole := spec.Schema{SchemaProps: spec.SchemaProps{Default: 0, Type: []string{"integer"}, Format: "int32"}}
	list := func(of spec.Schema, extensions spec.Extensions) spec.Schema {
		return spec.Schema{VendorExtensible: spec.VendorExtensible{Extensions: extensions},
			SchemaProps: spec.SchemaProps{Type: []string{"array"}, Items: &spec.SchemaOrArray{Schema: &of}}}
	}
	to := func(name string) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{Default: map[string]any{}, Ref: ref(name)}}
	}
	of := func(about string, required []string, p map[string]spec.Schema) common.OpenAPIDefinition {
		return common.OpenAPIDefinition{Schema: spec.Schema{SchemaProps: spec.SchemaProps{Description: about,
			Type: []string{"object"}, Required: required, Properties: p}}}
	}
	byName := spec.Extensions{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []string{"name"},
		"x-kubernetes-patch-merge-key": "name"}
	return map[string]common.OpenAPIDefinition{
		here + "Boat": of("Boat is moved by wind.", nil, map[string]spec.Schema{
			"apiVersion": text(""), "kind": text(""), "metadata": to("k8s.io/apimachinery/pkg/apis/meta/v1.ObjectMeta"),
			"spec": to(here + "BoatSpec"), "status": to(here + "BoatStatus")}),
		here + "BoatSpec": of("", []string{"crew"}, map[string]spec.Schema{
			"title": text("The name on its side."), "color": {SchemaProps: spec.SchemaProps{Type: []string{"string"},
				Enum: []any{"red", "white"}}},
			"sails": whole, "crew": list(text(""), nil), "anchors": list(to(here+"Anchor"), byName),
			"built":  to("k8s.io/apimachinery/pkg/apis/meta/v1.Time"),
			"leeway": to("k8s.io/apimachinery/pkg/apis/meta/v1.Duration")}),
		here + "Anchor":     of("", []string{"name"}, map[string]spec.Schema{"name": text(""), "depth": whole}),
		here + "BoatStatus": of("", []string{"sails"}, map[string]spec.Schema{"sails": whole}),
		here + "OldBoat": of("Boat as it was.", nil, map[string]spec.Schema{"apiVersion": text(""), "kind": text(""),
			"metadata": to("k8s.io/apimachinery/pkg/apis/meta/v1.ObjectMeta"), "spec": to(here + "OldBoatSpec")}),
		here + "OldBoatSpec": of("", nil, map[string]spec.Schema{"name": text("The name of the boat.")}),
	}
}

// boatScheme returns a scheme with a default in each version and conversions between the versions.
func boatScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	s.AddKnownTypeWithName(boats.GroupVersion().WithKind("Boat"), &Boat{})
	s.AddKnownTypeWithName(boats.GroupResource().WithVersion("v1alpha1").GroupVersion().WithKind("Boat"), &OldBoat{})
	s.AddTypeDefaultingFunc(&Boat{}, func(obj any) {
		if b := obj.(*Boat); b.Spec.Sails == nil {
			b.Spec.Sails = new(int32(2))
		}
	})
	s.AddTypeDefaultingFunc(&OldBoat{}, func(obj any) {
		if b := obj.(*OldBoat); b.Spec.Name == "" {
			b.Spec.Name = "nameless"
		}
	})
	for _, err := range []error{
		s.AddConversionFunc((*OldBoat)(nil), (*Boat)(nil), func(a, b any, _ conversion.Scope) error {
			old, now := a.(*OldBoat), b.(*Boat)
			now.ObjectMeta, now.Spec.Title = old.ObjectMeta, old.Spec.Name
			return nil
		}),
		s.AddConversionFunc((*Boat)(nil), (*OldBoat)(nil), func(a, b any, _ conversion.Scope) error {
			now, old := a.(*Boat), b.(*OldBoat)
			old.ObjectMeta, old.Spec.Name = now.ObjectMeta, now.Spec.Title
			return nil
		}),
	} {
		if err != nil {
			panic(err)
		}
	}
	return s
}

func boatSpec() *apiextensionsv1.CustomResourceDefinitionSpec {
	return &apiextensionsv1.CustomResourceDefinitionSpec{
		Group: boats.Group, Scope: apiextensionsv1.NamespaceScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "boats", Kind: "Boat"},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
			{Name: "v1", Served: true, Storage: true, Subresources: &apiextensionsv1.CustomResourceSubresources{
				Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
				Scale: &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.sails",
					StatusReplicasPath: ".status.sails"}},
				AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{{Name: "Title",
					Type: "string", JSONPath: ".spec.title"}}},
			{Name: "v1alpha1", Served: true},
		},
	}
}

func typedBoats() Kind { return Kind{Spec: boatSpec(), Scheme: boatScheme(), OpenAPI: boatDefinitions} }

// TestGoTypes checks the schemas, defaults, conversions and validation of a kind with Go types.
func TestGoTypes(t *testing.T) {
	k := typedBoats()
	k.Admit = Typed(func(_ context.Context, _ *Request, b, _ *Boat) error {
		if b != nil {
			b.Labels = map[string]string{"title": b.Spec.Title}
		}
		return nil
	})
	k.Validate = Typed(func(_ context.Context, r *Request, b, old *Boat) error {
		if old != nil && b != nil && *b.Spec.Sails < *old.Spec.Sails {
			return field.Invalid(field.NewPath("spec", "sails"), *b.Spec.Sails, "may not be fewer")
		}
		return nil
	})
	e := start(t, k)
	ctx := t.Context()
	o, err := e.create(boat("rose", map[string]any{"title": "Rose", "anchors": []any{map[string]any{"name": "bow"}}}))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"title": "Rose", "sails": int64(2), "crew": nil,
		"anchors": []any{map[string]any{"name": "bow", "depth": int64(0)}}}
	if !reflect.DeepEqual(o.Object["spec"], want) || o.GetLabels()["title"] != "Rose" || o.GetGeneration() != 1 {
		t.Errorf("%v", o.Object)
	}
	older := dynamic.NewForConfigOrDie(e.admin).Resource(boats.GroupResource().WithVersion("v1alpha1")).
		Namespace("default")
	if o, err = older.Get(ctx, "rose", metav1.GetOptions{}); err != nil || text(o, "spec", "name") != "Rose" ||
		o.GetUID() == "" {
		t.Errorf("%v %v", o, err)
	}
	v1alpha1 := boat("old", nil)
	v1alpha1.SetAPIVersion("example.com/v1alpha1")
	if o, err = older.Create(ctx, v1alpha1, metav1.CreateOptions{}); err != nil ||
		text(o, "spec", "name") != "nameless" {
		t.Errorf("%v %v", o, err)
	}
	if o, err = e.boats.Get(ctx, "old", metav1.GetOptions{}); err != nil || text(o, "spec", "title") != "nameless" ||
		o.GetLabels()["title"] != "nameless" {
		t.Errorf("%v %v", o, err)
	}
	fewer := []byte(`{"spec":{"sails":1}}`)
	if _, err := e.boats.Patch(ctx, "rose", types.MergePatchType, fewer,
		metav1.PatchOptions{}); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "spec.sails: Invalid value: 1: may not be fewer") {
		t.Error(err)
	}
	t.Run("refused", func(t *testing.T) { testGoTypeRefusals(t, e) })
	t.Run("owned", func(t *testing.T) { testGoTypeApply(t, e) })
	t.Run("described", func(t *testing.T) { testGoTypeDescribed(t, e) })
}

// testGoTypeRefusals checks that an object that does not match its Go type is rejected with kube-apiserver's message.
// If this message does not contain the name of the field, the path of the field precedes it.
func testGoTypeRefusals(t *testing.T, e *env) {
	ctx, direct := t.Context(), kubernetes.NewForConfigOrDie(e.admin).RESTClient()
	for want, spec := range map[string]map[string]any{
		`Boat in version "v1" cannot be handled as a Boat: json: cannot unmarshal string into Go struct field BoatSpec.spec.sails of type int32`: {"sails": "many"},
		`Boat in version "v1" cannot be handled as a Boat: strict decoding error: unknown field "spec.wheels"`:                                   {"wheels": int64(4)},
		`Boat in version "v1" cannot be handled as a Boat: spec.leeway: time: invalid duration "soon"`:                                           {"leeway": "soon"},
		`Boat.example.com "b" is invalid: spec.color: Unsupported value: "blue": supported values: "red", "white"`:                               {"color": "blue"},
	} {
		if _, err := e.boats.Create(ctx, boat("b", spec),
			metav1.CreateOptions{FieldValidation: "Strict"}); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
		js, _ := boat("b", spec).MarshalJSON() // JSON is also YAML, which has another decoder
		post := direct.Post().AbsPath("/apis/example.com/v1/namespaces/default/boats").Param("fieldValidation",
			"Strict").SetHeader("Content-Type", "application/yaml")
		if err := post.Body(js).Do(ctx).Error(); err == nil || err.Error() != want {
			t.Errorf("as YAML: %v, want %s", err, want)
		}
	}
	patch := []byte(`{"spec":{"sails":"many"}}`)
	_, err := e.boats.Patch(ctx, "rose", types.MergePatchType, patch, metav1.PatchOptions{})
	const want = "cannot unmarshal string into Go struct field BoatSpec.spec.sails of type int32"
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
}

// testGoTypeApply checks that lists are merged by the keys that the types declare, and that default values have no
// field owner.
func testGoTypeApply(t *testing.T, e *env) {
	ctx := t.Context()
	for _, a := range []string{"port", "starboard"} {
		applied := boat("applied", map[string]any{"anchors": []any{map[string]any{"name": a, "depth": int64(3)}}})
		if _, err := e.boats.Apply(ctx, "applied", applied, metav1.ApplyOptions{FieldManager: a}); err != nil {
			t.Fatal(err)
		}
	}
	o, err := e.boats.Get(ctx, "applied", metav1.GetOptions{})
	anchors, _, _ := unstructured.NestedSlice(o.Object, "spec", "anchors")
	if sails, _, _ := unstructured.NestedInt64(o.Object, "spec", "sails"); err != nil || len(anchors) != 2 ||
		sails != 2 {
		t.Errorf("%v %v", o, err)
	}
	if len(o.GetManagedFields()) != 2 || strings.Contains(string(o.GetManagedFields()[0].FieldsV1.GetRawBytes()),
		"sails") {
		t.Errorf("%v", o.GetManagedFields())
	}
	strategic := []byte(`{"spec":{"crew":["Ann"]}}`)
	if o, err = e.boats.Patch(ctx, "applied", types.StrategicMergePatchType, strategic,
		metav1.PatchOptions{}); err != nil || fmt.Sprint(o.Object["spec"].(map[string]any)["crew"]) != "[Ann]" {
		t.Errorf("%v %v", o, err)
	}
}

func testGoTypeDescribed(t *testing.T, e *env) {
	client, err := rest.HTTPClientFor(e.admin)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/openapi/v3/apis/example.com/v1":       "The name on its side.",
		"/openapi/v3/apis/example.com/v1alpha1": "The name of the boat.",
		"/openapi/v2":                           "Boat is moved by wind.",
	} {
		if got := read200(t, client, e.server.URL()+path, "application/json"); !strings.Contains(got, want) {
			t.Errorf("%s lacks %q", path, want)
		}
	}
	table := read200(t, client, e.server.URL()+"/apis/example.com/v1/namespaces/default/boats/rose",
		"application/json;as=Table;g=meta.k8s.io;v=v1")
	if !strings.Contains(table, `"cells":["rose","Rose"]`) {
		t.Error(table)
	}
	// A type without protobuf methods is not served as protobuf.
	if js := read200(t, client, e.server.URL()+"/apis/example.com/v1/namespaces/default/boats/rose",
		"application/vnd.kubernetes.protobuf,application/json"); !strings.HasPrefix(js, "{") {
		t.Errorf("%q", js)
	}
}

func read200(t *testing.T, c *http.Client, url, accept string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("%s: %s %v", url, resp.Status, err)
	}
	return string(body)
}

// TestGoTypeProtobuf checks that types with protobuf methods use protobuf in request bodies, responses, lists and
// watches.
func TestGoTypeProtobuf(t *testing.T) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(coordinationv1.SchemeGroupVersion, &coordinationv1.Lease{})
	e := start(t, Kind{Manifest: []byte(manifest)}, Kind{Scheme: scheme, OpenAPI: generated.GetOpenAPIDefinitions,
		Spec: &apiextensionsv1.CustomResourceDefinitionSpec{
			Group: coordinationv1.GroupName, Scope: apiextensionsv1.NamespaceScoped,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: "leases", Kind: "Lease"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true}},
		}})
	as := rest.CopyConfig(e.admin)
	// no other media type
	as.ContentType, as.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	leases, ctx := kubernetes.NewForConfigOrDie(as).CoordinationV1().Leases("default"), t.Context()
	watch, err := leases.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	renewed := metav1.NewMicroTime(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC))
	made, err := leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "l"},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new("me"), RenewTime: &renewed}}, metav1.CreateOptions{})
	if err != nil || *made.Spec.HolderIdentity != "me" || !made.Spec.RenewTime.Equal(&renewed) || made.UID == "" {
		t.Fatal(made, err)
	}
	if e := <-watch.ResultChan(); e.Object.(*coordinationv1.Lease).UID != made.UID {
		t.Errorf("%v", e)
	}
	made.Spec.LeaseDurationSeconds = new(int32(7))
	if made, err = leases.Update(ctx, made, metav1.UpdateOptions{}); err != nil ||
		*made.Spec.LeaseDurationSeconds != 7 {
		t.Errorf("%v %v", made, err)
	}
	if list, err := leases.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 1 ||
		*list.Items[0].Spec.HolderIdentity != "me" {
		t.Errorf("%v %v", list, err)
	}
}

// TestGeneratedSchemas checks that the generated schema of each Go type of Kubernetes is a valid structural schema.
func TestGeneratedSchemas(t *testing.T) {
	for gvk, of := range kubernetesscheme.Scheme.AllKnownTypes() {
		obj, isObject := reflect.New(of).Interface().(interface {
			runtime.Object
			metav1.Object
		})
		if !isObject || gvk.Version == runtime.APIVersionInternal {
			continue
		}
		scheme := runtime.NewScheme()
		scheme.AddKnownTypeWithName(boats.GroupVersion().WithKind("Boat"), obj)
		k := Kind{Spec: boatSpec(), Scheme: scheme, OpenAPI: generated.GetOpenAPIDefinitions}
		k.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true}}
		d, err := k.definition()
		if err != nil {
			t.Errorf("%s: %v", gvk, err)
			continue
		}
		if s, err := d.Storage.Schema(); err != nil {
			t.Errorf("%s: %v", gvk, err)
		} else if _, err := s.Parseable(); err != nil {
			t.Errorf("%s: %v", gvk, err)
		}
	}
}

// TestGeneratedDeployment checks that the Go type normalizes values for which the schema permits several forms, such
// as quantities and ports.
func TestGeneratedDeployment(t *testing.T) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypeWithName(boats.GroupVersion().WithKind("Boat"), &appsv1.Deployment{})
	k := Kind{Spec: boatSpec(), Scheme: scheme, OpenAPI: generated.GetOpenAPIDefinitions}
	k.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true}}
	e := start(t, k)
	container := map[string]any{"name": "c",
		"resources":      map[string]any{"limits": map[string]any{"cpu": int64(1), "memory": "1024Mi"}},
		"readinessProbe": map[string]any{"httpGet": map[string]any{"port": int64(80)}},
		"livenessProbe":  map[string]any{"httpGet": map[string]any{"port": "http"}}}
	o, err := e.boats.Apply(t.Context(), "d",
		boat("d", map[string]any{"selector": map[string]any{},
			"template": map[string]any{"spec": map[string]any{"containers": []any{container}}}}),
		metav1.ApplyOptions{FieldManager: "me"})
	if err != nil {
		t.Fatal(err)
	}
	var d appsv1.Deployment
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d); err != nil {
		t.Fatal(err)
	}
	c := d.Spec.Template.Spec.Containers[0]
	if c.Resources.Limits.Cpu().String() != "1" || c.Resources.Limits.Memory().String() != "1Gi" ||
		c.ReadinessProbe.HTTPGet.Port.IntValue() != 80 || c.LivenessProbe.HTTPGet.Port.StrVal != "http" {
		t.Errorf("%v", o.Object)
	}
}

// TestInvalidGoTypes checks the errors for kinds whose manifest and Go types do not match.
func TestInvalidGoTypes(t *testing.T) {
	for want, change := range map[string]func(*Kind){
		`no kind "Boat" is registered for version "example.com/v1"`: func(k *Kind) {
			k.Scheme = runtime.NewScheme()
		},
		"version v1 has no schema, and OpenAPI is not set": func(k *Kind) { k.OpenAPI = nil },
		"OpenAPI does not define com.github.trellis-k8s.trellis.extension.Boat": func(k *Kind) {
			k.OpenAPI = generated.GetOpenAPIDefinitions
		},
		"spec.versions[0].schema.openAPIV3Schema: Required value": func(k *Kind) { k.Scheme = nil },
		"converting (extension.OldBoat) to (extension.Boat): unknown conversion": func(k *Kind) {
			k.Scheme = unconverted()
		},
		"boats.example.com: Go conversion and the annotation trellis.dev/conversion are mutually exclusive": func(k *Kind) {
			k.Spec, k.Manifest = nil, []byte(strings.Replace(manifest, "{name: boats.example.com}",
				"{name: boats.example.com, annotations: {trellis.dev/conversion: x}}", 1))
		},
	} {
		k := typedBoats()
		change(&k)
		if _, err := Start(t.Context(), Config{Kinds: []Kind{k}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func unconverted() *runtime.Scheme {
	s := runtime.NewScheme()
	s.AddKnownTypeWithName(boats.GroupVersion().WithKind("Boat"), &Boat{})
	s.AddKnownTypeWithName(boats.GroupResource().WithVersion("v1alpha1").GroupVersion().WithKind("Boat"), &OldBoat{})
	return s
}
