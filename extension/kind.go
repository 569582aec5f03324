package extension

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-openapi/pkg/common"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/conversion"
	"github.com/trellis-k8s/trellis/internal/kinds/crdvalidation"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Kind is one that a server serves, as long as it runs.
type Kind struct {
	// Manifest says of the kind all that a CustomResourceDefinition of apiextensions.k8s.io/v1 can say, as YAML or JSON: names,
	// scope, versions, schemas with defaults and CEL rules, columns, selectable fields, the subresources status and scale. It
	// is checked as one, but no API server gets to see it.
	Manifest []byte
	// Spec, in place of Manifest, is the same in Go.
	Spec *apiextensionsv1.CustomResourceDefinitionSpec
	// Scheme, if there is one, has a Go type for each version of the kind. Its defaulting functions fill in defaults, its conversion
	// functions convert, from version to version or by way of the internal one, and types with a protobuf form speak it.
	Scheme *runtime.Scheme
	// OpenAPI is what openapi-gen has made of the Go types, as far as versions have no schema in the manifest.
	OpenAPI common.GetOpenAPIDefinitions
	// Convert takes an object, which belongs to it, to another version of the kind. nil: versions differ in apiVersion alone, or
	// as Scheme or the manifest's annotation trellis.dev/conversion says.
	Convert func(obj *unstructured.Unstructured, toVersion string) (*unstructured.Unstructured, error)
	// Admit hears of each create, update and delete before the object is validated, and may change r.New.
	Admit func(ctx context.Context, r *Request) error
	// Validate hears of them when nothing else stands against them; what it changes is not stored.
	Validate func(ctx context.Context, r *Request) error
	// Subresources are further ones that objects are posted to.
	Subresources []Subresource
}

// Subresource is a way to have something done to an object: POST .../flunders/mine/weigh.
type Subresource struct {
	Name string
	// Body is a manifest, as Kind has one, of what is posted. It is no kind of its own; the names in it are those of its
	// schemas and its kind, the scope is that of the object.
	Body []byte
	// Do may change the object, at its storage version. What it returns is the answer, of the kind of the body; nil: that it was
	// done. It is called again where another write has come in between. The context knows who asks, as upstream's do
	// (k8s.io/apiserver/pkg/endpoints/request). An error that is no StatusError is the server's fault.
	Do func(ctx context.Context, obj, body *unstructured.Unstructured) (answer *unstructured.Unstructured, err error)
}

// compile makes of kinds what the engine serves, and of their Go functions what it asks.
func compile(kinds []Kind) (all []*resource.Definition, asks hooks, err error) {
	asks = hooks{}
	for i := range kinds {
		k := &kinds[i]
		d, err := k.definition()
		if err != nil {
			return nil, nil, err
		}
		gr := d.Storage.GroupResource()
		if asks[gr] != nil {
			return nil, nil, fmt.Errorf("%s: there are two kinds of that name", gr)
		}
		all, asks[gr] = append(all, d), k
	}
	return all, asks, nil
}

func (k *Kind) definition() (*resource.Definition, error) {
	crd, err := k.declared()
	if err != nil {
		return nil, err
	}
	convert := k.Convert
	if k.Scheme != nil {
		if err := k.describe(crd); err != nil {
			return nil, fmt.Errorf("%s: %w", crd.Name, err)
		}
		if convert == nil && len(crd.Spec.Versions) > 1 {
			convert = k.convertByScheme
		}
	}
	d, err := defined(crd, convert != nil)
	if err != nil {
		return nil, err
	}
	subs := make([]resource.Subresource, len(k.Subresources))
	for i, sub := range k.Subresources {
		if subs[i], err = k.subresource(d, sub); err != nil {
			return nil, fmt.Errorf("%s/%s: %w", d.Names.Plural, sub.Name, err)
		}
	}
	for _, v := range d.Versions {
		v.Subresources = subs
		if convert != nil && v != d.Storage {
			v.ConvertTo, v.ConvertFrom = by(convert, d.Storage), by(convert, v)
		}
	}
	if k.Scheme == nil {
		return d, nil
	}
	return d, k.useTypes(d)
}

func (k *Kind) subresource(d *resource.Definition, s Subresource) (resource.Subresource, error) {
	manifest, err := read(s.Body)
	if err != nil {
		return resource.Subresource{}, err
	}
	body, err := defined(manifest, false)
	if err != nil {
		return resource.Subresource{}, err
	}
	body.Namespaced = d.Namespaced
	return resource.Subresource{Name: s.Name, Verbs: []string{"create"}, Body: body.Storage, Do: k.do(d, s)}, nil
}

