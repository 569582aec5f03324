package extension

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// The operations of a Request.
const (
	Create = string(admission.Create)
	Update = string(admission.Update)
	Delete = string(admission.Delete)
)

// Request describes a write of an object, for Kind.Admit and Kind.Validate. These functions reject the write by
// returning an error. A StatusError is sent to the client unchanged. Field errors of
// k8s.io/apimachinery/pkg/util/validation/field become a 422. Several field errors are combined with
// ErrorList.ToAggregate. Any other error becomes a 403.
type Request struct {
	Operation   string
	Subresource string // "", "status", or the name of a subresource of the kind
	// Old is the stored object, and New is the object to store. Both are at the storage version. Old is nil on a
	// create, and New is nil on a delete. Changes of Old have no effect.
	Old, New *unstructured.Unstructured
	User     user.Info
	DryRun   bool
	Warn     func(text string) // adds a Warning header to the response
}

// hooks is the admission plugin that calls the Go functions of kinds.
type hooks map[schema.GroupResource]*Kind

// Name implements admission.Plugin.
func (hooks) Name() string { return "Hooks" }

// Handles implements admission.Plugin.
func (h hooks) Handles(r *admission.Request) bool {
	k := h[objectVersion(r).GroupResource()]
	return k != nil && (k.Admit != nil || k.Validate != nil)
}

// Admit implements admission.Plugin.
func (h hooks) Admit(ctx context.Context, r *admission.Request) error {
	k := h[objectVersion(r).GroupResource()]
	if k == nil || k.Admit == nil {
		return nil
	}
	q, err := requestOf(ctx, r)
	if err != nil {
		return err
	}
	var before object.Tree
	if q.New != nil {
		before = object.Copy(q.New.Object)
	}
	if err := k.Admit(ctx, q); err != nil {
		return statusError(ctx, r, err)
	}
	if q.New == nil || equality.Semantic.DeepEqual(before, q.New.Object) {
		return nil
	}
	return r.Replace(ctx, q.New.Object, objectVersion(r).Definition.Storage)
}

// Validate implements admission.Plugin.
func (h hooks) Validate(ctx context.Context, r *admission.Request) error {
	k := h[objectVersion(r).GroupResource()]
	if k == nil || k.Validate == nil {
		return nil
	}
	q, err := requestOf(ctx, r)
	if err != nil {
		return err
	}
	if err := k.Validate(ctx, q); err != nil {
		return statusError(ctx, r, err)
	}
	return nil
}

// objectVersion returns the version and kind of the object that a request writes. For a write of /scale, this is the
// scaled object.
func objectVersion(r *admission.Request) *resource.Version {
	if r.Subresource == "scale" {
		return r.Target
	}
	return r.Version
}

func requestOf(ctx context.Context, r *admission.Request) (*Request, error) {
	q := &Request{Operation: string(r.Operation), Subresource: r.Subresource, User: r.User, DryRun: r.DryRun,
		Warn: r.Warn}
	at := objectVersion(r).Definition.Storage
	for into, read := range map[**unstructured.Unstructured]func(context.Context, *resource.Version) (object.Tree,
		error){
		&q.Old: r.Old, &q.New: r.New,
	} {
		t, err := read(ctx, at)
		if err != nil {
			return nil, err
		}
		if t != nil {
			*into = &unstructured.Unstructured{Object: t}
		}
	}
	return q, nil
}

// statusError converts an error of Kind.Admit or Kind.Validate to the error that the client gets.
func statusError(ctx context.Context, r *admission.Request, err error) error {
	name := r.ObjectName(ctx)
	if err = invalid(objectVersion(r).Definition, name, err); isStatus(err) {
		return err
	}
	return apierrors.NewForbidden(r.Resource.GroupResource(), name, err)
}

// invalid converts field errors to a 422. It returns other errors unchanged.
func invalid(d *resource.Definition, name string, err error) error {
	all := []error{err}
	if some, ok := err.(utilerrors.Aggregate); ok {
		all = some.Errors()
	}
	var errs field.ErrorList
	for _, one := range all {
		var of *field.Error
		if isStatus(err) || !errors.As(one, &of) {
			return err
		}
		errs = append(errs, of)
	}
	return apierrors.NewInvalid(d.Storage.GroupVersionKind().GroupKind(), name, errs)
}

func isStatus(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}
