package builtin

import (
	"fmt"
	"slices"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apiextensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kube-openapi/pkg/schemaconv"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// everyVersion yields each endpoint of each kind that the table holds.
func everyVersion() []*resource.Version {
	var all []*resource.Version
	for _, d := range Definitions(Config{}) {
		all = append(all, d.Versions...)
	}
	return all
}

// CRD-055
func TestFieldsAreThoseOfClientGo(t *testing.T) {
	converter := applyconfigurations.NewTypeConverter(scheme.Scheme)
	for _, v := range everyVersion() {
		if v.GroupVersion.Group == "apiextensions.k8s.io" || v.Type.NewList == nil {
			continue // not of client-go; never applied
		}
		obj := v.Type.New()
		obj.GetObjectKind().SetGroupVersionKind(v.GroupVersionKind())
		theirs, err := converter.ObjectToTyped(obj)
		if err != nil {
			t.Fatal(err)
		}
		ours, err := v.Parseable()
		if err != nil {
			t.Fatal(err)
		}
		c := comparison{ours: ours.Schema, theirs: theirs.Schema(), seen: map[string]bool{}}
		c.compare(v.APIVersion+" "+v.Definition.Names.Kind, ours.TypeRef, theirs.TypeRef())
		for _, d := range c.differences {
			t.Error(d)
		}
	}
}

// CRD-055: of the kind that defines kinds, whose schema upstream makes from its OpenAPI.
func TestFieldsOfCRDAreUpstreams(t *testing.T) {
	models := map[string]*spec.Schema{}
	definitions := apiextensionsopenapi.GetOpenAPIDefinitions(func(name string) spec.Ref {
		return spec.MustCreateRef("#/definitions/" + name)
	})
	for name, d := range definitions {
		models[name] = &d.Schema
	}
	theirs, err := schemaconv.ToSchemaFromOpenAPI(models, false)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := find(t, "apiextensions.k8s.io", "customresourcedefinitions").Parseable()
	if err != nil {
		t.Fatal(err)
	}
	c := comparison{ours: ours.Schema, theirs: theirs, seen: map[string]bool{}}
	name := "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition"
	c.compare("CustomResourceDefinition", ours.TypeRef, schema.TypeRef{NamedType: &name})
	for _, d := range c.differences {
		t.Error(d)
	}
}

// comparison walks two schemas side by side.
type comparison struct {
	ours, theirs *schema.Schema
	seen         map[string]bool
	differences  []string
}

func (c *comparison) differ(path string, a, b any) {
	c.differences = append(c.differences, fmt.Sprintf("%s: ours %v, client-go's %v", path, a, b))
}

func (c *comparison) compare(path string, a, b schema.TypeRef) {
	if a.NamedType != nil {
		if c.seen[*a.NamedType] {
			return
		}
		c.seen[*a.NamedType] = true
	}
	x, okA := c.ours.Resolve(a)
	y, okB := c.theirs.Resolve(b)
	if !okA || !okB {
		c.differ(path, okA, okB)
		return
	}
	if (x.Scalar == nil) != (y.Scalar == nil) || (x.List == nil) != (y.List == nil) || (x.Map == nil) != (y.Map == nil) {
		c.differ(path, x, y)
		return
	}
	if x.Scalar != nil && *x.Scalar != *y.Scalar {
		c.differ(path, *x.Scalar, *y.Scalar)
	}
	if x.List != nil {
		if x.List.ElementRelationship != y.List.ElementRelationship || !slices.Equal(x.List.Keys, y.List.Keys) {
			c.differ(path, x.List, y.List)
		}
		c.compare(path+"[]", x.List.ElementType, y.List.ElementType)
	}
	if x.Map != nil {
		c.compareMaps(path, x.Map, y.Map)
	}
}

func (c *comparison) compareMaps(path string, a, b *schema.Map) {
	relation := func(m *schema.Map) schema.ElementRelationship {
		if m.ElementRelationship == "" {
			return schema.Separable
		}
		return m.ElementRelationship
	}
	if relation(a) != relation(b) {
		c.differ(path, relation(a), relation(b))
	}
	if (a.ElementType == schema.TypeRef{}) != (b.ElementType == schema.TypeRef{}) {
		c.differ(path+".*", a.ElementType, b.ElementType)
	} else if (a.ElementType != schema.TypeRef{}) {
		c.compare(path+".*", a.ElementType, b.ElementType)
	}
	names := map[string]bool{}
	for _, f := range append(slices.Clone(a.Fields), b.Fields...) {
		names[f.Name] = true
	}
	for name := range names {
		x, okA := a.FindField(name)
		y, okB := b.FindField(name)
		if okA != okB {
			c.differ(path+"."+name, okA, okB)
			continue
		}
		c.compare(path+"."+name, x.Type, y.Type)
		if isScalar(y.Default) && relation(b) != schema.Atomic && fmt.Sprint(x.Default) != fmt.Sprint(y.Default) {
			c.differ(path+"."+name+" default", x.Default, y.Default)
		}
	}
}

// isScalar leaves out the defaults that no key of a list can have.
func isScalar(v any) bool {
	switch v.(type) {
	case string, bool, int, int64:
		return true
	}
	return false
}

// A kind that is only asked is parsed all the same.
func TestFieldsOfReviews(t *testing.T) {
	for _, obj := range []runtime.Object{&authenticationv1.SelfSubjectReview{}, &authorizationv1.SelfSubjectAccessReview{}, &metav1.PartialObjectMetadata{}} {
		if _, err := parseable(obj); err != nil {
			t.Error(err)
		}
	}
}

func BenchmarkParseable(b *testing.B) {
	versions := everyVersion()
	b.ReportAllocs()
	var p typed.ParseableType
	for b.Loop() {
		for _, v := range versions {
			p, _ = parseable(v.Type.New())
		}
	}
	_ = p
}