// declared is what the kind says of itself.
func (k *Kind) declared() (*apiextensionsv1.CustomResourceDefinition, error) {
	if k.Spec == nil {
		return read(k.Manifest)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{Spec: *k.Spec.DeepCopy()}
	crd.SetGroupVersionKind(manifestKind)
	crd.Name = crd.Spec.Names.Plural + "." + crd.Spec.Group
	crd.Annotations = map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: "unapproved, for an extension server"} // for groups of k8s.io
	return crd, nil
}

var manifestKind = apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")

func read(manifest []byte) (*apiextensionsv1.CustomResourceDefinition, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(manifest, crd); err != nil {
		return nil, fmt.Errorf("manifest of a kind: %w", err)
	}
	if is := crd.GroupVersionKind(); is != manifestKind {
		return nil, fmt.Errorf("manifest of a kind: it is of %s, not of a CustomResourceDefinition of %s", is, apiextensionsv1.SchemeGroupVersion)
	}
	return crd, nil
}

// defined compiles a manifest, and refuses what no API server would take. converts says that there is Go code for that.
func defined(crd *apiextensionsv1.CustomResourceDefinition, converts bool) (*resource.Definition, error) {
	apiextensionsv1.SetDefaults_CustomResourceDefinition(crd)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
	if crd.Spec.Conversion.Strategy != apiextensionsv1.NoneConverter {
		return nil, fmt.Errorf("%s: spec.conversion.strategy: the function Convert does the work of a webhook", crd.Name)
	}
	if _, declared := crd.Annotations[resource.ConversionAnnotation]; declared && converts {
		return nil, fmt.Errorf("%s: there is a function Convert, and the annotation %s", crd.Name, resource.ConversionAnnotation)
	}
	crd.Status = apiextensionsv1.CustomResourceDefinitionStatus{
		AcceptedNames: crd.Spec.Names,
		Conditions:    []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}},
	}
	for _, v := range crd.Spec.Versions {
		if v.Storage {
			crd.Status.StoredVersions = append(crd.Status.StoredVersions, v.Name)
		}
	}
	text, err := json.Marshal(crd)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", crd.Name, err)
	}
	if text, err = settled(text); err != nil {
		return nil, fmt.Errorf("%s: %w", crd.Name, err)
	}
	read, err := crdvalidation.Read(text)
	if err != nil {
		return nil, err
	}
	errs := crdvalidation.Create(read)
	d := resource.FromCRD(&storage.Record{Value: text})
	if len(errs) == 0 && d != nil {
		_, errs = conversion.CheckDeclared(context.Background(), d)
	}
	if err := errs.ToAggregate(); err != nil {
		return nil, fmt.Errorf("%s: %w", crd.Name, err)
	}
	return d, nil
}

// settled is JSON in the form in which the engine stores it.
func settled(text []byte) ([]byte, error) {
	t, _, err := object.DecodeJSON(text)
	if err != nil {
		return nil, err
	}
	return bytes.Clone(object.Pack(t, 0).JSON()), nil
}

// by converts to a version by a function.
func by(convert func(*unstructured.Unstructured, string) (*unstructured.Unstructured, error), to *resource.Version) func(object.Tree) (object.Tree, error) {
	return func(t object.Tree) (object.Tree, error) {
		out, err := convert(&unstructured.Unstructured{Object: object.Copy(t)}, to.APIVersion)
		if err != nil {
			return nil, err
		}
		if out == nil {
			return nil, errors.New("there is no object")
		}
		return out.Object, nil
	}
}

// do is what a subresource does, and what the kind has to say to that.
func (k *Kind) do(d *resource.Definition, s Subresource) func(context.Context, object.Tree, object.Tree) (object.Tree, error) {
	return func(ctx context.Context, obj, body object.Tree) (object.Tree, error) {
		now, before := &unstructured.Unstructured{Object: obj}, &unstructured.Unstructured{Object: object.Copy(obj)}
		answer, err := s.Do(ctx, now, &unstructured.Unstructured{Object: body})
		if err == nil && k.Validate != nil {
			err = k.Validate(ctx, &Request{Operation: Update, Subresource: s.Name, Old: before, New: now})
		}
		if err != nil {
			return nil, invalid(d, object.Name(before.Object), err)
		}
		if answer == nil {
			return nil, nil
		}
		return answer.Object, nil
	}
}
