package kinds

import (
	"slices"
	"strings"
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

// allVersions yields each endpoint of each kind that the table holds.
func allVersions() []*resource.Version {
	var all []*resource.Version
	for _, d := range Definitions(Config{}) {
		all = append(all, d.Versions...)
	}
	return all
}

// find returns the endpoint of a plural in a group.
func find(t *testing.T, group, plural string) *resource.Version {
	t.Helper()
	for _, v := range allVersions() {
		if v.GroupVersion.Group == group && v.Definition.Names.Plural == plural {
			return v
		}
	}
	t.Fatalf("no %s in group %q", plural, group)
	return nil
}

// CRD-057: the fields that managers can own are those of client-go.
func TestFieldsAreThoseOfClientGo(t *testing.T) {
	converter := applyconfigurations.NewTypeConverter(scheme.Scheme)
	c, seen := comparison{}, map[string]bool{}
	for _, v := range allVersions() {
		if g := v.GroupVersion.Group; g == "apiextensions.k8s.io" || g == "apiregistration.k8s.io" || v.Type.NewList == nil {
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
		c.trellis, c.clientGo = ours.Schema, theirs.Schema()
		c.compare(seen, v.APIVersion+" "+v.Definition.Names.Kind, ours.TypeRef, theirs.TypeRef())
	}
	c.report(t)
}

// CRD-057: of the kind that defines kinds, whose schema upstream makes from its OpenAPI.
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
	c := comparison{trellis: ours.Schema, clientGo: theirs}
	name := "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition"
	c.compare(map[string]bool{}, "CustomResourceDefinition", ours.TypeRef, schema.TypeRef{NamedType: &name})
	c.report(t)
}

func (c *comparison) report(t *testing.T) {
	t.Helper()
	for _, d := range c.differences {
		t.Error(d)
	}
	if len(c.lines) > 0 {
		slices.Sort(c.lines)
		t.Errorf("resource/fields.txt lacks, or has otherwise:\n%s", strings.Join(c.lines, "\n"))
	}
}

// A kind that is only asked is parsed all the same.
func TestFieldsOfReviews(t *testing.T) {
	for _, obj := range []runtime.Object{&authenticationv1.SelfSubjectReview{}, &authorizationv1.SelfSubjectAccessReview{}, &metav1.PartialObjectMetadata{}} {
		g := resource.GoType{New: func() runtime.Object { return obj }}
		if _, err := g.Parseable(); err != nil {
			t.Error(err)
		}
	}
}

func BenchmarkParseable(b *testing.B) {
	versions := allVersions()
	b.ReportAllocs()
	var p typed.ParseableType
	for b.Loop() {
		for _, v := range versions {
			p, _ = v.Type.Parseable()
		}
	}
	_ = p
}
