package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	v1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/generic"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/request"
	"k8s.io/utils/ptr"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/admission/attributes"
	"github.com/trellis-k8s/trellis/internal/merge"
	"github.com/trellis-k8s/trellis/internal/object"
)

// mutator is the plugin MutatingAdmissionWebhook. It calls webhooks one after the other.
type mutator struct{ plugin }

// Validate implements admission.Plugin.
func (p *mutator) Validate(context.Context, *admission.Request) error { return nil }

// Reinvoke returns true: webhooks with the reinvocationPolicy IfNeeded may have to be called again.
func (p *mutator) Reinvoke() bool { return true }

// reinvocation records which webhooks must be called again. The keys of the maps are UIDs of webhooks.
type reinvocation struct {
	called  map[string]bool // called webhooks with reinvocationPolicy IfNeeded, after which the object has not changed
	pending map[string]bool // called webhooks with reinvocationPolicy IfNeeded, after which the object has changed
	last    object.Tree     // the object at the end of Admit
}

// markChanged records that the object has changed since the last calls.
func (r *reinvocation) markChanged() {
	maps.Copy(r.pending, r.called)
	clear(r.called)
}

// Admit implements admission.Plugin.
func (p *mutator) Admit(ctx context.Context, r *admission.Request) error {
	s, err := p.newReviewRequest(ctx, r)
	if err != nil {
		return err
	}
	kept, round := s.state, 0
	if !r.Reinvoked {
		kept.reinvocation = reinvocation{called: map[string]bool{}, pending: map[string]bool{}}
	} else if round = 1; !object.Equal(kept.last, s.tree()) {
		kept.markChanged()
	}
	err = p.each(ctx, s, func(h *hook, to *generic.WebhookInvocation) error {
		if r.Reinvoked && !kept.pending[h.GetUID()] {
			return nil
		}
		changed, err := p.callAndApply(s, h, to, fmt.Sprintf("round_%d_index_%d", round, h.position))
		if changed {
			kept.markChanged()
		}
		w, _ := h.GetMutatingWebhook()
		if ptr.Deref(w.ReinvocationPolicy, v1.NeverReinvocationPolicy) == v1.IfNeededReinvocationPolicy {
			kept.called[h.GetUID()] = true
		}
		return err
	})
	kept.last = s.tree()
	return err
}

// callAndApply calls a webhook and applies the patch in its response.
func (p *mutator) callAndApply(
	s *reviewRequest, h *hook, to *generic.WebhookInvocation, round string,
) (changed bool, err error) {
	attributes, err := s.VersionedAttribute(to.Kind)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	end := s.Request.Step(h.GetName())
	defer func() { end(err) }()
	if s.cached(h, attributes) == nil {
		s.Request.WillBlock()
	}
	result, err := s.call(s.ctx, h, to, attributes)
	if err == nil {
		changed, err = s.apply(h, to, result, round)
	}
	s.annotate(mutating.MutationAuditAnnotationPrefix+round, mutating.MutationAuditAnnotation{
		Configuration: h.GetConfigurationName(), Webhook: h.GetName(), Mutated: changed,
	})
	if err != nil {
		if err = s.applyFailurePolicy(h, err, mutating.MutationAuditAnnotationPrefix+round); err == nil &&
			s.ctx.Err() != nil {
			err = apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
		}
	}
	return changed, err
}

// apply applies the patch in a response to the object.
func (s *reviewRequest) apply(
	h *hook, to *generic.WebhookInvocation, result *request.AdmissionResponse, round string,
) (changed bool, err error) {
	if len(result.Patch) == 0 {
		return false, nil
	}
	operations, err := jsonpatch.DecodePatch(result.Patch)
	switch {
	case err != nil:
		return false, callError(h, "received undecodable patch in webhook response: %w", err)
	case len(operations) == 0:
		return false, nil
	case s.GetObject() == nil:
		return false, apierrors.NewInternalError(fmt.Errorf("admission webhook %q attempted to modify the object,"+
			" which is not supported for this operation", h.GetName()))
	case result.PatchType != admissionv1.PatchTypeJSONPatch:
		return false, callError(h, "%w", fmt.Errorf("unsupported patch type %q", result.PatchType))
	}
	at := attributes.VersionOf(s.Request.Version.Definition, to.Kind)
	before, err := s.Request.New(s.ctx, at)
	if err != nil {
		return false, err
	}
	patched, err := merge.ApplyOperations(operations, object.AppendJSON(nil, before))
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	after, _, err := object.DecodeJSON(patched)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	s.annotate(mutating.PatchAuditAnnotationPrefix+round, mutating.PatchAuditAnnotation{
		Configuration: h.GetConfigurationName(), Webhook: h.GetName(),
		Patch: operations, PatchType: string(result.PatchType),
	})
	if changed = !object.Equal(before, after); !changed {
		return false, nil
	}
	if err := s.Request.Replace(s.ctx, after, at); err != nil {
		return false, apierrors.NewInternalError(err)
	}
	return true, s.refresh()
}

// annotate adds an annotation with a JSON value to the audit record.
func (s *reviewRequest) annotate(key string, value any) {
	if text, err := json.Marshal(value); err == nil {
		s.Request.Annotate(key, string(text))
	}
}
