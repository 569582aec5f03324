package kinds

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/generated/openapi"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// entry describes a built-in kind. A field that is not set is derived from others or has the most common value.
type entry struct {
	kind, plural      string
	versions          []schema.GroupVersion // served versions; the first is the storage version
	short, categories string                // names, separated by spaces
	main              strategy
	status            rest.RESTUpdateStrategy            // nil means no /status
	subresources      map[string]rest.RESTUpdateStrategy // other subresources that update the object
	actions           []resource.Subresource             // subresources for POST or CONNECT
	scale             *resource.Scale
	// fields has one string for each version, with the selectable fields in addition to name and namespace. The
	// string contains paths, separated by spaces. "a=b" is a field with the name a and the path b. "a:0" is a field
	// with the default 0. "a|b" is a field whose default is the value of b.
	fields             []string
	warning            string                              // of a deprecated kind
	plainTable         bool                                // Tables have only the columns Name and Created At
	returnsDeleted     bool                                // the response to a delete is the deleted object
	prefix             string                              // part of storage keys; "" means the plural
	noDeleteCollection bool                                // the verb deletecollection is not supported
	review             reviewer                            // set for a review kind, whose main is nil
	compute            func(context.Context) []object.Tree // set for a computed kind, whose main is nil
	authorize          func(ctx context.Context, obj, old resource.Internal) error
	prepare            func(ctx context.Context, obj, old resource.Internal) error
	behavior           resource.Behavior
	columns            func() []resource.Column // nil means upstream's
	ignoreError        func(*field.Error) bool  // reports whether to drop an error of a strategy
}

// strategy validates and prepares the objects of a kind on create and update.
type strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
}

// define returns the Definition of the entry.
func (e *entry) define() *resource.Definition {
	prefix := e.prefix
	if prefix == "" {
		prefix = e.plural
	}
	d := &resource.Definition{
		Group: e.versions[0].Group,
		Names: resource.Names{
			Plural: e.plural, Singular: strings.ToLower(e.kind), Kind: e.kind, ListKind: e.kind + "List",
			ShortNames: strings.Fields(e.short), Categories: strings.Fields(e.categories),
		},
		Prefix:     "/registry/" + prefix + "/",
		Behavior:   e.behavior,
		ItemLimits: limits(e.kind),
	}
	switch {
	case e.review != nil:
		e.defineReview(d)
	case e.compute != nil:
		d.Verbs, d.Behavior.Compute = []string{"get", "list"}, e.compute
	default:
		e.defineStored(d)
	}
	for i, gv := range e.versions {
		d.Versions = append(d.Versions, e.version(d, gv, i))
	}
	d.Storage = d.Versions[0]
	for i, v := range d.Versions[1:] {
		v.ConvertTo, v.ConvertFrom = converter(v.Type, d.Storage.Type), converter(d.Storage.Type, d.Versions[i+1].Type)
	}
	if d.Strategy != nil {
		d.Strategy.ErrorKind = errorKind(d.Storage)
		d.Strategy.Ignore = e.ignoreError
	}
	return d
}

// defineStored completes the Definition of a kind whose objects are stored.
func (e *entry) defineStored(d *resource.Definition) {
	ctx := context.Background()
	d.Namespaced = e.main.NamespaceScoped()
	d.Verbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	if e.noDeleteCollection {
		d.Verbs = slices.Delete(d.Verbs, 2, 3)
	}
	d.Strategy = &resource.Strategy{Main: e.main, Subresources: map[string]rest.RESTUpdateStrategy{},
		Authorize: e.authorize, Prepare: e.prepare}
	maps.Copy(d.Strategy.Subresources, e.subresources)
	if e.status != nil {
		d.Strategy.Subresources["status"] = e.status
	}
	d.Behavior.ReturnsDeleted = e.returnsDeleted
	d.Behavior.CreateOnUpdate = e.main.AllowCreateOnUpdate(ctx)
	d.Behavior.UnconditionalUpdate = e.main.AllowUnconditionalUpdate(ctx)
}

