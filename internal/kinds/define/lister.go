package define

import (
	"fmt"
	"path"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Lister reads the objects of one kind from the head of the store. Its results include every completed write.
type Lister struct {
	Prefix   string // of the storage keys
	head     func() *storage.Snapshot
	resource schema.GroupResource
	goType   *resource.GoType
}

// NewLister returns a Lister of a kind. The function head returns the stored objects.
func NewLister(head func() *storage.Snapshot, kind schema.GroupVersionKind) Lister {
	plural, _ := meta.UnsafeGuessKindToResource(kind)
	return Lister{"/registry/" + plural.Resource + "/", head, plural.GroupResource(),
		typeAt(kind.GroupVersion(), resource.Names{Kind: kind.Kind, ListKind: kind.Kind + "List"})}
}

// record returns the record of an object, or a NotFound error.
func (l Lister) record(name string) (*storage.Record, error) {
	if rec := l.head().Get(l.Prefix + name); rec != nil {
		return rec, nil
	}
	return nil, apierrors.NewNotFound(l.resource, path.Base(name))
}

// Internal returns an object in the internal version, or a NotFound error. name is "namespace/name" for a namespaced
// kind.
func Internal[T resource.Internal](l Lister, name string) (out T, err error) {
	rec, err := l.record(name)
	if err != nil {
		return out, err
	}
	return Load[T](l, rec)
}

// Load decodes a record of the kind to the internal version.
func Load[T resource.Internal](l Lister, rec *storage.Record) (out T, err error) {
	obj, err := l.goType.Load(rec.Value)
	if err != nil {
		return out, err
	}
	return obj.(T), nil
}

// External returns an object as the Go type of the version that l was created for. Its errors are those of Internal.
func External[T runtime.Object](l Lister, name string) (out T, err error) {
	rec, err := l.record(name)
	if err != nil {
		return out, err
	}
	obj, err := l.goType.Object(rec.Value)
	if err != nil {
		return out, err
	}
	return obj.(T), nil
}

// ValidateName returns the error with which upstream's stores reject an invalid name, or nil.
func ValidateName(name string) error {
	if name == "" {
		return apierrors.NewBadRequest("Name parameter required.")
	}
	if problems := pathvalidation.IsValidPathSegmentName(name); len(problems) > 0 {
		return apierrors.NewBadRequest(fmt.Sprintf("Name parameter invalid: %q: %s", name, strings.Join(problems, ";")))
	}
	return nil
}
