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

// allVersions returns all versions of all built-in kinds.
func allVersions() []*resource.Version {
	var all []*resource.Version
	for _, d := range Definitions(Config{}) {
		all = append(all, d.Versions...)
	}
	return all
}

// find returns the first version of a kind by its group and plural.
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

// TestFieldsAreThoseOfClientGo checks that the schemas for managed fields equal client-go's (CRD-057).
func TestFieldsAreThoseOfClientGo(t *testing.T) {
	converter := applyconfigurations.NewTypeConverter(scheme.Scheme)
	c, seen := comparison{}, map[string]bool{}
	for _, v := range allVersions() {
		if g := v.GroupVersion.Group; g == "apiextensions.k8s.io" || g == "apiregistration.k8s.io" ||
			v.Type.NewList == nil {
			continue // types that client-go lacks or that are never used in server-side apply
		}
		obj := v.Type.New()
		obj.GetObjectKind().SetGroupVersionKind(v.GroupVersionKind())
		upstream, err := converter.ObjectToTyped(obj)
		if err != nil {
			t.Fatal(err)
		}
		trellis, err := v.Parseable()
		if err != nil {
			t.Fatal(err)
		}
		c.trellis, c.upstream = trellis.Schema, upstream.Schema()
		c.compare(seen, v.APIVersion+" "+v.Definition.Names.Kind, trellis.TypeRef, upstream.TypeRef())
	}
	c.report(t)
}

// TestFieldsOfCRDAreUpstreams checks the schema of CustomResourceDefinition, which upstream derives from OpenAPI
// (CRD-057).
func TestFieldsOfCRDAreUpstreams(t *testing.T) {
	models := map[string]*spec.Schema{}
	definitions := apiextensionsopenapi.GetOpenAPIDefinitions(func(name string) spec.Ref {
		return spec.MustCreateRef("#/definitions/" + name)
	})
	for name, d := range definitions {
		models[name] = &d.Schema
	}
	upstream, err := schemaconv.ToSchemaFromOpenAPI(models, false)
	if err != nil {
		t.Fatal(err)
	}
	trellis, err := find(t, "apiextensions.k8s.io", "customresourcedefinitions").Parseable()
	if err != nil {
		t.Fatal(err)
	}
	c := comparison{trellis: trellis.Schema, upstream: upstream}
	name := "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition"
	c.compare(map[string]bool{}, "CustomResourceDefinition", trellis.TypeRef, schema.TypeRef{NamedType: &name})
	c.report(t)
}

func (c *comparison) report(t *testing.T) {
	t.Helper()
	for _, d := range c.differences {
		t.Error(d)
	}
	if len(c.lines) > 0 {
		slices.Sort(c.lines)
		t.Errorf("these lines are missing or different in resource/fields.txt:\n%s", strings.Join(c.lines, "\n"))
	}
}

// TestFieldsOfReviews checks that reviews and partial metadata have schemas for managed fields.
func TestFieldsOfReviews(t *testing.T) {
	for _, obj := range []runtime.Object{&authenticationv1.SelfSubjectReview{},
		&authorizationv1.SelfSubjectAccessReview{}, &metav1.PartialObjectMetadata{}} {
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
