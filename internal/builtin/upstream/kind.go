package upstream

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// Object is an object in upstream's internal form, the one that has no version: what strategies work on.
type Object interface {
	runtime.Object
	metav1.Object
}

// Kind is a built-in kind. It is immutable, and safe for concurrent use.
type Kind struct {
	Names      resource.Names
	Namespaced bool
	Verbs      []string
	// Endpoints are the group versions at which the kind is served. Objects are stored at the first.
	Endpoints []*Endpoint
	// Prefix is that of the storage keys.
	Prefix string
	// ReturnsDeleted: a delete is answered with the object, not with a Status.
	ReturnsDeleted bool
	// ErrorKind is what a refused object is said to be.
	ErrorKind schema.GroupKind

	main         strategy
	subresources map[string]rest.RESTUpdateStrategy
	attributes   attributes
	table        func() rest.TableConvertor
}

// strategy is how a kind is created and updated.
type strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
}

// line is what the table says of a kind. What it leaves out is derived or is as for most kinds.
type line struct {
	kind, plural      string
	at                []schema.GroupVersion
	short, categories string // names, separated by spaces
	main              strategy
	status            rest.RESTUpdateStrategy // of /status; nil: there is none
	more              map[string]rest.RESTUpdateStrategy
	attributes        attributes // nil: name and namespace are all that can be selected by
	plain             bool       // a Table has name and creation time alone
	returned          bool       // a delete is answered with the object
	prefix            string     // of storage keys; "": the plural
	noCollection      bool       // no deletecollection
}

// Kinds returns every kind that this package knows. c is asked while objects are validated.
func Kinds(c Config) []*Kind {
	c = c.withDefaults()
	var all []*Kind
	for _, lines := range [][]line{core(), workloads(), cluster(), policies(c), devices(c)} {
		for i := range lines {
			all = append(all, define(&lines[i]))
		}
	}
	return all
}

// define makes a Kind of a line of the table.
func define(l *line) *Kind {
	prefix := l.prefix
	if prefix == "" {
		prefix = l.plural
	}
	k := &Kind{
		Names: resource.Names{
			Plural: l.plural, Singular: strings.ToLower(l.kind), Kind: l.kind, ListKind: l.kind + "List",
			ShortNames: strings.Fields(l.short), Categories: strings.Fields(l.categories),
		},
		Namespaced:     l.main.NamespaceScoped(),
		Prefix:         "/registry/" + prefix + "/",
		ReturnsDeleted: l.returned,
		main:           l.main,
		subresources:   map[string]rest.RESTUpdateStrategy{},
		attributes:     l.attributes,
		table:          printed,
	}
	for _, gv := range l.at {
		k.Endpoints = append(k.Endpoints, newEndpoint(k, gv))
	}
	k.ErrorKind = k.errorKind()
	k.Verbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	if l.noCollection {
		k.Verbs = []string{"create", "delete", "get", "list", "patch", "update", "watch"}
	}
	for name, s := range l.more {
		k.subresources[name] = s
	}
	if l.status != nil {
		k.subresources["status"] = l.status
	}
	if groupResource := (schema.GroupResource{Group: l.at[0].Group, Resource: l.plural}); l.plain {
		k.table = func() rest.TableConvertor { return rest.NewDefaultTableConvertor(groupResource) }
	}
	return k
}

// errorKind: an Event belongs to two groups, and errors name the first that its internal type was registered for.
func (k *Kind) errorKind() schema.GroupKind {
	first := k.Endpoints[0]
	if obj, err := first.Internal(first.Type.New()); err == nil {
		if kinds, _, err := legacyscheme.Scheme.ObjectKinds(obj); err == nil {
			return kinds[0].GroupKind()
		}
	}
	return schema.GroupKind{Group: first.GroupVersion.Group, Kind: k.Names.Kind}
}

// Storage is the endpoint at whose version objects are stored.
func (k *Kind) Storage() *Endpoint { return k.Endpoints[0] }

// Endpoint returns the endpoint for a group version, or nil.
func (k *Kind) Endpoint(gv schema.GroupVersion) *Endpoint {
	for _, e := range k.Endpoints {
		if e.GroupVersion == gv {
			return e
		}
	}
	return nil
}
