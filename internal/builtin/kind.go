package builtin

import (
	"reflect"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// kind is one line of the table. The first endpoint is the one objects are
// stored at.
type kind struct {
	endpoint
	plural         string
	short          string // names, separated by spaces
	categories     string
	cluster        bool   // not namespaced
	status         bool   // has /status
	verbs          string // "": all of them
	prefix         string // of storage keys; "": as kube-apiserver makes it for most kinds
	createOnUpdate bool   // a PUT may create
	conditional    bool   // a PUT must carry a resourceVersion
	subresources   []resource.Subresource
	columns        func() []resource.Column // nil: name and age, or no Table for a kind that is not listed
	selectable     []resource.SelectableField
	behavior       resource.Behavior
	second         *endpoint
}

// endpoint is a group and version at which a kind is served. Of a second
// endpoint the fields below the types say how it differs from the first.
type endpoint struct {
	version schema.GroupVersion
	goType  *resource.GoType

	columns                func() []resource.Column
	selectable             []resource.SelectableField
	defaults               func(object.Tree)
	validate               func(form, obj, old object.Tree, sub string) field.ErrorList
	toStorage, fromStorage func(object.Tree) (object.Tree, error)
	deprecated, removed    string // the warning, and the release that no longer has it
}

// at makes an endpoint of the Go types of an object and its list; the latter is
// nil for a kind that is not listed.
func at(version schema.GroupVersion, obj, list runtime.Object) endpoint {
	return endpoint{version: version, goType: goType(obj, list)}
}

func goType(obj, list runtime.Object) *resource.GoType {
	g := &resource.GoType{New: maker(obj)}
	if list != nil {
		g.NewList = maker(list)
	}
	return g
}

func maker(obj runtime.Object) func() runtime.Object {
	t := reflect.TypeOf(obj).Elem()
	return func() runtime.Object { return reflect.New(t).Interface().(runtime.Object) }
}

const allVerbs = "create delete deletecollection get list patch update watch"

// define derives a Definition from a line of the table.
func define(k *kind) *resource.Definition {
	name := reflect.TypeOf(k.goType.New()).Elem().Name()
	d := &resource.Definition{
		Group: k.version.Group,
		Names: resource.Names{
			Plural: k.plural, Singular: strings.ToLower(name), Kind: name, ListKind: name + "List",
			ShortNames: strings.Fields(k.short), Categories: strings.Fields(k.categories),
		},
		Namespaced: !k.cluster,
		Prefix:     orElse(k.prefix, "/registry/"+k.plural+"/"),
		Verbs:      strings.Fields(orElse(k.verbs, allVerbs)),
		Behavior:   k.behavior,
	}
	d.Behavior.UnconditionalUpdate = !k.conditional
	d.Behavior.CreateOnUpdate = k.createOnUpdate
	if d.Behavior.ValidateName == nil {
		d.Behavior.ValidateName = validateName
	}
	first := k.endpoint
	first.columns, first.selectable = k.columns, k.selectable
	d.Storage = version(d, &first, k)
	d.Versions = []*resource.Version{d.Storage}
	if k.second != nil {
		d.Versions = append(d.Versions, version(d, k.second, k))
	}
	return d
}

func version(d *resource.Definition, e *endpoint, k *kind) *resource.Version {
	g := e.goType
	var columns []resource.Column
	switch {
	case e.columns != nil:
		columns = e.columns()
	case g.NewList != nil:
		columns = defaultColumns()
	}
	return &resource.Version{
		Definition:       d,
		GroupVersion:     e.version,
		APIVersion:       e.version.String(),
		Served:           true,
		Columns:          columns,
		SelectableFields: e.selectable,
		Status:           k.status,
		Subresources:     k.subresources,
		Type:             g,
		Parseable:        sync.OnceValues(func() (typed.ParseableType, error) { return parseable(g.New()) }),
		ConvertTo:        e.toStorage,
		ConvertFrom:      e.fromStorage,
		Default:          e.defaults,
		Validate:         e.validate,

		Deprecated:         e.deprecated != "",
		DeprecationWarning: e.deprecated,
		RemovedRelease:     e.removed,
	}
}

// fields makes selectable fields of dotted paths; "a=b.c" names the field b.c
// "a".
func fields(paths ...string) []resource.SelectableField {
	all := make([]resource.SelectableField, 0, len(paths))
	for _, p := range paths {
		name, path, renamed := strings.Cut(p, "=")
		if !renamed {
			path = name
		}
		all = append(all, resource.SelectableField{Name: name, Path: strings.Split(path, ".")})
	}
	return all
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
