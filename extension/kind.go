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

	"github.com/trellis-k8s/trellis/internal/crd/conversion"
	"github.com/trellis-k8s/trellis/internal/crd/crdvalidation"
	"github.com/trellis-k8s/trellis/internal/crd/definition"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Kind is a kind of objects that the server serves.
type Kind struct {
	// Manifest is a CustomResourceDefinition of apiextensions.k8s.io/v1, as YAML or JSON, with the names, scope,
	// versions, schemas with defaults and CEL rules, columns, selectable fields and the subresources status and scale
	// of the kind. It is validated like a CustomResourceDefinition, but it is not stored in any API server.
	Manifest []byte
	// Spec is the Go form of the manifest's spec. If it is set, Manifest is ignored.
	Spec *apiextensionsv1.CustomResourceDefinitionSpec
	// Scheme contains a Go type for each version of the kind. nil means that the kind has no Go types. The server
	// uses the defaulting functions and the conversion functions of the scheme. It converts an object directly or
	// through the internal version. Types with protobuf methods are also served as protobuf.
	Scheme *runtime.Scheme
	// OpenAPI returns the definitions that openapi-gen generates from the Go types. They are the schemas of the
	// versions for which the manifest has no schema.
	OpenAPI common.GetOpenAPIDefinitions
	// Convert converts an object to another version of the kind. It may modify obj. If Convert is nil, Scheme or the
	// manifest's annotation trellis.dev/conversion defines the conversion. If neither does, versions differ only in
	// apiVersion.
	Convert func(obj *unstructured.Unstructured, toVersion string) (*unstructured.Unstructured, error)
	// Admit is called for each create, update and delete, before the object is validated. It may change r.New.
	Admit func(ctx context.Context, r *Request) error
	// Validate is called for each create, update and delete that all other validations accept. Changes that Validate
	// makes to objects are not stored.
	Validate func(ctx context.Context, r *Request) error
	// Subresources lists additional subresources that accept POST.
	Subresources []Subresource
}

// Subresource is an action on an object that a client requests with POST, for example POST .../flunders/mine/weigh.
type Subresource struct {
	Name string
	// Body is the manifest of the request body, in the form of Kind.Manifest. The body is not served as a separate
	// kind. Of the manifest, only the schemas and the names of the kind are used. The scope is that of the object.
	Body []byte
	// Do performs the action. It may change obj, which is at the storage version. Its result is the response and has
	// the kind of the body. nil means a Status of success. If another write changes the object at the same time, Do
	// is called again. The context contains the user, as upstream's contexts do
	// (k8s.io/apiserver/pkg/endpoints/request). An error that is not a StatusError is a server error.
	Do func(ctx context.Context, obj, body *unstructured.Unstructured) (answer *unstructured.Unstructured, err error)
}

// compile returns the definitions of kinds for the engine, and the admission plugin that calls their Go functions.
func compile(kinds []Kind) (all []*resource.Definition, plugin hooks, err error) {
	plugin = hooks{}
	for i := range kinds {
		k := &kinds[i]
		d, err := k.definition()
		if err != nil {
			return nil, nil, err
		}
		gr := d.Storage.GroupResource()
		if plugin[gr] != nil {
			return nil, nil, fmt.Errorf("%s: two kinds have this name", gr)
		}
		all, plugin[gr] = append(all, d), k
	}
	return all, plugin, nil
}

func (k *Kind) definition() (*resource.Definition, error) {
	crd, err := k.crd()
	if err != nil {
		return nil, err
	}
	convert := k.Convert
	if k.Scheme != nil {
		if err := k.addSchemas(crd); err != nil {
			return nil, fmt.Errorf("%s: %w", crd.Name, err)
		}
		if convert == nil && len(crd.Spec.Versions) > 1 {
			convert = k.convertByScheme
		}
	}
	d, err := compileManifest(crd, convert != nil)
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
			v.ConvertTo, v.ConvertFrom = converter(convert, d.Storage), converter(convert, v)
		}
	}
	if k.Scheme == nil {
		return d, nil
	}
	return d, k.useTypes(d)
}

