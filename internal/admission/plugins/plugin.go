package plugins

import (
	"context"
	"errors"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apiserver/pkg/admission"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// plugin is one of kube-apiserver's.
type plugin struct {
	name      string
	about     []schema.GroupResource
	handles   func(upstream.Operation) bool
	mutates   upstream.MutationInterface   // nil: it does not
	validates upstream.ValidationInterface // nil: it does not
}

func newPlugin(e *entry, p upstream.Interface) *plugin {
	out := &plugin{name: e.name, about: e.about, handles: p.Handles}
	out.mutates, _ = p.(upstream.MutationInterface)
	out.validates, _ = p.(upstream.ValidationInterface)
	return out
}

// Name implements admission.Plugin.
func (p *plugin) Name() string { return p.name }

// Handles implements admission.Plugin.
func (p *plugin) Handles(r *admission.Request) bool {
	return (p.about == nil || slices.Contains(p.about, r.Resource.GroupResource())) && p.handles(upstream.Operation(r.Operation))
}

// Reinvoke says that the plugin is asked again where a webhook has changed the object.
func (p *plugin) Reinvoke() bool { return true }

// Admit implements admission.Plugin.
func (p *plugin) Admit(ctx context.Context, r *admission.Request) error {
	if p.mutates == nil {
		return nil
	}
	a, err := attributesOf(ctx, r)
	if err != nil {
		return err
	}
	return asStatus(p.mutates.Admit(warning.WithWarningRecorder(ctx, a), a, interfaces))
}

// Validate implements admission.Plugin.
func (p *plugin) Validate(ctx context.Context, r *admission.Request) error {
	if p.validates == nil {
		return nil
	}
	a, err := attributesOf(ctx, r)
	if err != nil {
		return err
	}
	return asStatus(p.validates.Validate(warning.WithWarningRecorder(ctx, a), a, interfaces))
}

// asStatus is what kube-apiserver answers where a plugin's error is none that says how: a 500 with its text alone.
func asStatus(err error) error {
	var status apierrors.APIStatus
	if err == nil || errors.As(err, &status) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return err
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error()}}
}

var interfaces = upstream.NewObjectInterfacesFromScheme(legacyscheme.Scheme)

// attributes are a request for upstream's plugins.
type attributes struct {
	upstream.Attributes
	request *admission.Request
}

func attributesOf(ctx context.Context, r *admission.Request) (attributes, error) {
	obj, old, err := objects(ctx, r)
	return attributes{upstream.NewAttributesRecord(obj, old, r.Version.GroupVersionKind(), r.Namespace, r.Name, r.Resource, r.Subresource,
		upstream.Operation(r.Operation), r.Options(), r.DryRun, r.User), r}, err
}

// objects are what is written and what there is, nil for what is not there: the internal form of kinds that have one, and others as
// they are.
func objects(ctx context.Context, r *admission.Request) (obj, old runtime.Object, err error) {
	if r.Version.Type != nil && r.Version.Type.Internal != nil {
		obj, old, err := r.Internal()
		return obj, old, err
	}
	if obj, err = untyped(ctx, r, r.New); err != nil {
		return nil, nil, err
	}
	old, err = untyped(ctx, r, r.Old)
	return obj, old, err
}

func untyped(ctx context.Context, r *admission.Request, read func(context.Context, *resource.Version) (object.Tree, error)) (runtime.Object, error) {
	t, err := read(ctx, r.Version)
	if err != nil || t == nil {
		return nil, err
	}
	return &unstructured.Unstructured{Object: t}, nil
}

// AddAnnotation implements upstream's Attributes.
func (a attributes) AddAnnotation(key, value string) error {
	a.request.Annotate(key, value)
	return nil
}

// AddAnnotationWithLevel implements upstream's Attributes.
func (a attributes) AddAnnotationWithLevel(key, value string, _ auditinternal.Level) error {
	return a.AddAnnotation(key, value)
}

// AddWarning implements warning.Recorder.
func (a attributes) AddWarning(_, text string) { a.request.Warn(text) }
