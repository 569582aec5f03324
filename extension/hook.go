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

// Request is a write that a Kind hears of. To refuse it, return an error: a StatusError is what the client gets; one of
// k8s.io/apimachinery/pkg/util/validation/field (or some, by ErrorList.ToAggregate) is a 422, any other a 403.
type Request struct {
	Operation   string
	Subresource string // "", "status", or one of the kind's
	// Old is the object as it is stored, New as it is to be, both at the version that the manifest stores; nil on a create, and
	// on a delete. Old is not stored, whatever becomes of it.
	Old, New *unstructured.Unstructured
	User     user.Info
	DryRun   bool
	Warn     func(text string) // adds a Warning header to the answer
}

// hooks are the kinds with functions, as the plugin of admission that asks these.
type hooks map[schema.GroupResource]*Kind

// Name implements admission.Plugin.
func (hooks) Name() string { return "Hooks" }

// Handles implements admission.Plugin.
func (h hooks) Handles(r *admission.Request) bool {
	k := h[subject(r).GroupResource()]
	return k != nil && (k.Admit != nil || k.Validate != nil)
}

// Admit implements admission.Plugin.
func (h hooks) Admit(ctx context.Context, r *admission.Request) error {
	k := h[subject(r).GroupResource()]
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
		return refused(ctx, r, err)
	}
	if q.New == nil || equality.Semantic.DeepEqual(before, q.New.Object) {
		return nil
	}
	return r.Replace(ctx, q.New.Object, subject(r).Definition.Storage)
}

// Validate implements admission.Plugin.
func (h hooks) Validate(ctx context.Context, r *admission.Request) error {
	k := h[subject(r).GroupResource()]
	if k == nil || k.Validate == nil {
		return nil
	}
	q, err := requestOf(ctx, r)
	if err != nil {
		return err
	}
	if err := k.Validate(ctx, q); err != nil {
		return refused(ctx, r, err)
	}
	return nil
}

// subject is the kind of the objects: to a function, what is written by /scale is the object.
func subject(r *admission.Request) *resource.Version {
	if r.Subresource == "scale" {
		return r.Target
	}
	return r.Version
}

func requestOf(ctx context.Context, r *admission.Request) (*Request, error) {
	q := &Request{Operation: string(r.Operation), Subresource: r.Subresource, User: r.User, DryRun: r.DryRun, Warn: r.Warn}
	at := subject(r).Definition.Storage
	for into, read := range map[**unstructured.Unstructured]func(context.Context, *resource.Version) (object.Tree, error){
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

// refused is what the client gets of a function's error.
func refused(ctx context.Context, r *admission.Request, err error) error {
	name := r.ObjectName(ctx)
	if err = invalid(subject(r).Definition, name, err); isStatus(err) {
		return err
	}
	return apierrors.NewForbidden(r.Resource.GroupResource(), name, err)
}

// invalid makes a 422 of errors of fields, and leaves others as they are.
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
