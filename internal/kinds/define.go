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

// entry is what the table says of a kind. What it leaves out is derived or is as for most kinds.
type entry struct {
	kind, plural      string
	versions                []schema.GroupVersion // that it is served at; it is stored at the first
	short, categories string                // names, separated by spaces
	main              strategy
	status            rest.RESTUpdateStrategy // of /status; nil: there is none
	subresources              map[string]rest.RESTUpdateStrategy
	actions              []resource.Subresource // that only take a POST, or connect to somebody else
	scale             *resource.Scale
	// fields are those that selectors may name, besides name and namespace: paths, separated by spaces. "a=b" names
	// the path b "a", "a:0" is 0 where there is nothing, "a|b" is what b is where there is nothing.
	fields       []string                            // by the versions in at
	warning      string                              // of a deprecated kind
	plainTable        bool                                // a Table has name and creation time alone
	returnsDeleted     bool                                // a delete is answered with the object
	prefix       string                              // of storage keys; "": the plural
	noDeleteCollection bool                                // no deletecollection
	review         reviewer                               // it is a question, in place of main
	compute      func(context.Context) []object.Tree // its objects are computed, in place of main
	authorize       func(ctx context.Context, obj, old resource.Internal) error
	prepare        func(ctx context.Context, obj, old resource.Internal) error
	behavior     resource.Behavior
	columns      func() []resource.Column // in place of upstream's
	ignoreError       func(*field.Error) bool  // problems of the strategies
}

// strategy is how a kind is created and updated.
type strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
}

// define makes a Definition of a line of the table.
func (l *entry) define() *resource.Definition {
	prefix := l.prefix
	if prefix == "" {
		prefix = l.plural
	}
	d := &resource.Definition{
		Group: l.versions[0].Group,
		Names: resource.Names{
			Plural: l.plural, Singular: strings.ToLower(l.kind), Kind: l.kind, ListKind: l.kind + "List",
			ShortNames: strings.Fields(l.short), Categories: strings.Fields(l.categories),
		},
		Prefix:     "/registry/" + prefix + "/",
		Behavior:   l.behavior,
		ItemLimits: limits(l.kind),
	}
	switch {
	case l.review != nil:
		l.defineReview(d)
	case l.compute != nil:
		d.Verbs, d.Behavior.Compute = []string{"get", "list"}, l.compute
	default:
		l.defineStored(d)
	}
	for i, gv := range l.versions {
		d.Versions = append(d.Versions, l.version(d, gv, i))
	}
	d.Storage = d.Versions[0]
	for i, v := range d.Versions[1:] {
		v.ConvertTo, v.ConvertFrom = converter(v.Type, d.Storage.Type), converter(d.Storage.Type, d.Versions[i+1].Type)
	}
	if d.Strategy != nil {
		d.Strategy.ErrorKind = errorKind(d.Storage)
		d.Strategy.Ignore = l.ignoreError
	}
	return d
}

// defineStored is for a kind whose objects are stored.
func (l *entry) defineStored(d *resource.Definition) {
	ctx := context.Background()
	d.Namespaced = l.main.NamespaceScoped()
	d.Verbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	if l.noDeleteCollection {
		d.Verbs = slices.Delete(d.Verbs, 2, 3)
	}
	d.Strategy = &resource.Strategy{Main: l.main, Subresources: map[string]rest.RESTUpdateStrategy{}, Authorize: l.authorize, Prepare: l.prepare}
	maps.Copy(d.Strategy.Subresources, l.subresources)
	if l.status != nil {
		d.Strategy.Subresources["status"] = l.status
	}
	d.Behavior.ReturnsDeleted = l.returnsDeleted
	d.Behavior.CreateOnUpdate = l.main.AllowCreateOnUpdate(ctx)
	d.Behavior.UnconditionalUpdate = l.main.AllowUnconditionalUpdate(ctx)
}

func (l *entry) version(d *resource.Definition, gv schema.GroupVersion, index int) *resource.Version {
	v := &resource.Version{
		Definition:   d,
		GroupVersion: gv,
		APIVersion:   gv.String(),
		Served:       true,
		Status:       l.status != nil,
		Scale:        l.scale,
		Type:         typeAt(gv, d.Names),

		Deprecated:         l.warning != "",
		DeprecationWarning: l.warning,
	}
	v.Parseable = sync.OnceValues(v.Type.Parseable)
	if len(l.fields) > index {
		v.SelectableFields = parseSelectableFields(l.fields[index])
	}
	for name := range l.subresources {
		verbs := []string{"get", "patch", "update"}
		if name == "finalize" {
			verbs = verbs[2:]
		}
		v.Subresources = append(v.Subresources, resource.Subresource{Name: name, Verbs: verbs})
	}
	v.Subresources = append(v.Subresources, l.actions...)
	slices.SortFunc(v.Subresources, func(a, b resource.Subresource) int { return strings.Compare(a.Name, b.Name) })
	switch {
	case l.review != nil:
	case l.columns != nil:
		v.Columns = l.columns()
	default:
		v.Printer = printer(v, l.plainTable)
	}
	return v
}

// typeAt is how a kind uses its Go types at a group version.
func typeAt(gv schema.GroupVersion, names resource.Names) *resource.GoType {
	types := legacyscheme.Scheme.KnownTypes(gv)
	internal := schema.GroupVersion{Group: gv.Group, Version: runtime.APIVersionInternal}
	return &resource.GoType{
		OpenAPI: openapi.GetOpenAPIDefinitions,
		New:     constructor(types[names.Kind]),
		NewList: constructor(types[names.ListKind]), // nil for a question
		Default: func(obj runtime.Object) { legacyscheme.Scheme.Default(obj) },
		Internal: func(obj runtime.Object) (resource.Internal, error) {
			out, err := legacyscheme.Scheme.UnsafeConvertToVersion(obj, internal)
			if err != nil {
				return nil, fmt.Errorf("builtin: internal form of %T: %w", obj, err)
			}
			return out.(resource.Internal), nil // as all types of the table are
		},
		External: func(obj resource.Internal) (runtime.Object, error) {
			out, err := legacyscheme.Scheme.UnsafeConvertToVersion(obj, gv)
			if err != nil {
				return nil, fmt.Errorf("builtin: %T at %s: %w", obj, gv, err)
			}
			return out, nil
		},
	}
}

// constructor makes fresh objects of a type of the scheme, all of which are runtime.Objects.
func constructor(t reflect.Type) func() runtime.Object {
	if t == nil {
		return nil
	}
	return func() runtime.Object { return reflect.New(t).Interface().(runtime.Object) }
}

// converter makes trees at one version of trees at another one, by way of the internal form.
func converter(from, to *resource.GoType) func(object.Tree) (object.Tree, error) {
	return func(t object.Tree) (object.Tree, error) {
		obj, err := from.ToInternal(t)
		if err != nil {
			return nil, err
		}
		return to.FromInternal(obj)
	}
}

// errorKind: an Event belongs to two groups, and errors name the first that its internal type was registered for.
func errorKind(v *resource.Version) schema.GroupKind {
	if obj, err := v.Type.Internal(v.Type.New()); err == nil {
		if kinds, _, err := legacyscheme.Scheme.ObjectKinds(obj); err == nil {
			return kinds[0].GroupKind()
		}
	}
	return v.GroupVersionKind().GroupKind()
}

// parseSelectableFields reads what a line says of its fields.
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