func (e *entry) version(d *resource.Definition, gv schema.GroupVersion, index int) *resource.Version {
	v := &resource.Version{
		Definition:   d,
		GroupVersion: gv,
		APIVersion:   gv.String(),
		Served:       true,
		Status:       e.status != nil,
		Scale:        e.scale,
		Type:         typeAt(gv, d.Names),

		Deprecated:         e.warning != "",
		DeprecationWarning: e.warning,
	}
	v.Parseable = sync.OnceValues(v.Type.Parseable)
	if len(e.fields) > index {
		v.SelectableFields = parseSelectableFields(e.fields[index])
	}
	for name := range e.subresources {
		verbs := []string{"get", "patch", "update"}
		if name == "finalize" {
			verbs = verbs[2:]
		}
		v.Subresources = append(v.Subresources, resource.Subresource{Name: name, Verbs: verbs})
	}
	v.Subresources = append(v.Subresources, e.actions...)
	slices.SortFunc(v.Subresources, func(a, b resource.Subresource) int { return strings.Compare(a.Name, b.Name) })
	switch {
	case e.review != nil:
	case e.columns != nil:
		v.Columns = e.columns()
	default:
		v.Printer = printer(v, e.plainTable)
	}
	return v
}

// typeAt returns the Go type of a kind at a group version.
func typeAt(gv schema.GroupVersion, names resource.Names) *resource.GoType {
	types := legacyscheme.Scheme.KnownTypes(gv)
	internal := schema.GroupVersion{Group: gv.Group, Version: runtime.APIVersionInternal}
	return &resource.GoType{
		OpenAPI: openapi.GetOpenAPIDefinitions,
		New:     constructor(types[names.Kind]),
		NewList: constructor(types[names.ListKind]), // nil for a review
		Default: func(obj runtime.Object) { legacyscheme.Scheme.Default(obj) },
		Internal: func(obj runtime.Object) (resource.Internal, error) {
			out, err := legacyscheme.Scheme.UnsafeConvertToVersion(obj, internal)
			if err != nil {
				return nil, fmt.Errorf("convert %T to the internal version: %w", obj, err)
			}
			return out.(resource.Internal), nil // the internal types of all built-in kinds implement this interface
		},
		External: func(obj resource.Internal) (runtime.Object, error) {
			out, err := legacyscheme.Scheme.UnsafeConvertToVersion(obj, gv)
			if err != nil {
				return nil, fmt.Errorf("convert %T to %s: %w", obj, gv, err)
			}
			return out, nil
		},
	}
}

// constructor returns a function that allocates objects of a type of the scheme. It returns nil for a nil type.
func constructor(t reflect.Type) func() runtime.Object {
	if t == nil {
		return nil
	}
	return func() runtime.Object { return reflect.New(t).Interface().(runtime.Object) }
}

// converter returns a function that converts trees between versions through the internal version.
func converter(from, to *resource.GoType) func(object.Tree) (object.Tree, error) {
	return func(t object.Tree) (object.Tree, error) {
		obj, err := from.ToInternal(t)
		if err != nil {
			return nil, err
		}
		return to.FromInternal(obj)
	}
}

// errorKind returns the group and kind for errors about a version. They differ from those of the version only for
// Event, which belongs to two groups. Errors contain the group for which the internal type of Event was registered
// first.
func errorKind(v *resource.Version) schema.GroupKind {
	if obj, err := v.Type.Internal(v.Type.New()); err == nil {
		if kinds, _, err := legacyscheme.Scheme.ObjectKinds(obj); err == nil {
			return kinds[0].GroupKind()
		}
	}
	return v.GroupVersionKind().GroupKind()
}

// parseSelectableFields parses one string of entry.fields.
func parseSelectableFields(text string) []resource.SelectableField {
	var all []resource.SelectableField
	for word := range strings.FieldsSeq(text) {
		var f resource.SelectableField
		word, f.Zero, _ = strings.Cut(word, ":")
		word, f.Fallback, _ = strings.Cut(word, "|")
		var path string
		if f.Name, path, _ = strings.Cut(word, "="); path == "" {
			path = f.Name
		}
		f.Path = strings.Split(path, ".")
		all = append(all, f)
	}
	return all
}
