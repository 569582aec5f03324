package webhook

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	upstream "k8s.io/apiserver/pkg/admission"
	webhookerrors "k8s.io/apiserver/pkg/admission/plugin/webhook/errors"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/generic"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/request"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/utils/ptr"

	"github.com/trellis-k8s/trellis/internal/compute"
)

// call calls a webhook, unless its response is cached. The error is a callError, or the Status with which the webhook
// denies the request.
func (s *reviewRequest) call(
	ctx context.Context, h *hook, to *generic.WebhookInvocation, attributes *upstream.VersionedAttributes,
) (*request.AdmissionResponse, error) {
	if effects := h.GetSideEffects(); s.IsDryRun() && (effects == nil ||
		*effects != v1.SideEffectClassNone && *effects != v1.SideEffectClassNoneOnDryRun) {
		return nil, webhookerrors.NewDryRunUnsupportedErr(h.GetName())
	}
	if known := s.cached(h, attributes); known != nil {
		s.report(h, known)
		return known, nil
	}
	uid, review, response, err := request.CreateAdmissionObjects(attributes, to)
	if err != nil {
		return nil, callError(h, "could not create admission objects: %w", err)
	}
	client, err := h.client.rest()
	if err != nil {
		return nil, callError(h, "could not get REST client: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(ptr.Deref(h.GetTimeoutSeconds(), 10))*time.Second)
	defer cancel()
	post := client.Post().Body(review)
	if deadline, _ := ctx.Deadline(); time.Until(deadline) > 0 {
		post.Timeout((time.Until(deadline) +
			time.Second - 1).Truncate(time.Second)) // sent to the webhook as a query parameter
	}
	resume := compute.Pause(ctx)
	answer := post.Do(ctx)
	resume()
	if err := answer.Into(response); err != nil {
		return nil, callError(h, "failed to call webhook: %w", err)
	}
	result, err := request.VerifyAdmissionResponse(uid, h.GetType() == "admit", response)
	if err != nil {
		return nil, callError(h, "received invalid webhook response: %w", err)
	}
	s.report(h, result)
	if !result.Allowed {
		return nil, webhookerrors.ToStatusErr(h.GetName(), result.Result)
	}
	s.mu.Lock()
	s.state.responses[s.responseKey(h)] = cachedResponse{
		treeOf(attributes.VersionedObject.Object()), treeOf(attributes.VersionedOldObject.Object()), result,
	}
	s.mu.Unlock()
	return result, nil
}

// report records the audit annotations and warnings of a response.
func (s *reviewRequest) report(h *hook, result *request.AdmissionResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, v := range result.AuditAnnotations {
		s.Request.Annotate(h.GetName()+"/"+k, v)
	}
	for _, text := range result.Warnings {
		s.Request.Warn(text)
	}
}

// callError returns upstream's error for a call that failed.
func callError(h *hook, format string, err error) error {
	return &webhookutil.ErrCallingWebhook{WebhookName: h.GetName(), Reason: fmt.Errorf(format, err)}
}

// applyFailurePolicy returns the error for the client after call has returned err. It returns nil if the call failed
// and the webhook's failurePolicy is Ignore.
func (s *reviewRequest) applyFailurePolicy(h *hook, err error, annotation string) error {
	var failed *webhookutil.ErrCallingWebhook
	if !errors.As(err, &failed) {
		return err
	}
	if ptr.Deref(h.GetFailurePolicy(), v1.Fail) != v1.Ignore {
		return apierrors.NewInternalError(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Request.Annotate("failed-open."+annotation, h.GetName())
	return nil
}
