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
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
	store "github.com/trellis-k8s/trellis/internal/storage"
)

// Informers is an informer factory whose listers read the latest state of the store. A write is visible as soon as it
// has returned. For each kind, only the object that was found last is cached. Event handlers are not supported.
type Informers struct {
	informers.SharedInformerFactory // nil; plugins call only the methods that are implemented below
	Catalog                         func() *catalog.Catalog
	Head                            func() *store.Snapshot
}

// InformerFor implements informers.SharedInformerFactory. The type of obj is a Go type of k8s.io/api.
func (f Informers) InformerFor(obj runtime.Object, _ internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	version := sync.OnceValue(func() *resource.Version { return versionOf(f.Catalog(), reflect.TypeOf(obj)) })
	return informer{storeIndexer: storeIndexer{head: f.Head, version: version, last: new(atomic.Pointer[cachedObject])}}
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
	storeIndexer
}

func (i informer) HasSynced() bool           { return true }
func (i informer) GetIndexer() cache.Indexer { return i.storeIndexer }
func (i informer) GetStore() cache.Store     { return i.storeIndexer }
func (i informer) AddIndexers(cache.Indexers) error {
	return errors.New("plugins: indexers are not supported")
}

// AddEventHandlerWithResyncPeriod returns an error. Event handlers would have to follow the store, and no plugin needs
// them.
func (i informer) AddEventHandlerWithResyncPeriod(cache.ResourceEventHandler,
	time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return nil, errors.New("plugins: event handlers are not supported")
}

// storeIndexer reads the objects of one kind from the store.
type storeIndexer struct {
	cache.Indexer // nil
	head          func() *store.Snapshot
	version       func() *resource.Version // returns the version of objects, or nil if --runtime-config disables it
	// last is the last object found by key. Consecutive Pods often have the same namespace and service account.
	last *atomic.Pointer[cachedObject]
}

// cachedObject is a decoded, immutable object and its record.
type cachedObject struct {
	rec *store.Record
	obj runtime.Object
}

// versionOf returns the version of a built-in kind with the given Go type, or nil.
func versionOf(c *catalog.Catalog, goType reflect.Type) *resource.Version {
	for d := range c.Definitions() {
		for _, v := range d.Versions {
			if d.Strategy != nil && reflect.TypeOf(v.Type.New()) == goType {
				return v
			}
		}
	}
	return nil
}

// GetByKey implements cache.Store. key is name or namespace/name.
func (x storeIndexer) GetByKey(key string) (any, bool, error) {
	v := x.version()
	if v == nil {
		return nil, false, nil
	}
	namespace, name, namespaced := strings.Cut(key, "/")
	if !namespaced {
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
	x.last.Store(&cachedObject{rec, obj})
	return obj, true, nil
}

// List implements cache.Store.
func (x storeIndexer) List() []any { return x.withPrefix("") }

// Index implements cache.Indexer for the index by namespace, the only one that listers use. obj contains the namespace.
func (x storeIndexer) Index(_ string, obj any) ([]any, error) {
	return x.withPrefix(obj.(*metav1.ObjectMeta).Namespace + "/"), nil
}

// withPrefix returns the objects whose storage key has the kind's prefix followed by the given prefix.
func (x storeIndexer) withPrefix(prefix string) (all []any) {
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

// load decodes a stored object to the Go type of a version, with defaults.
func load(v *resource.Version, rec *store.Record) (runtime.Object, error) {
	obj, err := v.Definition.Storage.Type.Load(rec.Value)
	if err != nil {
		return nil, err
	}
	obj.SetResourceVersion(strconv.FormatInt(rec.Modified, 10))
	return v.Type.External(obj)
}
