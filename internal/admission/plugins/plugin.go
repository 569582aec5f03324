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
	obj, old, err := attributes.Internal(ctx, r)
	if err != nil {
		return err
	}
	a := attributes.Of(r, obj, old)
	return asStatus(p.mutates.Admit(warning.WithWarningRecorder(ctx, a), a, interfaces))
}

// Validate implements admission.Plugin.
func (p *plugin) Validate(ctx context.Context, r *admission.Request) error {
	if p.validates == nil {
		return nil
	}
	obj, old, err := attributes.Internal(ctx, r)
	if err != nil {
		return err
	}
	a := attributes.Of(r, obj, old)
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