func (k *Kind) subresource(d *resource.Definition, s Subresource) (resource.Subresource, error) {
	manifest, err := parseManifest(s.Body)
	if err != nil {
		return resource.Subresource{}, err
	}
	body, err := compileManifest(manifest, false)
	if err != nil {
		return resource.Subresource{}, err
	}
	body.Namespaced = d.Namespaced
	return resource.Subresource{Name: s.Name, Verbs: []string{"create"}, Body: body.Storage,
		Do: k.subresourceFunc(d, s)}, nil
}

// crd returns the kind as a CustomResourceDefinition.
func (k *Kind) crd() (*apiextensionsv1.CustomResourceDefinition, error) {
	if k.Spec == nil {
		return parseManifest(k.Manifest)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{Spec: *k.Spec.DeepCopy()}
	crd.SetGroupVersionKind(manifestKind)
	crd.Name = crd.Spec.Names.Plural + "." + crd.Spec.Group
	// required for groups of k8s.io
	crd.Annotations = map[string]string{
		apiextensionsv1.KubeAPIApprovedAnnotation: "unapproved, for an extension server",
	}
	return crd, nil
}

var manifestKind = apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")

func parseManifest(manifest []byte) (*apiextensionsv1.CustomResourceDefinition, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(manifest, crd); err != nil {
		return nil, fmt.Errorf("decode the manifest of a kind: %w", err)
	}
	if got := crd.GroupVersionKind(); got != manifestKind {
		return nil, fmt.Errorf("decode the manifest of a kind: got %s, want a CustomResourceDefinition of %s", got,
			apiextensionsv1.SchemeGroupVersion)
	}
	return crd, nil
}

// compileManifest compiles a manifest. It returns an error if the manifest is not a valid CustomResourceDefinition.
// converts is true if Go code converts between versions.
func compileManifest(crd *apiextensionsv1.CustomResourceDefinition, converts bool) (*resource.Definition, error) {
	apiextensionsv1.SetDefaults_CustomResourceDefinition(crd)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
	if crd.Spec.Conversion.Strategy != apiextensionsv1.NoneConverter {
		return nil, fmt.Errorf("%s: spec.conversion.strategy: must be None: use the function Convert instead of a "+
			"webhook", crd.Name)
	}
	if _, declared := crd.Annotations[resource.ConversionAnnotation]; declared && converts {
		return nil, fmt.Errorf("%s: Go conversion and the annotation %s are mutually exclusive", crd.Name,
			resource.ConversionAnnotation)
	}
	crd.Status = apiextensionsv1.CustomResourceDefinitionStatus{
		AcceptedNames: crd.Spec.Names,
		Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established,
			Status: apiextensionsv1.ConditionTrue}},
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
	if text, err = canonicalJSON(text); err != nil {
		return nil, fmt.Errorf("%s: %w", crd.Name, err)
	}
	read, err := crdvalidation.Read(text)
	if err != nil {
		return nil, err
	}
	errs := crdvalidation.Create(read)
	d := definition.FromCRD(&storage.Record{Value: text})
	if len(errs) == 0 && d != nil {
		_, errs = conversion.CheckDeclared(context.Background(), d)
	}
	if err := errs.ToAggregate(); err != nil {
		return nil, fmt.Errorf("%s: %w", crd.Name, err)
	}
	return d, nil
}

// canonicalJSON converts JSON to the form in which the engine stores it.
func canonicalJSON(text []byte) ([]byte, error) {
	t, _, err := object.DecodeJSON(text)
	if err != nil {
		return nil, err
	}
	return bytes.Clone(object.Pack(t, 0).JSON()), nil
}

// converter returns a function that converts objects to a version. It uses the function convert.
func converter(convert func(*unstructured.Unstructured, string) (*unstructured.Unstructured, error),
	to *resource.Version) func(object.Tree) (object.Tree, error) {
	return func(t object.Tree) (object.Tree, error) {
		out, err := convert(&unstructured.Unstructured{Object: object.Copy(t)}, to.APIVersion)
		if err != nil {
			return nil, err
		}
		if out == nil {
			return nil, errors.New("the function Convert returned no object")
		}
		return out.Object, nil
	}
}

// subresourceFunc returns a function that calls s.Do and then k.Validate.
func (k *Kind) subresourceFunc(d *resource.Definition, s Subresource) func(context.Context, object.Tree,
	object.Tree) (object.Tree, error) {
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
