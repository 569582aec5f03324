package plugins

import (
	"context"
	"errors"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/admission/attributes"
)

// plugin is one of kube-apiserver's plugins.
type plugin struct {
	name      string
	resources []schema.GroupResource // nil means all
	handles   func(upstream.Operation) bool
	mutator   upstream.MutationInterface   // nil if the plugin does not mutate
	validator upstream.ValidationInterface // nil if the plugin does not validate
}

func newPlugin(e *entry, p upstream.Interface) *plugin {
	out := &plugin{name: e.name, resources: e.resources, handles: p.Handles}
	out.mutator, _ = p.(upstream.MutationInterface)
	out.validator, _ = p.(upstream.ValidationInterface)
	return out
}

// Name implements admission.Plugin.
func (p *plugin) Name() string { return p.name }

// Handles implements admission.Plugin.
func (p *plugin) Handles(r *admission.Request) bool {
	return (p.resources == nil || slices.Contains(p.resources, r.Resource.GroupResource())) &&
		p.handles(upstream.Operation(r.Operation))
}

// Reinvoke returns true: the plugin is called again after a webhook has changed the object.
func (p *plugin) Reinvoke() bool { return true }

// Admit implements admission.Plugin.
func (p *plugin) Admit(ctx context.Context, r *admission.Request) error {
	if p.mutator == nil {
		return nil
	}
	obj, old, err := attributes.Internal(ctx, r)
	if err != nil {
		return err
	}
	a := attributes.New(r, obj, old)
	return asStatus(p.mutator.Admit(warning.WithWarningRecorder(ctx, a), a, interfaces))
}

// Validate implements admission.Plugin.
func (p *plugin) Validate(ctx context.Context, r *admission.Request) error {
	if p.validator == nil {
		return nil
	}
	obj, old, err := attributes.Internal(ctx, r)
	if err != nil {
		return err
	}
	a := attributes.New(r, obj, old)
	return asStatus(p.validator.Validate(warning.WithWarningRecorder(ctx, a), a, interfaces))
}

// asStatus wraps a plain error of a plugin in a 500 StatusError with only the error's text, as kube-apiserver does.
func asStatus(err error) error {
	var status apierrors.APIStatus
	if err == nil || errors.As(err, &status) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, context.Canceled) {
		return err
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error(),
	}}
}

var interfaces = upstream.NewObjectInterfacesFromScheme(legacyscheme.Scheme)
