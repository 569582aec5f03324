// Package define makes resource.Definitions of built-in kinds from their Go types and upstream's strategies.
package define

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Entry describes a built-in kind. A field that is not set is derived from others or has the most common value.
type Entry struct {
	Kind, Plural      string
	Versions          []schema.GroupVersion // served versions; the first is the storage version
	Short, Categories string                // names, separated by spaces
	Main              Strategy
	Status            rest.RESTUpdateStrategy            // nil means no /status
	Subresources      map[string]rest.RESTUpdateStrategy // other subresources that update the object
	Actions           []resource.Subresource             // subresources for POST or CONNECT
	Scale             *resource.Scale
	// Fields has one string for each version, with the selectable fields in addition to name and namespace. The
	// string contains paths, separated by spaces. "a=b" is a field with the name a and the path b. "a:0" is a field
	// with the default 0. "a|b" is a field whose default is the value of b.
	Fields             []string
	Warning            string                              // of a deprecated kind
	PlainTable         bool                                // Tables have only the columns Name and Created At
	ReturnsDeleted     bool                                // the response to a delete is the deleted object
	Prefix             string                              // part of storage keys; "" means the plural
	NoDeleteCollection bool                                // the verb deletecollection is not supported
	Review             Reviewer                            // set for a review kind, whose Main is nil
	Compute            func(context.Context) []object.Tree // set for a computed kind, whose Main is nil
	Authorize          func(ctx context.Context, obj, old resource.Internal) error
	Prepare            func(ctx context.Context, obj, old resource.Internal) error
	Behavior           resource.Behavior
	Columns            func() []resource.Column // nil means upstream's
	IgnoreError        func(*field.Error) bool  // reports whether to drop an error of a strategy
}

// Strategy validates and prepares the objects of a kind on create and update.
type Strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
}

// Reviewer evaluates the objects of a review kind, which are not stored.
type Reviewer interface {
	rest.Creater
	rest.Scoper
}

// Definition returns the Definition of the entry, without item limits.
func (e *Entry) Definition() *resource.Definition {
	d := &resource.Definition{
		Group: e.Versions[0].Group,
		Names: resource.Names{
			Plural: e.Plural, Singular: strings.ToLower(e.Kind), Kind: e.Kind, ListKind: e.Kind + "List",
			ShortNames: strings.Fields(e.Short), Categories: strings.Fields(e.Categories),
		},
		Prefix:   "/registry/" + cmp.Or(e.Prefix, e.Plural) + "/",
		Behavior: e.Behavior,
	}
	switch {
	case e.Review != nil:
		e.defineReview(d)
	case e.Compute != nil:
		d.Verbs, d.Behavior.Compute = []string{"get", "list"}, e.Compute
	default:
		e.defineStored(d)
	}
	for i, gv := range e.Versions {
		d.Versions = append(d.Versions, e.version(d, gv, i))
	}
	d.Storage = d.Versions[0]
	for i, v := range d.Versions[1:] {
		v.ConvertTo, v.ConvertFrom = converter(v.Type, d.Storage.Type), converter(d.Storage.Type, d.Versions[i+1].Type)
	}
	if d.Strategy != nil {
		d.Strategy.ErrorKind = errorKind(d.Storage)
		d.Strategy.Ignore = e.IgnoreError
	}
	return d
}

// defineStored completes the Definition of a kind whose objects are stored.
func (e *Entry) defineStored(d *resource.Definition) {
	ctx := context.Background()
	d.Namespaced = e.Main.NamespaceScoped()
	d.Verbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	if e.NoDeleteCollection {
		d.Verbs = slices.Delete(d.Verbs, 2, 3)
	}
	d.Strategy = &resource.Strategy{Main: e.Main, Subresources: map[string]rest.RESTUpdateStrategy{},
		Authorize: e.Authorize, Prepare: e.Prepare}
	maps.Copy(d.Strategy.Subresources, e.Subresources)
	if e.Status != nil {
		d.Strategy.Subresources["status"] = e.Status
	}
	d.Behavior.ReturnsDeleted = e.ReturnsDeleted
	d.Behavior.CreateOnUpdate = e.Main.AllowCreateOnUpdate(ctx)
	d.Behavior.UnconditionalUpdate = e.Main.AllowUnconditionalUpdate(ctx)
}

// defineReview completes the Definition of a review kind. The only verb is create, and the response is the object with
// a status.
func (e *Entry) defineReview(d *resource.Definition) {
	d.Namespaced = e.Review.NamespaceScoped()
	d.Verbs = []string{"create"}
	goType := typeAt(e.Versions[0], d.Names)
	d.Behavior.Review = func(ctx context.Context, t object.Tree) (object.Tree, error) {
		obj, err := goType.ToInternal(t)
		if err != nil {
			return nil, err
		}
		result, err := e.Review.Create(ctx, obj, nil, &metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		return goType.FromInternal(result.(resource.Internal))
	}
}

func (e *Entry) version(d *resource.Definition, gv schema.GroupVersion, index int) *resource.Version {
	v := &resource.Version{
		Definition:   d,
		GroupVersion: gv,
		APIVersion:   gv.String(),
		Served:       true,
		Status:       e.Status != nil,
		Scale:        e.Scale,
		Type:         typeAt(gv, d.Names),

		Deprecated:         e.Warning != "",
		DeprecationWarning: e.Warning,
	}
	v.Parseable = sync.OnceValues(v.Type.Parseable)
	if len(e.Fields) > index {
		v.SelectableFields = parseSelectableFields(e.Fields[index])
	}
	for name := range e.Subresources {
		verbs := []string{"get", "patch", "update"}
		if name == "finalize" {
			verbs = verbs[2:]
		}
		v.Subresources = append(v.Subresources, resource.Subresource{Name: name, Verbs: verbs})
	}
	v.Subresources = append(v.Subresources, e.Actions...)
	slices.SortFunc(v.Subresources, func(a, b resource.Subresource) int { return strings.Compare(a.Name, b.Name) })
	switch {
	case e.Review != nil:
	case e.Columns != nil:
		v.Columns = e.Columns()
	default:
		v.Printer = printer(v, e.PlainTable)
	}
	return v
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

// parseSelectableFields parses one string of Entry.Fields.
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
