package plugins

import (
	"errors"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/networking"
	"k8s.io/client-go/informers/node"
	informersresource "k8s.io/client-go/informers/resource"
	"k8s.io/client-go/informers/scheduling"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/trellis-k8s/trellis/internal/resource"
	store "github.com/trellis-k8s/trellis/internal/storage"
)

// Informers are listers over the head of the store for those who want informers: what a write that was answered has left, they see,
// and of each kind only the last object found is kept a second time. They tell nobody of changes.
type Informers struct {
	informers.SharedInformerFactory // nil: what plugins do not ask for
	Catalog                         func() *resource.Catalog
	Head                            func() *store.Snapshot
}

// InformerFor implements informers.SharedInformerFactory. obj is of a Go type of k8s.io/api.
func (f Informers) InformerFor(obj runtime.Object, _ internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	version := sync.OnceValue(func() *resource.Version { return versionOf(f.Catalog(), reflect.TypeOf(obj)) })
	return informer{index: index{head: f.Head, version: version, last: new(atomic.Pointer[loaded])}}
}

// Core implements informers.SharedInformerFactory.
func (f Informers) Core() core.Interface { return core.New(f, metav1.NamespaceAll, nil) }

// Networking implements informers.SharedInformerFactory.
func (f Informers) Networking() networking.Interface {
	return networking.New(f, metav1.NamespaceAll, nil)
}

// Node implements informers.SharedInformerFactory.
func (f Informers) Node() node.Interface { return node.New(f, metav1.NamespaceAll, nil) }

// Resource implements informers.SharedInformerFactory.
func (f Informers) Resource() informersresource.Interface {
	return informersresource.New(f, metav1.NamespaceAll, nil)
}

// Scheduling implements informers.SharedInformerFactory.
func (f Informers) Scheduling() scheduling.Interface {
	return scheduling.New(f, metav1.NamespaceAll, nil)
}

// Storage implements informers.SharedInformerFactory.
func (f Informers) Storage() storage.Interface { return storage.New(f, metav1.NamespaceAll, nil) }

// informer is always up to date.
type informer struct {
	cache.SharedIndexInformer // nil
	index
}

func (i informer) HasSynced() bool           { return true }
func (i informer) GetIndexer() cache.Indexer { return i.index }
func (i informer) GetStore() cache.Store     { return i.index }
func (i informer) AddIndexers(cache.Indexers) error {
	return errors.New("plugins: objects are found by name and namespace alone")
}

// AddEventHandlerWithResyncPeriod and its like would have to follow the store: no plugin wants them.
func (i informer) AddEventHandlerWithResyncPeriod(cache.ResourceEventHandler, time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return nil, errors.New("plugins: nobody is told of changes")
}

// index reads the objects of one kind.
type index struct {
	cache.Indexer // nil
	head          func() *store.Snapshot
	version       func() *resource.Version // that objects are wanted at; nil where --runtime-config has switched it off
	last          *atomic.Pointer[loaded]  // found by its key: many Pods in a row are of one namespace, and of one service account
}

// loaded is an object, which nobody changes, of a record.
type loaded struct {
	rec *store.Record
	obj runtime.Object
}

// versionOf is the version of a built-in kind that has a Go type.
func versionOf(c *resource.Catalog, goType reflect.Type) *resource.Version {
	for d := range c.Definitions() {
		for _, v := range d.Versions {
			if d.Custom == nil && v.Type != nil && reflect.TypeOf(v.Type.New()) == goType {
				return v
			}
		}
	}
	return nil
}

// GetByKey implements cache.Store: of a name, or a namespace and a name with / between.
func (x index) GetByKey(key string) (any, bool, error) {
	v := x.version()
	if v == nil {
		return nil, false, nil
	}
	namespace, name, both := strings.Cut(key, "/")
	if !both {
		namespace, name = "", key
	}
	rec := x.head().Get(v.Definition.Key(namespace, name))
	if rec == nil {
		return nil, false, nil
	}
	if last := x.last.Load(); last != nil && last.rec == rec {
		return last.obj, true, nil
	}
	obj, err := load(v, rec)
	if err != nil {
		return nil, false, err
	}
	x.last.Store(&loaded{rec, obj})
	return obj, true, nil
}

// List implements cache.Store.
func (x index) List() []any { return x.below("") }

// Index implements cache.Indexer for the one index that listers use: obj has the namespace.
func (x index) Index(_ string, obj any) ([]any, error) {
	return x.below(obj.(*metav1.ObjectMeta).Namespace + "/"), nil
}

// below are the objects with a prefix behind that of the kind.
func (x index) below(prefix string) (all []any) {
	v := x.version()
	if v == nil {
		return nil
	}
	for rec := range x.head().Walk(v.Definition.Prefix+prefix, "") {
		if obj, err := load(v, rec); err == nil {
			all = append(all, obj)
		}
	}
	return all
}

// load is a stored object as the Go type of a version, with its defaults.
func load(v *resource.Version, rec *store.Record) (runtime.Object, error) {
	obj, err := v.Definition.Storage.Type.Load(rec.Value)
	if err != nil {
		return nil, err
	}
	obj.SetResourceVersion(strconv.FormatInt(rec.Modified, 10))
	return v.Type.External(obj)
}
